"""Texts that `fedfew deploy` prints for copying: the next commands, an nginx configuration, systemd units."""

import json
import shlex
import sysconfig
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template

from fedfew.core.text import percent, size
from fedfew.deploy.front.proxy import CALLS, OBJECT_LIMIT
from fedfew.deploy.plan import ServerPlan
from fedfew.deploy.site.ledger import LedgerSummary
from fedfew.deploy.site.limits import SiteTerms
from fedfew.deploy.versions import versions
from fedfew.interface.console import print_table, say

USER = "fedfew"
"""The user of a systemd unit."""
OPTIONS = ("min_noise", "max_clip", "unit", "max_epsilon", "delta")
"""Terms that are options of `deploy client`; the others are in the site's limits.toml."""


def next_steps(plan: ServerPlan) -> str:
    """The commands that follow `deploy init`."""
    network = plan.folder.parent
    here = shlex.quote(str(network))
    first = plan.sites[0] if plan.sites else "SITE"
    bundles = [
        "3. Give each site its bundle, over a channel you trust (it contains the site's private key):",
        *(f"                        {network / 'bundles' / site}.tar" for site in plan.sites),
        f"4. At each site:      fedfew deploy client {first}.tar --data FOLDER",
        f"If something does not work: fedfew deploy doctor server {here}, fedfew deploy doctor client {first}.tar",
    ]
    requests = [
        "3. At each site:      fedfew deploy join SITE",
        f"   and here, with the file it sends you: fedfew deploy admit SITE.request {here}",
    ]
    lines = [
        f"Network {plan.name}: server {plan.host}:{plan.port}, sites {', '.join(plan.sites) or 'none yet'}.",
        "",
        "1. Choose what to train: edit " + shlex.quote(str(plan.folder / "config.toml")),
        f"2. On the server:     fedfew deploy server {here}",
        *(bundles if plan.sites else requests),
    ]
    return "\n".join(lines)


def join_steps(folder: Path, request: Path, fingerprint: str) -> str:
    """What follows `deploy join`."""
    return (
        f"The site's key is in {folder} and stays there.\n"
        f"1. Send {request} to the server's owner.\n"
        f"2. Read them this fingerprint over the telephone: {fingerprint}\n"
        f"3. With the file they return:  fedfew deploy join {shlex.quote(str(folder))} {folder.name}.admission"
    )


def admit_steps(name: str, path: Path, authority: str) -> str:
    """What follows `deploy admit`."""
    return (
        f"Site {name} is admitted, from the next run on.\n"
        f"1. Send it {path}; there is no secret in it.\n"
        f"2. Read its owner the fingerprint of the network's authority over the telephone: {authority}"
    )


def forget_steps(about: Mapping[str, Any]) -> str:
    """What `deploy forget` did, and what it did not."""
    site, before, after = about["site"], percent(about["accuracy_before"]), percent(about["accuracy"])
    return (
        f"The model without the sums of site {site} is in {about['folder']}; accuracy {before} before, {after} after.\n"
        f"Not undone: what other sites counted with scores to which {site} had contributed, copies of the old model, "
        f"and what this server has received.\n{about['run']} still holds the site's sums: delete it when it is no "
        f"longer needed. `fedfew deploy revoke {site}` keeps the site out of later runs."
    )


def renew_steps(paths: Sequence[Path], days: int) -> str:
    """What follows `deploy renew`."""
    files = "".join(f"\n  {path}" for path in paths)
    return (
        f"Certificates are valid for {days} days; all keys stay. Sites online take this up within a day. A site that "
        f"was away when the old authority expired needs its file, for `fedfew deploy join FOLDER FILE`:{files}"
    )


def nginx(plan: ServerPlan) -> str:
    """A front for production: only the Fleet API is forwarded; everything else of the SuperLink stays inside."""
    folder, port = plan.folder.absolute(), plan.behind or plan.bound + 1
    return _filled(
        "nginx.conf",
        plan=plan,
        folder=folder,
        port=port,
        calls=[call for call in CALLS if call != "push-object"],
        megabytes=OBJECT_LIMIT >> 20,
        reported=json.dumps(versions() | {"network": plan.network}),
    )


