"""The dossier of a network for a board: one document from the server's folder, its runs, and folders of sites."""

import csv
import os
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.core.text import size
from fedfew.deploy.audit import events
from fedfew.deploy.certificates import WARNING_DAYS, authority_fingerprint, expiry
from fedfew.deploy.joining import site_rows
from fedfew.deploy.plan import ServerPlan, open_bundle, secrets_left
from fedfew.deploy.server.queue import RUNS
from fedfew.deploy.site.ledger import LedgerSummary, verify
from fedfew.deploy.site.limits import SiteTerms, site_terms
from fedfew.interface.report.document import page
from fedfew.runs.folder import CONFIG, siblings
from fedfew.runs.run import BOUNDS, Run
from fedfew.studies.bounds import bounds_of
from fedfew.studies.verdict import verdict

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_PRINTING = 120
MEASURED = Path(__file__).with_name("leaks.csv")
"""What one answer of a site gave away when it was measured: `python -m benchmarks.leaks --record` writes it."""
_AS_ROOT = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to start otherwise


@dataclass(frozen=True)
class SiteFacts:
    """What a site's own folder says."""

    name: str
    terms: dict[str, Any]
    changed: tuple[str, ...]
    """Limits that differ from the defaults."""
    ledger: LedgerSummary | None
    fault: str = ""


def write_dossier(plan: ServerPlan, sites: Sequence[Path], purpose: str, out: Path) -> Path:
    """Write the document; its path."""
    runs, told = [_about_run(run, plan) for run in runs_of(plan)], list(events(plan.folder))
    facts = [_site_facts(folder) for folder in sites]
    ends = {"authority": expiry(plan.ca.read_bytes()), "server": expiry(plan.certificate.read_bytes())}
    nouns = {one["run"].noun for one in runs}
    text = page(
        "dossier.html", "deploy", title=f"Network {plan.name}", plural=True, plan=plan, purpose=purpose,
        noun=nouns.pop() if len(nouns) == 1 else "samples",
        rows=site_rows(plan), runs=runs, sites=facts, ends=ends, authority=authority_fingerprint(plan.ca.read_bytes()),
        audit=told[-40:], audited=len(told), sizes=_sizes(plan.folder), packages=packages(),
        forgotten=[event for event in told if event["event"] == "forgotten"],
        risks=risks(plan, runs, facts, ends), secure=any(run["secure"] for run in runs),
        has_authority_key=(plan.folder / "ca.key").exists(), measured=measured({one["run"].method for one in runs}),
    )  # fmt: skip
    write_atomically(out, text.encode())
    return out


def runs_of(plan: ServerPlan) -> list[Run]:
    """The network's runs, the oldest first; those of server-only training belong to the run beside them."""
    folders = [path for path in (plan.folder / "run", *sorted((plan.folder / RUNS).glob("*"))) if path.is_dir()]
    runs = [Run.open(path) for path in folders if (path / CONFIG).is_file()]
    return [run for run in runs if run.method not in BOUNDS]


def _about_run(run: Run, plan: ServerPlan) -> dict[str, Any]:
    judged = verdict(run, bounds_of(run, [Run.open(path) for path in siblings(run.path)]))
    started = [e for e in events(plan.folder) if e["event"] == "run started" and Path(e["folder"]) == run.path]
    return {
        "run": run,
        "verdict": judged and judged.sentence,
        "harm": judged is not None and judged.gain.difference.mean < 0,
        "started": started[0] if started else {},
        "privacy": run.final.get("privacy"),
        "secure": run.document.get("privacy", {}).get("sums") == "secure",
        "labels": run.classes.get("server") or [],
    }


