"""fedfew run and resume: from a preset or a TOML file to a run folder, at once or after an interruption."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfew.config.schema import load
from fedfew.config.tables import scaled
from fedfew.core.errors import FedfewError
from fedfew.core.text import percent, size
from fedfew.data import noun_of
from fedfew.interface.console import note, out, print_json, print_table, say, warn
from fedfew.interface.progress import counting, follow
from fedfew.runs.folder import free_folder, siblings
from fedfew.runs.run import BOUNDS, NAMES, REFERENCES, Run
from fedfew.runs.session import Session, reopen, start

if TYPE_CHECKING:
    from fedfew.config.tree import Config
    from fedfew.studies.verdict import Verdict

BASELINE = BOUNDS[0]


def run(
    config: str,
    scale: str | None,
    overrides: dict[str, Any],
    keep_settings: bool,
    out: Path | None,
    no_baseline: bool,
    json: bool,
) -> None:
    settings = load(config, scaled_overrides(config, scale, overrides), keep_settings=keep_settings)
    note_sums(settings)
    with counting(f"features of {noun_of(settings.dataset.name)}") as report:
        session = start(settings, out, report=report)
    finish(session, json, baseline=not no_baseline and has_baseline(settings))


def note_sums(config: "Config") -> None:
    """Print what secure sums mean for a run that has them."""
    if config.privacy.sums == "secure":
        from fedfew.config.sums import consequences  # noqa: PLC0415 - few runs have secure sums

        note(consequences(config))


def has_baseline(config: "Config") -> bool:
    """Whether server-only training here says what the clients add."""
    return config.method_name not in REFERENCES and bool(config.labels)


def resume(run: Path, overrides: dict[str, Any], anyway: bool, allow_code: Collection[str], json: bool) -> None:
    with counting("features") as report:
        session = reopen(run, warn, overrides, anyway=anyway, report=report, allow_code=allow_code)
    finish(session, json)


def scaled_overrides(config: str, scale: str | None, overrides: dict[str, Any]) -> dict[str, Any]:
    """The scale's overrides, then the --set options; notes if the scale changes nothing."""
    changes, remark = scaled(config, scale, overrides)
    if remark:
        note(remark)
    return changes


def finish(session: Session, json: bool, *, baseline: bool = False) -> None:
    """Show the progress to the end, then the table or the JSON line.

    With ``baseline``, server-only training follows unless its run is in the same folder already.
    """
    config = session.parts.config
    follow(session, f"{config.method_name} on {config.dataset.name}")
    run = Run(session.folder)
    alone, verdict = _known_baseline(run)
    if baseline and alone is None and (alone := _train_baseline(session)):
        from fedfew.studies.verdict import weigh  # noqa: PLC0415 - only for a pair

        verdict = weigh([run], [alone], sum(run.classes.get("server", ())) or run.labels)
    named = _train_baseline(session, NAMES) if baseline and _knows_names(run) else None
    better = (alone if verdict.gain.difference.mean < 0 else run) if verdict is not None else None
    if json:
        keys = ("rounds", "accuracy", "model_sha256", "seconds")
        about = {"run": str(run.path)} | {key: run.summary[key] for key in keys}
        pair = {"verdict": verdict and verdict.as_json(), "baseline": alone and str(alone.path)}
        pair["recommended"] = better and str(better.path)
        pair |= {"labels_names": str(named.path)} if named else {}
        print_json(about | pair)
        return
    _show(run, alone)
    if verdict is not None:
        out.print(verdict.sentence, style="bold", markup=False, soft_wrap=True)
        if named is not None:
            score = percent(named.summary["accuracy"]["last"])
            say(f"with the labels and the classes' names, without the sites: {score} ({named.path})")
        say(f"recommended model: {better.path if better else run.path}")
    elif has_baseline(config) and alone is None:
        note("What do the clients add? Without --no-baseline, `fedfew run` compares with server-only training.")


