"""fedfew deploy: the same run on real machines; init, server, client, doctor, and local for a trial on one machine."""

from pathlib import Path
from typing import Annotated

import typer

from fedfew.config import toml
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.extras import require
from fedfew.deploy.doctor import examine_client, examine_server
from fedfew.deploy.plan import make_network, open_bundle, open_server
from fedfew.deploy.site.processes import SiteTerms
from fedfew.interface import options
from fedfew.interface.commands.run import finish
from fedfew.interface.console import err, out, print_json, warn
from fedfew.interface.deploy import printouts
from fedfew.interface.deploy.findings import show
from fedfew.interface.deploy.printouts import next_steps, systemd_client
from fedfew.interface.deploy.site_status import keep_online
from fedfew.interface.options import Anyway, Config, Json, Out, Set
from fedfew.runs.experiment import Experiment
from fedfew.runs.session import start_or_resume

Bundle = Annotated[Path, typer.Argument(metavar="BUNDLE", help="SITE.tar from `deploy init`, or its unpacked folder.")]
Network = Annotated[Path, typer.Argument(metavar="NETWORK", help="The folder from `deploy init`, or its server/.")]
State = Annotated[Path | None, typer.Option("--state", metavar="DIR", help="The site's folder (default: beside it).")]
Data = Annotated[
    Path | None, typer.Option("--data", metavar="FOLDER|NPZ", help="The site's images; labels are never read.")
]
What = Annotated[str, typer.Option("--config", metavar="PRESET|CONFIG.toml", help="What to train.")]


def init(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="Folder of the new network.")],
    sites: Annotated[str, typer.Option("--sites", metavar="A,B,C", help="Names of the sites.")],
    server: Annotated[
        str, typer.Option("--server", metavar="HOST", help="Name or address of the server.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port of the server.")] = 9092,
    config: What = "quick",
    set_: Set = None,
    days: Annotated[int, typer.Option("--days", min=1, help="How long the certificates are valid.")] = 365,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and keys; on this machine only.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the keys of an existing network.")] = False,
    json: Json = False,
) -> None:
    """Create a network: certificates, one key pair and one bundle for each site, and the server's folder."""
    names = [part.strip() for part in sites.split(",") if part.strip()]
    given = {"clients": max(len(names), 1), "participation": 1.0} | options.overrides(set_)
    document = load(config, given | {"fleet.kind": "flower"}).document
    content = f"# What network {name.name} trains; its sites are the clients\n{toml.dumps(document)}"
    plan = make_network(
        name, names, host=server, port=port, days=days, insecure=insecure, force=force, config=content
    )  # fmt: skip
    if json:
        bundles = {site: str(name / "bundles" / f"{site}.tar") for site in plan.sites}
        print_json({"network": plan.network, "server": str(plan.folder), "bundles": bundles})
    else:
        out.print(next_steps(plan), markup=False, soft_wrap=True)


def server(
    network: Network = Path(),
    config: What = "",
    set_: Set = None,
    out: Out = None,
    nginx: Annotated[bool, typer.Option("--nginx", help="Print a configuration for nginx and exit.")] = False,
    systemd: Annotated[bool, typer.Option("--systemd", help="Print a unit for systemd and exit.")] = False,
    anyway: Anyway = False,
    json: Json = False,
) -> None:
    """Start the network's run, or continue it: SuperLink on loopback, TLS front, rounds."""
    plan = open_server(network)
    if nginx or systemd:
        text = printouts.nginx(plan) if nginx else printouts.systemd_server(plan)
        typer.echo(text, nl=False)
        return
    session = start_or_resume(plan, warn, config, options.overrides(set_), out, anyway=anyway)
    err.print(f"network {plan.name} at {plan.host}:{plan.port}; waiting for {', '.join(plan.sites)}", markup=False)
    finish(session, json)


def client(
    bundle: Bundle,
    data: Data = None,
    state: State = None,
    min_noise: Annotated[float, typer.Option("--min-noise", min=0, help="Refuse runs with less noise.")] = 0.0,
    max_clip: Annotated[float, typer.Option("--max-clip", min=0, help="Refuse runs with a larger clip; 0: any.")] = 0.0,
    max_epsilon: Annotated[
        float, typer.Option("--max-epsilon", min=0, help="Refuse updates beyond this ε over all runs; 0: no limit.")
    ] = 0.0,
    delta: Annotated[float, typer.Option("--delta", min=0, max=1, help="δ at which --max-epsilon holds.")] = 1e-5,
    allow_code: Annotated[
        list[str] | None,
        typer.Option("--allow-code", metavar="MODULE:NAME", help="Code outside fedfew that a run may use."),
    ] = None,
    systemd: Annotated[bool, typer.Option("--systemd", help="Print a unit for systemd and exit.")] = False,
) -> None:
    """Keep a site online: a warm process with the images, and Flower's SuperNode; reconnects by itself."""
    plan = open_bundle(bundle, state)
    terms = SiteTerms(min_noise, max_clip, max_epsilon, delta, tuple(allow_code or ()))
    if systemd:
        typer.echo(systemd_client(plan.folder, data, terms.options()), nl=False)
        return
    if data is None:
        raise FedfewError("E509", "--data", "is missing")
    if max_epsilon:
        require("privacy", "--max-epsilon")
    keep_online(plan, data.absolute(), terms)


def local(
    config: Config,
    sites: Annotated[int, typer.Option("--sites", min=1, help="How many sites share the clients.")] = 2,
    set_: Set = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Try all of it on this machine, with TLS and keys: the same result as `fedfew run`, through Flower."""
    chosen = options.overrides(set_) | {"fleet.kind": "flower", "fleet.sites": sites, "fleet.network": ""}
    finish(Experiment.load(config, chosen).start(out), json)


def doctor_server(network: Network = Path(), json: Json = False) -> None:
    """Check certificates, port, data, disk and versions, and take a training step at the server."""
    show(examine_server(network), json)


def doctor_client(bundle: Bundle, data: Data = None, state: State = None, json: Json = False) -> None:
    """Check connection, TLS, clock, versions, key, disk and images, and take a training step at a site."""
    show(examine_client(bundle, data, state), json)
