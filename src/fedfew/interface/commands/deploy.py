"""fedfew deploy: the same run on real machines; init, server, client, doctor, and local for a trial on one machine."""

import sys
from collections.abc import Collection, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fedfew.config.files import dumps
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.extras import require
from fedfew.core.storage import write_atomically
from fedfew.deploy import joining
from fedfew.deploy.audit import record
from fedfew.deploy.certificates import authority_fingerprint, check_expiry, expiry
from fedfew.deploy.doctor import Check, examine_client, examine_server
from fedfew.deploy.joining import site_rows
from fedfew.deploy.plan import make_network, open_bundle, open_server
from fedfew.deploy.server import forget as forgetting
from fedfew.deploy.server import queue
from fedfew.deploy.server.network import start_or_resume
from fedfew.deploy.site.agreement import APPROVED, REFUSED, SHORTEST, asked_plans, decide
from fedfew.deploy.site.agreement import pause as pause_site
from fedfew.deploy.site.ledger import verify
from fedfew.deploy.site.limits import site_terms
from fedfew.interface.commands.run import finish, note_sums
from fedfew.interface.console import note, out, print_json, print_table, say, warn
from fedfew.interface.deploy import printouts, serving
from fedfew.interface.deploy.dossier import write_dossier, write_pdf
from fedfew.interface.deploy.printouts import next_steps, systemd_client
from fedfew.interface.deploy.site_status import keep_online
from fedfew.interface.report.document import page
from fedfew.runs.session import Experiment


def init(
    name: Path,
    sites: str,
    server: str,
    port: int,
    bind: int,
    config: str,
    overrides: dict[str, Any],
    days: int,
    force: bool,
    json: bool,
) -> None:
    """Create a network: certificates, one key pair and one bundle for each site, and the server's folder."""
    names = [part.strip() for part in sites.split(",") if part.strip()]
    chosen = {"clients": max(len(names), 1), "participation": 1.0} | overrides
    document = load(config, chosen | {"fleet.kind": "flower"}).document
    content = f"# What network {name.name} trains; its sites are the clients\n{dumps(document)}"
    plan = make_network(
        name, names, host=server, port=port, bind=bind, days=days, force=force, config=content
    )  # fmt: skip
    record(plan.folder, "created", sites=list(plan.sites))
    if json:
        bundles = {site: str(name / "bundles" / f"{site}.tar") for site in plan.sites}
        print_json({"network": plan.network, "server": str(plan.folder), "bundles": bundles})
    else:
        say(next_steps(plan))


def server(
    network: Path,
    config: str,
    sites: str,
    overrides: dict[str, Any],
    out: Path | None,
    serve: bool,
    metrics: int,
    nginx: bool,
    systemd: bool,
    anyway: bool,
    allow_code: Collection[str],
    json: bool,
) -> None:
    """Start the network's run, or continue it: SuperLink on loopback, TLS front, rounds."""
    plan = open_server(network)
    if nginx or systemd:
        text = printouts.nginx(plan) if nginx else printouts.systemd_server(plan, serve, metrics)
        sys.stdout.write(text)
        return
    if sites:
        overrides = overrides | {"fleet.only": sites}
    for path in (plan.ca, plan.certificate):
        try:
            check_expiry(path)
        except FedfewError as fault:
            warn(fault)
    if not serve:
        session = start_or_resume(plan, warn, config, overrides, out, anyway=anyway, allow_code=allow_code)
        serving.run_once(plan, session, json, metrics)
        return
    if config or sites or out or overrides:
        reason = "the queue says what is run, and on which sites"
        raise FedfewError("E103", "--serve", reason, "Give these options to `fedfew deploy submit`")
    serving.serve(plan, allow_code, json, metrics)


def submit(config: str, network: Path, name: str | None, sites: str, overrides: dict[str, Any], json: bool) -> None:
    """Put a config at the end of the queue of a server that stays up."""
    plan, only = open_server(network), {"fleet.only": sites} if sites else {}
    path = queue.submit(plan, config, overrides | only, name or Path(config).stem)
    if json:
        print_json({"plan": str(path), "waiting": len(queue.waiting(plan.folder))})
    else:
        note(f"{path.name} waits; `fedfew deploy server {network} --serve` runs it.")