def measured(methods: Collection[str]) -> list[dict[str, str]]:
    """What was measured of these methods; of others, and before there is a run, what a linear head gives away."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    known = {name for name in methods if any(row["answer"].startswith(f"{name},") for row in rows)}
    wanted = [*known, *(["linear head"] if not known or known != set(methods) else [])]
    return [row for row in rows if any(f"{row['answer']},".startswith(f"{name},") for name in wanted)]


def _site_facts(folder: Path) -> SiteFacts:
    """A site's limits and what its ledger says; a broken ledger is a finding, not an end."""
    name, terms = open_bundle(folder).name, site_terms(folder)
    changed = tuple(key for key, value in asdict(terms).items() if value != getattr(SiteTerms, key))
    try:
        return SiteFacts(name, asdict(terms), changed, verify(folder))
    except FedfewError as fault:
        return SiteFacts(name, asdict(terms), changed, None, str(fault))


def _sizes(folder: Path) -> dict[str, str]:
    """What the server keeps, and how much of it there is."""
    kept = {"runs with their checkpoints": ("run*",), "Flower's messages": ("state.db*", "flower"), "logs": ("logs",)}
    kept |= {"audit log": ("audit.jsonl",), "keys and certificates": ("keys", "*.crt", "*.key")}
    roots = {name: [p for pattern in patterns for p in folder.glob(pattern)] for name, patterns in kept.items()}
    files = {name: [f for p in paths for f in ([p] if p.is_file() else p.rglob("*"))] for name, paths in roots.items()}
    return {name: size(sum(f.stat().st_size for f in some if f.is_file())) for name, some in files.items()}


def packages() -> list[tuple[str, str, str]]:
    """Name, version and licence of what is installed with fedfew: a bill of materials of this machine."""
    packages = {one.name.lower(): (one.name, one.version, _licence(one)) for one in metadata.distributions()}
    return [packages[name] for name in sorted(packages)]


def _licence(package: metadata.Distribution) -> str:
    """As the package states it: an expression, or classifiers, or the first line of its text."""
    about = package.metadata
    trove = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or () if c.startswith("License")]
    stated = [*(about.get_all("License-Expression") or ()), *trove, *(about.get_all("License") or ())]
    return next((text.strip().partition("\n")[0][:60] for text in stated if text.strip()), "not stated")


def risks(
    plan: ServerPlan, runs: Sequence[dict[str, Any]], sites: Sequence[SiteFacts], ends: dict[str, datetime]
) -> list[str]:
    """What this network leaves open, as far as its files tell."""
    risks = []
    for name, end in ends.items():
        if (days := (end - datetime.now(UTC)).days) < WARNING_DAYS:
            risks.append(f"The certificate of the {name} ends in {days} days.")
    for one in runs:
        title = one["run"].name
        if not one["privacy"] or one["privacy"]["epsilon"] is None:
            risks.append(f"Run {title}: no noise, so nothing bounds what the updates reveal.")
        if not one["secure"]:
            risks.append(f"Run {title}: the server sees the update of each site.")
        if one["harm"]:
            risks.append(f"Run {title}: with the sites' {one['run'].noun} the model is worse than without.")
        if one["verdict"] is None:
            risks.append(f"Run {title}: not compared with training on the labels alone.")
    risks += secrets_left(plan)
    risks += [f"Site {one.name}: its ledger is damaged: {one.fault}." for one in sites if one.fault]
    unknown = [name for name in plan.members if name not in {one.name for one in sites}]
    if unknown:
        risks.append(f"Limits and ledgers of {', '.join(unknown)} are not part of this document.")
    risks.append("Whoever can log in on the server's machine can do everything that the server can.")
    risks.append("In Flower the server names the code that a site runs; sites trust the server with that.")
    return risks


def write_pdf(document: Path) -> Path | None:
    """The document as PDF, printed by a browser; None if there is none on this machine."""
    browser = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        return None
    target = document.with_suffix(".pdf")
    with tempfile.TemporaryDirectory() as profile:
        options = [
            "--headless",
            "--disable-gpu",
            *_AS_ROOT,
            f"--user-data-dir={profile}",
            "--no-pdf-header-footer",
        ]
        command = [browser, *options, f"--print-to-pdf={target.absolute()}", document.absolute().as_uri()]
        try:
            subprocess.run(command, capture_output=True, timeout=_PRINTING, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise FedfewError("E508", browser, f"could not print the document: {error}") from None
    return target
