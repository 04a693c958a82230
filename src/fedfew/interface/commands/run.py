"""fedfew run and resume: from a preset or a TOML file to a run folder, at once or after an interruption."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfew.config.schema import load
from fedfew.core.text import percent, size
from fedfew.interface.console import note, out, print_json, print_table, say, warn
from fedfew.interface.progress import counting, follow
from fedfew.runs.folder import new_folder, siblings
from fedfew.runs.run import BOUNDS, Run
from fedfew.runs.session import Session, reopen, start

if TYPE_CHECKING:
    from fedfew.config.tree import Config
    from fedfew.studies.verdict import Verdict

BASELINE = BOUNDS[0]


def run(
    config: str, scale: str | None, overrides: dict[str, Any], out: Path | None, with_baseline: bool, json: bool
) -> None:
    """Train: any method × aggregator × model × dataset × partition."""
    settings = load(config, scaled_overrides(config, scale, overrides))
    baseline = None
    if with_baseline and settings.method_name != BASELINE:  # refuse invalid settings now rather than after the run
        from fedfew.studies.verdict import baseline_of  # noqa: PLC0415 - few runs have a pair

        baseline = baseline_of(settings)
        if out is not None:
            new_folder(_baseline_folder(out), "")
    with counting("features of images") as report:
        session = start(settings, out, report=report)
    finish(session, json, baseline=baseline)


def _baseline_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}-{BASELINE}")


def resume(run: Path, overrides: dict[str, Any], anyway: bool, allow_code: Collection[str], json: bool) -> None:
    """Continue an interrupted run; the result is the same, bit for bit, as without the interruption."""
    with counting("features of images") as report:
        session = reopen(run, warn, overrides, anyway=anyway, report=report, allow_code=allow_code)
    finish(session, json)


def scaled_overrides(config: str, scale: str | None, overrides: dict[str, Any]) -> dict[str, Any]:
    """The scale's overrides, then the --set options; notes if the scale changes nothing."""
    if scale is None:
        return overrides
    from fedfew.config.scale import scaled  # noqa: PLC0415 - few runs have a scale

    changes, remark = scaled(config, scale, overrides)
    if remark:
        note(remark)
    return changes


def finish(session: Session, json: bool, *, baseline: "Config | None" = None) -> None:
    """Show the progress to the end, then the table or the JSON line; ``baseline`` is trained after it."""
    config = session.parts.config
    follow(session, f"{config.method_name} on {config.dataset.name}")
    if baseline is not None:
        alone = start(baseline, _baseline_folder(session.folder.path))
        follow(alone, f"{BASELINE} on {config.dataset.name}")
    done = Run(session.folder)
    summary, verdict = done.summary, _verdict(done)
    accuracy = summary["accuracy"]
    if json:
        keys = ("rounds", "accuracy", "model_sha256", "seconds")
        about = {"run": str(session.folder.path)} | {key: summary[key] for key in keys}
        print_json(about | {"verdict": None if verdict is None else verdict.as_json()})
        return
    title = f"{summary['method']} + {summary['aggregator']} on {summary['dataset']}"
    rows = {
        "accuracy after the last round": percent(accuracy["last"]),
        "accuracy, best by validation": percent(accuracy["best_by_validation"]),
        **_measures(summary),
        "pseudo-labels: coverage": percent(summary["coverage"]),
        "pseudo-labels: correct": percent(summary["correct"]),
        "traffic up / down": f"{size(summary['bytes_up'])} / {size(summary['bytes_down'])}",
        "updates left out / rounds skipped": f"{summary['rejected'] + summary['missing']} / {summary['skipped']}",
        "seconds": f"{summary['seconds']:.1f}",
        **_privacy(summary.get("privacy")),
        "model SHA-256": summary["model_sha256"][:16] + "…",
    }
    print_table(("", ""), rows.items(), f"{title}, {summary['rounds']} rounds")
    say(f"run folder: {session.folder.path}")
    if verdict is not None:
        out.print(verdict.sentence, style="bold", markup=False, soft_wrap=True)
    elif done.method not in BOUNDS and config.labels and not config.remote:
        note("What do the clients add? Run again with --with-baseline to compare with server-only training.")


def _measures(summary: dict[str, Any]) -> dict[str, str]:
    """Further measures, if there are test images."""
    if summary.get("balanced_accuracy") is None:
        return {}
    auroc = "–" if summary["auroc"] is None else f"{summary['auroc']:.3f}"
    names = ("balanced accuracy", "AUROC", "calibration error (ECE)")
    return dict(zip(names, (percent(summary["balanced_accuracy"]), auroc, percent(summary["ece"])), strict=True))


def _verdict(run: Run) -> "Verdict | None":
    """What the clients add, if the server-only run of the pair is in the same folder."""
    others = [Run.open(path) for path in siblings(run.path)]
    if not others:
        return None
    from fedfew.studies.bounds import bounds_of  # noqa: PLC0415 - a first run has no pair
    from fedfew.studies.verdict import verdict  # noqa: PLC0415

    return verdict(run, bounds_of(run, others))


def _privacy(spent: dict[str, Any] | None) -> dict[str, str]:
    """ε of the client that was sampled most often, if clipping and noise were on."""
    if not spent:
        return {}
    value = "no noise, no guarantee" if spent["epsilon"] is None else f"{spent['epsilon']:.4g}"
    return {f"privacy: ε of a client at δ = {spent['delta']:g}": value}
