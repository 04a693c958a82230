"""A run in words: numbers as people write them, its origin, and what happened during it."""

import re
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from fedfew.core.text import percent
from fedfew.interface.charts import svg
from fedfew.interface.charts.run_charts import coded
from fedfew.runs.run import Run
from fedfew.runs.summary import scored
from fedfew.runtime.record import left_out


def marked(text: str) -> Markup:
    """A sentence with text in backticks as code, and real minus signs."""
    parts = [escape(part) for part in re.sub(r"(?<!\w)-(?=\d)", "\u2212", text).split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else p for i, p in enumerate(parts))


def setup(run: Run) -> str:
    """What is trained, in one line."""
    known, mu = run.flat.get, run.flat.get("partition.mu")
    partition = known("partition.kind", "?") + ("" if mu is None else f", μ = {mu}")
    parts = [
        f"{run.labels} labels at the server",
        f"{run.client_count} clients ({partition})",
        known("model.name", "?"),
        f"seed {run.seed}",
    ]
    mix = {"α": known("method.alpha"), "β": known("method.beta"), "γ": known("method.gamma")}
    if each := known("client_labels.each"):
        parts.insert(1, f"{each} labels at {100 * known('client_labels.share', 1.0):g} % of the clients")
    if weights := [f"{letter} = {value}" for letter, value in mix.items() if value is not None]:
        parts.insert(2, ", ".join(weights))
    if run.unpublished:
        parts.append(f"not as published: {run.unpublished}")
    return " · ".join(parts)


def origin(run: Run) -> list[tuple[str, Any]]:
    """Versions, machine and hashes."""
    environment, fingerprint = run.environment, run.environment.get("fingerprint", {})
    rows = [
        ("model SHA-256", run.final.get("model_sha256", "the run has not finished")),
        ("fedfew", fingerprint.get("fedfew")),
        ("torch", fingerprint.get("torch")),
        ("Python, NumPy", f"{environment.get('python', '?')}, {environment.get('numpy', '?')}"),
        (
            "processor",
            f"{fingerprint.get('processor', '?')} ({fingerprint.get('capability', '?')}), "
            f"{environment.get('cores', '?')} cores",
        ),
        ("threads", fingerprint.get("threads")),
        ("system", environment.get("system")),
        ("git commit", environment.get("git")),
    ]
    return [(name, value) for name, value in rows if value not in (None, "")]


def privacy(run: Run) -> list[tuple[str, str]]:
    """The privacy guarantee of a client's updates; empty if privacy is off or the run has not finished."""
    spent = run.final.get("privacy")
    if not spent:
        return []
    epsilon = "no noise, no guarantee" if spent["epsilon"] is None else f"{spent['epsilon']:.4g}"
    whose = "an image" if spent["unit"] == "image" else "a client"
    return [
        (f"ε of {whose} at δ = {spent['delta']:g}", epsilon),
        ("clipped to, noise", f"C = {spent['clip']:g}, z = {spent['noise']:g}"),
        ("most rounds of a client", f"{spent['rounds_of_a_client']}"),
    ]


@dataclass(frozen=True)
class RoundEvent:
    """Something that happened in a round, to one client or to all."""

    round: int
    client: int | None
    code: str
    text: str


def events_of(run: Run) -> list[RoundEvent]:
    """Updates left out and rounds skipped, in order."""
    events = []
    for r in run.records:
        for fault in left_out(r):
            text = f"{coded(fault['code'])}: {fault['reason']}"
            events.append(RoundEvent(r["round"], fault["client"], fault["code"], text))
        if r["skipped"]:
            events.append(
                RoundEvent(
                    r["round"], None, "", f"round skipped: {r.get('failure', 'no usable update')}, ω is unchanged"
                )
            )
    return events


def spark(run: Run) -> Markup:
    """The accuracy curve, the size of a word."""
    values = [r["accuracy"] for r in scored(run.records)]
    known = [v for v in values if v is not None]
    about = f"accuracy from {percent(known[0])} to {percent(known[-1])}" if known else "no accuracy yet"
    return Markup(svg.spark(values, about))