def systemd_server(plan: ServerPlan, serve: bool, metrics: int) -> str:
    """A unit that keeps the server running and continues the run after a reboot."""
    folder = plan.folder.absolute()
    words = ["deploy", "server", str(folder), *(["--serve"] if serve else []), *_metrics(metrics)]
    return _unit(f"fedfew server of {plan.name}", words, folder)


def _metrics(port: int) -> list[str]:
    return ["--metrics", str(port)] if port else []


def systemd_client(folder: Path, data: Path | None, terms: SiteTerms, metrics: int) -> str:
    """A unit that keeps a site online, with the site's terms as options where they differ from the defaults."""
    home = folder.absolute()
    changed = [name for name in OPTIONS if getattr(terms, name) != getattr(SiteTerms, name)]
    options = [word for name in changed for word in (f"--{name.replace('_', '-')}", str(getattr(terms, name)))]
    options += [word for name in terms.allow_code for word in ("--allow-code", name)]
    images = str((data or Path("DATA")).absolute())
    return _unit(
        f"fedfew site {home.name}",
        ["deploy", "client", str(home), "--data", images, *options, *_metrics(metrics)],
        home,
    )


def _word(text: str) -> str:
    """Quote a word of a unit's command line: blanks, quotes, % and $ have a meaning in systemd."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return plain if plain == text and not any(c.isspace() or c in "';" for c in text) else f'"{plain}"'


def _unit(title: str, words: list[str], folder: Path) -> str:
    command = " ".join(_word(word) for word in [str(Path(sysconfig.get_path("scripts"), "fedfew")), *words])
    home = str(folder).replace("%", "%%")
    return _filled("systemd.service", title=title, home=home, command=command, user=USER)


def _filled(name: str, **values: object) -> str:
    template = (resources.files("fedfew.interface.deploy") / name).read_text("utf-8")
    text: str = Template(template, undefined=StrictUndefined, keep_trailing_newline=True).render(**values)
    return text


def asked_plan(plan: Mapping[str, Any]) -> None:
    """Print what a run asks of a site."""
    epsilon = plan.get("epsilon")
    rows = {
        "decision": plan["decision"] or "none; the policy `accept` in limits.toml counts",
        "asked": f"{plan['asked']}, first by run {plan['run']}",
        "method, model, rounds": f"{plan['method']}, {plan['model']}, {plan['rounds']}",
        "what leaves in each round": ", ".join(plan.get("leaves", ())) or "nothing: this site cannot take part",
        "ε of this site": f"{epsilon:.4g} at δ = {plan['delta']:g}" if epsilon else "no noise, no bound",
    }
    if "members" in plan:
        rows["seen only in a sum with"] = "; ".join(plan["members"])
    if "honest" in plan:
        rows["what that leaves open"] = (
            f"the sites add the noise together: ε holds while {plan['honest']:.0%} of them add theirs"
            if epsilon
            else "two sums of which one is without this site show its part; only noise bounds that"
        )
    print_table(("", ""), rows.items(), f"plan {plan['plan']}", words=2)


def ledger_summary(summary: LedgerSummary) -> None:
    """Print what a ledger says: for each run what came in and what left, and what the site decided."""
    say(f"The chain is intact: {summary.lines:,} lines, {summary.first} to {summary.last}. Its last hash, to be noted:")
    say(f"  {summary.chain}")
    for run, one in summary.runs.items():
        rows = {
            "came in": f"{one.received:,} messages, {size(one.bytes_in)}",
            "left": f"{one.sent:,} messages, {size(one.bytes_out)}",
            "rounds with an update": f"{len(one.rounds):,}",
            "tensors that left": ", ".join(sorted(one.tensors)) or "–",
            "codes instead of an update": ", ".join(f"{code} ({n})" for code, n in sorted(one.codes.items())) or "–",
        }
        print_table(("", ""), rows.items(), f"run {run}", words=2)
    for line in summary.decisions:
        say(f"{line['time']}: {line['decision']} {line.get('plan', '')}")