def client(
    bundle: Path,
    data: Path | None,
    state: Path | None,
    min_noise: float | None,
    max_clip: float | None,
    unit: str | None,
    max_epsilon: float | None,
    delta: float | None,
    allow_code: tuple[str, ...],
    metrics: int,
    systemd: bool,
) -> None:
    """Keep a site online: a warm process with the images, and Flower's SuperNode; reconnects by itself."""
    plan = open_bundle(bundle, state)
    stated = {"min_noise": min_noise, "max_clip": max_clip, "unit": unit, "max_epsilon": max_epsilon, "delta": delta}
    terms = site_terms(plan.folder, stated | {"allow_code": allow_code})
    if systemd:
        sys.stdout.write(systemd_client(plan.folder, data, terms, metrics))
        return
    if data is None:
        raise FedfewError("E509", "--data", "is missing")
    if terms.max_epsilon:
        require("privacy", "--max-epsilon")
    keep_online(plan, data.absolute(), terms, metrics)


def join(folder: Path, admission: Path | None, name: str, fingerprint: str, json: bool) -> None:
    """Make a site's key and request, or complete its folder with what the server returned."""
    if admission is None:
        path, shown = joining.request(folder, name)
        about = {"request": str(path), "fingerprint": shown}
        steps = printouts.join_steps(folder, path, shown)
    else:
        _confirm("the authority of the network", joining.read_admission(folder, admission)[2], fingerprint)
        plan = joining.accept(folder, admission)
        about = {"site": plan.name, "server": plan.address}
        steps = f"Site {plan.name}: server {plan.address}. Next: fedfew deploy client {folder} --data IMAGES"
    if json:
        print_json(about)
    else:
        say(steps)


def admit(request: Path, network: Path, fingerprint: str, json: bool) -> None:
    """Let a site into the network, once its fingerprint is confirmed."""
    plan = open_server(network)
    name, _, shown = joining.read_request(request)
    _confirm(f"the key of site {name}", shown, fingerprint)
    path = joining.admit(plan, request)
    own = authority_fingerprint(plan.ca.read_bytes())
    if json:
        print_json({"site": name, "admission": str(path), "authority": own})
    else:
        say(printouts.admit_steps(name, path, own))


def _confirm(thing: str, shown: str, said: str) -> None:
    """E513 unless the fingerprint is the one that the other side read out: in an option, or by the person here."""
    if said:
        if said.replace(" ", "").lower() != shown.replace(" ", ""):
            remedy = "Ask the other side again; if it stays another one, somebody changed the file on its way"
            raise FedfewError("E513", "--fingerprint", f"{thing} has the fingerprint {shown}", remedy)
    elif not sys.stdin.isatty():
        reason = f"is missing; {thing} has {shown}"
        raise FedfewError("E513", "--fingerprint", reason, "Compare it with the other side, then give it")
    elif not click.confirm(f"Fingerprint of {thing}: {shown}. Did the other side read out the same?", err=True):
        raise FedfewError("E513", thing, "the fingerprints differ", "Somebody changed the file on its way")


def approve(folder: Path, plan: str | None, refuse: bool, json: bool) -> None:
    """Show what runs ask of a site; with ``plan`` approve or refuse that one."""
    open_bundle(folder)
    if plan is not None:
        chosen = decide(folder, plan, REFUSED if refuse else APPROVED)
        note(f"Plan {chosen['plan'][:SHORTEST]} is {REFUSED if refuse else APPROVED}.")
    plans = asked_plans(folder)
    if json:
        print_json({"plans": plans})
        return
    for one in plans:
        printouts.asked_plan(one)
    if not plans:
        note("No run has asked yet.")


def pause(folder: Path, end: bool) -> None:
    """Let a site answer nothing, or end that."""
    plan = open_bundle(folder)
    pause_site(folder, end)
    note(
        f"Site {plan.name} "
        + ("answers again." if end else f"has paused; `fedfew deploy pause {folder} --end` ends that.")
    )


