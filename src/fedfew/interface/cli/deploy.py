"""Declares ``fedfew deploy``: options and help texts."""

from pathlib import Path
from typing import Any

import click

from fedfew.interface.cli import options
from fedfew.interface.cli.group import Group, execute
from fedfew.interface.cli.options import PATH

bundle = click.argument(
    "bundle", metavar="BUNDLE", type=PATH, help="SITE.tar from `deploy init`, or its unpacked folder."
)
network = click.argument(
    "network", metavar="[NETWORK]", default=Path(), type=PATH, help="The folder from `deploy init`, or its server/."
)
state = click.option("--state", metavar="DIR", type=PATH, help="The site's folder (default: beside it).")
data = click.option("--data", metavar="FOLDER|NPZ", type=PATH, help="The site's images; labels are never read.")
systemd = click.option("--systemd", is_flag=True, help="Print a unit for systemd and exit.")
AT_LEAST_0 = click.FloatRange(min=0)


def _execute(function: str, given: dict[str, Any]) -> None:
    from fedfew.core.extras import require  # noqa: PLC0415 - other commands need no network

    require("flower", "fedfew deploy")
    execute(f"deploy:{function}", given)


@click.group(cls=Group)
def deploy() -> None:
    """Train across real machines, connected by Flower."""


@deploy.command()
@options.place("name", "NAME", "Folder of the new network.")
@click.option("--sites", metavar="A,B,C", required=True, help="Names of the sites.")
@click.option("--server", metavar="HOST", default="127.0.0.1", help="Name or address of the server.")
@click.option("--port", default=9092, type=click.IntRange(1, 65535), help="Port of the server.")
@click.option(
    "--config", metavar="PRESET|CONFIG.toml", default="quick", type=options.ConfigName(), help="What to train."
)
@options.overrides
@click.option("--days", default=365, type=click.IntRange(min=1), help="How long the certificates are valid.")
@options.flag("--insecure", "Without TLS and keys; on this machine only.")
@options.flag("--force", "Replace the keys of an existing network.")
@options.as_json
def init(**given: Any) -> None:
    """Create a network of sites.

    Writes certificates, one key pair and one bundle for each site, and the server's folder.
    """
    _execute("init", given)


@deploy.command()
@network
@click.option("--config", metavar="PRESET|CONFIG.toml", default="", type=options.ConfigName(), help="What to train.")
@options.overrides
@options.new_run
@options.flag("--nginx", "Print a configuration for nginx and exit.")
@systemd
@options.anyway
@options.allow_code
@options.as_json
def server(**given: Any) -> None:
    """Start the network's run, or continue it. Starts Flower's SuperLink on loopback and a TLS front for the sites."""
    _execute("server", given)


@deploy.command()
@bundle
@data
@state
@click.option("--min-noise", default=0.0, type=AT_LEAST_0, help="Refuse runs with less noise.")
@click.option("--max-clip", default=0.0, type=AT_LEAST_0, help="Refuse runs with a larger clip; 0: any.")
@click.option(
    "--max-epsilon", default=0.0, type=AT_LEAST_0, help="Refuse updates beyond this ε over all runs; 0: no limit."
)
@click.option("--delta", default=1e-5, type=click.FloatRange(0, 1), help="δ at which --max-epsilon holds.")
@options.allow_code
@systemd
def client(**given: Any) -> None:
    """Keep a site online. Starts a process that holds the images, and Flower's SuperNode; reconnects by itself."""
    _execute("client", given)


@deploy.command()
@options.config
@click.option("--sites", default=2, type=click.IntRange(min=1), help="How many sites share the clients.")
@options.overrides
@options.new_run
@options.as_json
def local(**given: Any) -> None:
    """Try a network on this machine, with TLS and keys. The result is the same as that of `fedfew run`."""
    _execute("local", given)


@deploy.group()
def doctor() -> None:
    """Check the server or a site before a run."""


@doctor.command("server")
@network
@options.allow_code
@options.as_json
def doctor_server(**given: Any) -> None:
    """Check the server of a network. Checks certificates, port, data, disk and versions, and takes a training step."""
    _execute("doctor_server", given)


@doctor.command("client")
@bundle
@data
@state
@options.as_json
def doctor_client(**given: Any) -> None:
    """Check a site of a network.

    Checks connection, TLS, clock, versions, key, disk and images, and takes a training step.
    """
    _execute("doctor_client", given)
