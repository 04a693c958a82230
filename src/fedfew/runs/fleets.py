"""Where a run's clients train: in this process, on a pool of processes, or at sites that Flower connects."""

from pathlib import Path

from fedfew.build import parts as build
from fedfew.build.features import Report
from fedfew.build.parts import Parts, has_remote_sites, local_fleet, sites_of
from fedfew.config.schema import Config
from fedfew.core.extras import require
from fedfew.core.types import Fleet


def assemble(config: Config, report: Report | None = None) -> Parts:
    """The parts of a run; the names of remote sites come from the folder of their network."""
    if not has_remote_sites(config):
        return build.assemble(config, report=report)
    require("flower", "fleet.kind = 'flower'")
    from fedfew.deploy.plan import open_server

    return build.assemble(config, open_server(Path(config["fleet.network"])).sites, report)


def fleet_of(parts: Parts, folder: Path) -> Fleet:
    """The fleet that the config names."""
    if parts.config["fleet.kind"] != "flower":
        return local_fleet(parts)
    require("flower", "fleet.kind = 'flower'")
    from fedfew.deploy.fleet import flower_fleet

    return flower_fleet(parts, sites_of(parts.config, parts.federation, parts.network).score, folder)