def sites(network: Path, json: bool) -> None:
    """List the sites of a network."""
    plan = open_server(network)
    rows, ends = site_rows(plan), {
        name: f"{expiry(path.read_bytes()):%Y-%m-%d}"
        for name, path in (("authority", plan.ca), ("server", plan.certificate))
    }  # fmt: skip
    if json:
        print_json({"network": plan.network, "certificates": ends, "sites": rows})
        return
    keys = ("site", "state", "last seen", "answer", "versions", "fingerprint")
    print_table(keys, [[row[key] for key in keys] for row in rows], f"network {plan.name}", words=6)
    note(f"Certificates end: {', '.join(f'{name} {day}' for name, day in ends.items()) or 'none'}")


def revoke(site: str, network: Path) -> None:
    """Shut a site out of the network."""
    joining.revoke(open_server(network), site)
    note(f"Site {site} is shut out; a running server takes that up at once.")


def forget(site: str, network: Path, run: Path | None, allow_code: tuple[str, ...], json: bool) -> None:
    """Make a run's model again without one site's sums."""
    plan = open_server(network)
    about = forgetting.forget(plan, site, run or plan.folder / "run", warn, allow_code)
    if json:
        print_json(about)
    else:
        say(printouts.forget_steps(about))


def renew(network: Path, days: int, json: bool) -> None:
    """Renew the certificates of authority and server."""
    paths = joining.renew(open_server(network), days)
    if json:
        print_json({"days": days, "admissions": list(map(str, paths))})
    else:
        say(printouts.renew_steps(paths, days))


def dossier(network: Path, site: Collection[Path], purpose: str, out: Path | None, pdf: bool) -> None:
    """Write a document about the network for a board."""
    plan = open_server(network)
    path = write_dossier(plan, tuple(site), purpose, out or plan.folder.parent / "dossier.html")
    say(f"dossier: {path}")
    if pdf:
        printed = write_pdf(path)
        say(f"PDF: {printed}" if printed else "PDF: there is no Chromium or Chrome on this machine to print it")


def local(config: str, sites: int, overrides: dict[str, Any], out: Path | None, json: bool) -> None:
    """Try all of it on this machine, with TLS and keys: the same result as `fedfew run`, through Flower."""
    chosen = overrides | {"fleet.kind": "flower", "fleet.sites": sites, "fleet.network": ""}
    session = Experiment.load(config, chosen).start(out)
    note_sums(session.parts.config)
    finish(session, json)


def doctor_server(network: Path, allow_code: Collection[str], json: bool) -> None:
    """Check certificates, port, data, disk and versions, and take a training step at the server."""
    _show(examine_server(network, allow_code), json)


def doctor_client(bundle: Path, data: Path | None, state: Path | None, json: bool) -> None:
    """Check connection, TLS, clock, versions, key, disk and images, and take a training step at a site."""
    _show(examine_client(bundle, data, state), json)


def ledger_verify(folder: Path, noted: str, html: Path | None, json: bool) -> None:
    """Check the chain of a site's ledger, and summarize it."""
    summary = verify(folder, noted)
    if html is not None:
        name = (folder if folder.is_dir() else folder.parent).resolve().name
        text = page("ledger.html", "deploy", title=f"Ledger of {name}", name=name, summary=summary, plural=False)
        write_atomically(html, text.encode())
    if json:
        runs = {
            run: vars(one) | {"rounds": len(one.rounds), "tensors": sorted(one.tensors)}
            for run, one in summary.runs.items()
        }
        print_json(vars(summary) | {"runs": runs})
        return
    printouts.ledger_summary(summary)


def _show(checks: Iterable[Check], json: bool) -> None:
    """Print each check as it comes, PASSED or FAILED with the remedy; exit status 2 if one failed."""
    seen = []
    for check in checks:
        seen.append(check)
        if not json:
            mark = "[green]PASSED[/]" if check.passed else "[bold red]FAILED[/]"
            mark = "[yellow]WARNING[/]" if check.passed and check.remedy else mark
            out.print(f"{mark} {check.name}: ", end="")
            say(check.detail)
            if check.remedy:
                say(f"       {check.remedy}")
    good = all(check.passed for check in seen)
    if json:
        print_json({"ok": good, "checks": [asdict(check) for check in seen]})
    if not good:
        raise SystemExit(2)
