"""A run in words: numbers as people write them, where it comes from, and what happened on the way."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from fedfew.core import toml
from fedfew.core.errors import CODES
from fedfew.interface.charts.scale import amount
from fedfew.interface.charts.svg import spark
from fedfew.interface.report.facts import Bound, Facts
from fedfew.interface.report.groups import Spread


def percent(value: float | None) -> str:
    """0.4753 → 47.5 %"""
    return amount(value, "percent")


def size(value: float | None) -> str:
    """Bytes for people."""
    return amount(value, "bytes")


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours."""
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def spread(value: Spread | None) -> str:
    """47.5 ± 0.8 %, or without a deviation when there is one run only."""
    if value is None:
        return "–"
    return percent(value.mean) if value.sd is None else f"{100 * value.mean:.1f} ± {100 * value.sd:.1f} %"


def mean(value: Spread | None, unit: str) -> str:
    """The mean alone, for what a deviation says little about."""
    known = None if value is None else value.mean
    return size(known) if unit == "bytes" else duration(known)


def story(run: Facts) -> str:
    """What is trained, in a line."""
    config = run.config
    kind = config.get("partition", {})
    mu = f", μ = {kind['mu']}" if "mu" in kind else ""
    parts = [
        f"{config.get('labels')} labels at the server",
        f"{config['clients']} clients ({kind.get('kind', '?')}{mu})",
        f"{config.get('model', {}).get('name', '?')}",
        f"seed {run.seed}",
    ]
    if run.mix:
        parts.insert(2, ", ".join(f"{s} = {v}" for s, v in zip("αβγ", run.mix.values(), strict=False)))
    return " · ".join(parts)


def origin(run: Facts) -> list[tuple[str, Any]]:
    """Versions, machine and hashes."""
    around, print_ = run.environment, run.environment.get("fingerprint", {})
    rows = [
        ("model SHA-256", run.summary.get("model_sha256", "the run has not finished")),
        ("fedfew", print_.get("fedfew")),
        ("torch", print_.get("torch")),
        ("Python, NumPy", f"{around.get('python', '?')}, {around.get('numpy', '?')}"),
        (
            "processor",
            f"{print_.get('processor', '?')} ({print_.get('capability', '?')}), {around.get('cores', '?')} cores",
        ),
        ("threads", print_.get("threads")),
        ("system", around.get("system")),
        ("git commit", around.get("git")),
    ]
    return [(name, value) for name, value in rows if value not in (None, "")]


def privacy(run: Facts) -> list[tuple[str, str]]:
    """What a client's updates told of it at most; nothing where privacy is off or the run has not finished."""
    found = run.summary.get("privacy")
    if not found:
        return []
    epsilon = "no noise, no guarantee" if found["epsilon"] is None else f"{found['epsilon']:.4g}"
    return [
        (f"ε of a client at δ = {found['delta']:g}", epsilon),
        ("clipped to, noise", f"C = {found['clip']:g}, z = {found['noise']:g}"),
        ("most rounds of a client", f"{found['rounds_of_a_client']}"),
    ]


def config_text(run: Facts) -> str:
    """The whole config as TOML."""
    return toml.dumps(run.config)


@dataclass(frozen=True)
class Event:
    """Something that happened in a round, to one client or to all."""

    round: int
    client: int | None
    code: str
    text: str


def events_of(run: Facts) -> list[Event]:
    """Updates left out and rounds skipped, in order."""
    events = []
    for r in run.records:
        for fault in r["rejected"]:
            code = fault["code"]
            title = f" {CODES[code].title}" if code in CODES else ""
            events.append(Event(r["round"], fault["client"], code, f"{code}{title}: {fault['reason']}"))
        if r["skipped"]:
            events.append(Event(r["round"], None, "", "round skipped: no usable update, ω stays as it was"))
    return events


def between(run: Facts, bounds: Sequence[Bound]) -> str:
    """Where the run stands between the bounds."""
    own = run.accuracy["mean_last_10"]
    known = {b.name: value for b in bounds if (value := b.accuracy()) is not None}
    if own is None:
        return ""
    if not known:
        return "bounds not known"
    return ", ".join(
        f"{abs(100 * (own - value)):.1f} points {'above' if own >= value else 'below'} {name}"
        for name, value in known.items()
    )


def newest(run: Facts, key: str) -> float | None:
    """The last known value of a record's key."""
    return next((r[key] for r in reversed(run.records) if r[key] is not None), None)


def course(run: Facts) -> Markup:
    """The accuracy's curve, the size of a word."""
    values = [r["accuracy"] for r in run.records]
    known = [v for v in values if v is not None]
    about = f"accuracy from {percent(known[0])} to {percent(known[-1])}" if known else "no accuracy yet"
    return Markup(spark(values, about))
