"""fedfew init and check: check your data or a config before a run, and report everything that would spoil it."""

import csv as tables
import io
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfew.config.first_config import Suggestion, next_steps, suggest
from fedfew.config.first_rows import holds_rows, suggest_rows
from fedfew.config.parts import assemble
from fedfew.config.schema import load
from fedfew.config.tree import Config
from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.data import noun_of
from fedfew.data.dataset import shown
from fedfew.data.images.folders import Folder, scan
from fedfew.data.images.looks import Difference, odd_looking
from fedfew.data.images.own import check_folder
from fedfew.data.images.subjects import with_subjects
from fedfew.data.rows.files import is_rows
from fedfew.interface.console import complain, note, print_json, print_table, say, warn
from fedfew.interface.progress import counting
from fedfew.runs.model_file import first_weights

NAME, LIST = "fedfew.toml", "check.csv"
TABLES = ("parquet", "huggingface")
"""Datasets in which single rows may be unreadable."""
COLUMNS = ("label", "site", "text")
LOOK, LOOKS = "look different from your labels", "looks different from your labels"
Faults = tuple[list[FedfewError], list[FedfewError]]
"""Errors and warnings."""


def init(
    folder: Path, label: str, site: str, text_column: str, out: Path | None, network: bool, force: bool, json: bool
) -> None:
    """Inspect images, a table, vectors or texts, and write a commented config for them."""
    target = out or own_config(folder)
    text = suggested(folder, columns(label, site, text_column), network).toml(target)
    if target.exists() and not force:
        remedy = "Add --force to overwrite it, or give another place with --out"
        raise FedfewError("E301", str(target), "already exists", remedy)
    if not target.parent.is_dir():
        raise FedfewError("E305", str(target), f"the folder {target.parent} does not exist", "Create it first")
    write_atomically(target, text.encode())
    load(target, {"clients": 1} if network else None)  # the file must be a valid config
    if json:
        print_json({"config": str(target)})
        return
    note(f"wrote {target}; read it, then run:")
    for line in next_steps(target, network):
        note(f"  {line}")


def check(
    source: str,
    label: str,
    site: str,
    text_column: str,
    csv: Path | None,
    overrides: dict[str, Any],
    allow_code: Collection[str],
    json: bool,
) -> None:
    """Check your data or a config and report everything that is wrong; exit status 2 if a run would be refused."""
    folder, overrides = Path(source), columns(label, site, text_column) | overrides
    if not is_data(folder):
        config = load(source, overrides)
    elif own_config(folder).is_file():
        config = load(own_config(folder), overrides, allow_code)
    else:
        config = plan_folder(folder, overrides).config
    if config.dataset.name == "folder":
        _check_folder(config, csv, json)
    else:
        _check_config(config, source, json)


@dataclass(frozen=True)
class FolderPlan:
    """How to train on a folder of images, or on tables, vectors or texts."""

    config: Config
    labels: int
    classes: int
    folds: int
    """Folds of cross-validation; 0 if there are test images."""
    reasons: list[str]
    """Why these settings."""
    text: str = ""
    """The config as a file, if the folder has none."""


def plan_folder(folder: Path, overrides: dict[str, Any], allow_code: Collection[str] = ()) -> FolderPlan:
    """With the data's own config, or else the one that `fedfew init` would write."""
    file = own_config(folder)
    own = load(file, overrides, allow_code) if file.is_file() else None
    named = own.dataset.source.settings if own else {}
    chosen = {f"dataset.{key}": named[key] for key in COLUMNS if key in named} | (
        {"model.name": own.model.name, "dataset.name": own.dataset.name} if own else overrides
    )
    suggestion = suggested(folder, chosen)
    text = "" if own else suggestion.toml(Path(NAME), here=False)
    config = own or load(suggestion.table, overrides)
    reasons = [f"settings: {file} (already there)"] if own else suggestion.reasons
    folds = 0 if config.dataset.source.settings.get("fold") else suggestion.folds
    return FolderPlan(config, suggestion.labels, suggestion.classes, folds, reasons, text)


def is_data(path: Path) -> bool:
    """Whether a path is data rather than a config or a preset."""
    return path.is_dir() or is_rows(path)


def own_config(path: Path) -> Path:
    """Where the config of a folder or a table is."""
    return path.with_suffix(".toml") if is_rows(path) and not path.is_dir() else path / NAME


def columns(label: str, site: str, text: str) -> dict[str, str]:
    """The settings of the options that name columns."""
    return {f"dataset.{key}": name for key, name in zip(COLUMNS, (label, site, text), strict=True) if name}


def suggested(path: Path, chosen: Mapping[str, Any], network: bool = False) -> Suggestion:
    """The settings that suit a folder of images, or tables, vectors or texts."""
    if holds_rows(path):
        return suggest_rows(path, network, chosen)
    return suggest(scan(path), network, chosen)


