"""A network whose parts have different releases: what fits trains together, what does not is refused by name."""

import os
import shutil
from pathlib import Path

import pytest
from tests.deploy.cluster import Cluster, cluster, eventually

import fedfew
from fedfew.deploy import joining
from fedfew.deploy.plan import open_server
from fedfew.deploy.versions import versions

pytestmark = pytest.mark.slow


def release(folder: Path, number: str) -> dict[str, str]:
    """Environment of a machine where another release is installed: other files, and so another build."""
    folder.mkdir()
    root = Path(fedfew.__file__).parent
    shutil.copytree(root, folder / "fedfew", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "fedfew" / "core" / "errors.py").open("a") as file:
        file.write(f"\n# {folder.name}\n")
    about = folder / f"fedfew-{number}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: fedfew\nVersion: {number}\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def missing(network: Cluster) -> list[set[str]]:
    """The codes of each site, in the rounds so far."""
    faults = [fault for record in network.rounds() for fault in record["missing"]]
    return [{fault["code"] for fault in faults if fault["client"] == k} for k in range(len(network.plan.sites))]


def test_sites_of_a_fitting_release_train_on_and_the_server_is_upgraded_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """Site a has the server's build, b the next release, c another build of the same release, d another minor one."""
    major, minor, last = map(int, versions()["fedfew"].split("."))
    newer = release(tmp_path / "newer", f"{major}.{minor}.{last + 1}")
    others = {"c": release(tmp_path / "commit", f"{major}.{minor}.{last}")}
    others["d"] = release(tmp_path / "minor", f"{major}.{minor + 1}.0")
    with cluster(tmp_path, {"rounds": 30, "fleet.min_clients": 4}, sites=("a", "b", "c", "d")) as network:
        server = network.server()
        network.site("a")
        network.site("b", environment=newer)
        for name, environment in others.items():
            network.site(name, environment=environment)
        assert network.round_done(2), network.words()
        assert missing(network) == [set(), set(), {"E417"}, {"E417"}], network.rounds()
        reason = network.rounds()[0]["missing"][0]["reason"]
        assert reason == "the site runs another version of fedfew or torch"
        log = (tmp_path / "sites" / "c" / "logs" / "site-c.log").read_text()
        assert f"both have fedfew {versions()['fedfew']}, but build {versions()['build']} there" in log, log
        doctor = network.start("deploy", "doctor", "client", str(tmp_path / "sites" / "d"), environment=others["d"])
        assert doctor.wait() == 2 and "the other side has fedfew" in doctor.log.with_suffix(".out").read_text()
        rows = {row["site"]: row for row in joining.site_rows(open_server(network.plan.folder))}
        assert f"fedfew {major}.{minor}.{last + 1}," in rows["b"]["versions"], rows["b"]
        server.end()
        done = len(network.rounds())
        refused = network.server(environment=newer)
        assert refused.wait(120) == 2 and "E308" in refused.errors(), refused.errors()
        network.server("--anyway", environment=newer)
        assert eventually(lambda: len(network.rounds()) >= done + 2, 240), network.words()
        assert missing(network)[:2] == [set(), set()], network.rounds()[done:]