def _knows_names(run: Run) -> bool:
    """Whether labels and class names alone say something: a backbone knows the names."""
    if run.flat.get("model.train") != "head":
        return False
    from fedfew.studies.bounds import knows_names  # noqa: PLC0415 - only with a frozen backbone

    return knows_names(run)


def _known_baseline(run: Run) -> "tuple[Run | None, Verdict | None]":
    """The server-only run of the pair and what the clients add, if it is in the same folder."""
    others = [Run.open(path) for path in siblings(run.path)]
    if not others:
        return None, None
    from fedfew.studies.bounds import bounds_of  # noqa: PLC0415 - a first run has no pair
    from fedfew.studies.verdict import verdict  # noqa: PLC0415

    bounds = bounds_of(run, others)
    made = verdict(run, bounds)
    return (bounds[0].runs[0], made) if made else (None, None)


def _train_baseline(session: Session, method: str = BASELINE) -> Run | None:
    """A baseline with everything else equal, next to the run; None if there is none to compare with."""
    from fedfew.studies.verdict import baseline_of  # noqa: PLC0415 - only for a pair

    try:
        settings = baseline_of(session.parts.config, method)
    except FedfewError as fault:
        note(f"Not compared with server-only training: {fault.message}.")
        return None
    path = session.folder.path
    alone = start(settings, free_folder(path.with_name(f"{path.name}-{method}")))
    follow(alone, f"{method} on {settings.dataset.name}")
    return Run(alone.folder)


def _show(run: Run, alone: Run | None) -> None:
    """A table of the run, with server-only training beside it."""
    summary = run.summary
    title = f"{summary['method']} + {summary['aggregator']} on {summary['dataset']}, {summary['rounds']} rounds"
    rows, others = _rows(summary), _rows(alone.summary) if alone else {}
    if alone:
        print_table(("", run.method, alone.method), [[key, rows[key], others.get(key, "–")] for key in rows], title)
    else:
        print_table(("", ""), rows.items(), title)
    if "stopped" in summary:
        note(f"ended early: {summary['stopped']}, {summary['rounds_saved']} rounds saved")
    if run.unpublished:
        note(f"not as published: {run.unpublished}")
    say(f"run folder: {run.path}" + (f" (server-only: {alone.path})" if alone else ""))


def _rows(summary: dict[str, Any]) -> dict[str, str]:
    accuracy = summary["accuracy"]
    return {
        "accuracy after the last round": percent(accuracy["last"]),
        "accuracy, best by validation": percent(accuracy["best_by_validation"]),
        **_measures(summary),
        "pseudo-labels: coverage": percent(summary["coverage"]),
        "pseudo-labels: correct": percent(summary["correct"]),
        "traffic up / down": f"{size(summary['bytes_up'])} / {size(summary['bytes_down'])}",
        "updates left out / rounds skipped": f"{summary['rejected'] + summary['missing']} / {summary['skipped']}",
        "seconds": f"{summary['seconds']:.1f}",
        **_privacy(summary.get("privacy")),
        "model SHA-256": summary["model_sha256"][:12] + "…",
    }


def _measures(summary: dict[str, Any]) -> dict[str, str]:
    """Further measures, if there are test images."""
    if summary.get("balanced_accuracy") is None:
        return {}
    auroc = "–" if summary["auroc"] is None else f"{summary['auroc']:.3f}"
    names = ("balanced accuracy", "AUROC", "calibration error (ECE)")
    return dict(zip(names, (percent(summary["balanced_accuracy"]), auroc, percent(summary["ece"])), strict=True))


def _privacy(spent: dict[str, Any] | None) -> dict[str, str]:
    """ε of the client that was sampled most often, if clipping and noise were on."""
    if not spent:
        return {}
    value = "no noise, no guarantee" if spent["epsilon"] is None else f"{spent['epsilon']:.4g}"
    whose = "an image" if spent["unit"] == "image" else "a client"
    return {f"privacy: ε of {whose} at δ = {spent['delta']:g}": value}