def _check_config(config: Config, name: str, json: bool) -> None:
    """For another dataset: build everything up to the first round."""
    noun = noun_of(config.dataset.name)
    with counting(f"features of {noun}") as report:
        parts = assemble(config, report=report)
    first_weights(config.start, parts)
    problems = config.dataset.source().problems if config.dataset.name in TABLES else ()
    for problem in problems:
        warn(FedfewError("E209", problem.path, problem.reason, ""))
    federation = parts.federation
    sizes = federation.partition.sizes
    result: dict[str, Any] = {
        "config": name,
        "dataset": config.dataset.name,
        "classes": {c: int((federation.server.labels == i).sum()) for i, c in enumerate(federation.classes)},
        "clients": federation.partition.clients,
        noun: {"smallest": int(min(sizes)), "largest": int(max(sizes)), "all": len(federation.samples)},
        "test": len(federation.test),
        "validation": len(federation.validation),
        "parameters": int(parts.network.layout.trainable),
        "unreadable": [{"file": p.path, "reason": p.reason} for p in problems if p.skipped],
        "errors": [],
        "warnings": [],
    }
    if json:
        print_json(result)
        return
    sizes = result[noun]
    say(f"{name}: ready. {config.method_name} with {config.aggregator.name} on {config.dataset.name}")
    say(f"server: {len(federation.server):,} labels of {len(federation.classes)} classes")
    spread = f"{sizes['smallest']:,} to {sizes['largest']:,} of {sizes['all']:,} {noun}"
    say(f"clients: {result['clients']:,} with {spread}")
    say(f"test: {result['test']:,}, validation: {result['validation']:,}")
    say(f"model: {config.model.name} with {result['parameters']:,} parameters")


def examined(config: Config) -> tuple[Folder, Faults, list[Difference]]:
    """A folder of images, its errors and warnings, and the sites that look different from the labels."""
    settings = config.dataset.source.settings
    with counting("reading images") as report:
        files = with_subjects(scan(settings["path"]), settings["group"])
        folder = files.read(settings["size"], settings["channels"], report)
    errors, warnings = check_folder(folder, config.client.batch, allow_overlap=settings["allow_overlap"])
    odd = odd_looking(folder)
    if odd:
        message = f"{', '.join(map(str, odd))} {LOOK if len(odd) > 1 else LOOKS}"
        warnings.append(FedfewError("E212", shown(folder.root), message))
    return folder, (errors, warnings), odd


def _check_folder(config: Config, csv: Path | None, json: bool) -> None:
    folder, faults, odd = examined(config)
    listed = csv or folder.root / LIST
    rows = _write_list(folder, listed)
    result = _result(config, folder, faults, listed if rows else None)
    result["different"] = {difference.site: list(difference.words) for difference in odd}
    if json:
        print_json(result)
    else:
        _show(result)
    print_faults(*faults)


def _result(config: Config, folder: Folder, faults: Faults, listed: Path | None) -> dict[str, Any]:
    counts = Counter((file.part, file.group) for file in folder.files)
    names = sorted({*folder.groups["server"], *folder.groups["test"]})
    errors, warnings = (
        [{"code": fault.code, "what": fault.message, "serious": serious} for fault in part]
        for part, serious in zip(faults, (True, False), strict=True)
    )
    return {
        "folder": shown(folder.root),
        "size": config.dataset.source.settings["size"],
        "channels": config.dataset.source.settings["channels"],
        "classes": {shown(c): {"server": counts["server", c], "test": counts["test", c]} for c in names},
        "sites": {shown(s): counts["clients", s] for s in folder.groups["clients"]},
        "unreadable": [{"file": p.path, "reason": p.reason} for p in folder.problems if p.skipped],
        "remarks": [{"file": p.path, "remark": p.reason} for p in folder.problems if not p.skipped],
        "duplicates": [{"file": c.path, "of": c.of} for c in folder.copies],
        "errors": errors,
        "warnings": warnings,
        "groups": len({file.subject for file in folder.files if file.subject}),
        "list": str(listed) if listed else None,
    }


def _write_list(folder: Folder, target: Path) -> int:
    """One line for every file with a remark; without any, no list is left behind."""
    rows = [(p.path, "skipped" if p.skipped else "remark", p.reason) for p in folder.problems]
    rows += [(copy.path, copy.kind, f"same pixels as {copy.of}") for copy in folder.copies]
    if not rows:
        target.unlink(missing_ok=True)
        return 0
    text = io.StringIO()
    tables.writer(text).writerows([("file", "finding", "reason"), *rows])
    write_atomically(target, text.getvalue().encode())
    return len(rows)


def _show(result: dict[str, Any]) -> None:
    classes = [[name, f"{count['server']:,}", f"{count['test']:,}"] for name, count in result["classes"].items()]
    print_table(("class", "server", "test"), classes, result["folder"])
    print_table(("site", "images"), [[name, f"{count:,}"] for name, count in result["sites"].items()])
    if result["groups"]:
        say(f"{result['groups']:,} groups of images, such as patients: intervals are over groups")
    skipped, copies = len(result["unreadable"]), len(result["duplicates"])
    if result["list"]:
        say(f"{skipped:,} files skipped, {copies:,} copies; all in {result['list']}")


def print_faults(errors: list[FedfewError], warnings: list[FedfewError]) -> None:
    for fault in errors:
        complain(fault)
    for fault in warnings:
        warn(fault)
    if errors:
        raise SystemExit(2)
    note("ready to train; see the remarks above" if warnings else "ready to train")
