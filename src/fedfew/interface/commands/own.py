"""fedfew init, check and try: a config for your own data, everything that would spoil a run, what the sites add."""

import csv as tables
import io
import shlex
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfew.config.first_config import Suggestion, next_steps, suggest
from fedfew.config.first_rows import holds_rows, suggest_rows
from fedfew.config.parts import assemble, features_of
from fedfew.config.schema import load
from fedfew.config.tree import Config
from fedfew.core.errors import FedfewError
from fedfew.core.storage import write_atomically
from fedfew.core.text import percent
from fedfew.data import NOUNS, noun_of
from fedfew.data.dataset import shown
from fedfew.data.images.folders import Folder, read_once, scan
from fedfew.data.images.looks import Difference, odd_looking
from fedfew.data.images.own import check_folder, read
from fedfew.data.rows.files import is_rows
from fedfew.interface.console import Answer, complain, note, print_json, print_table, say, warn, warn_unreadable
from fedfew.interface.console import out as console
from fedfew.interface.progress import counting, follow
from fedfew.runs.folder import new_folder
from fedfew.runs.model_file import first_weights
from fedfew.runs.run import NAMES, Run
from fedfew.runs.session import start
from fedfew.studies.bounds import BASELINE, knows_names
from fedfew.studies.verdict import FEWEST, Verdict, baseline_of, weigh

NAME, LIST = "fedfew.toml", "check.csv"
TABLES = ("parquet", "huggingface")
"""Datasets in which single rows may be unreadable."""
COLUMNS = ("label", "site", "text")
FOLDS = "folds"
Faults = tuple[list[FedfewError], list[FedfewError]]
"""Errors and warnings."""


def init(folder: Path, overrides: dict[str, Any], out: Path | None, network: bool, force: bool) -> Answer:
    """Inspect images, a table, vectors or texts, and write a commented config for them."""
    target = out or own_config(folder)
    text = suggested(folder, overrides, network).toml(target)
    if target.exists() and not force:
        remedy = "Add --force to overwrite it, or give another place with --out"
        raise FedfewError("E301", str(target), "already exists", remedy)
    if not target.parent.is_dir():
        raise FedfewError("E305", str(target), f"the folder {target.parent} does not exist", "Create it first")
    write_atomically(target, text.encode())
    load(target, {"clients": 1} if network else None)  # the file must be a valid config
    lines = (f"wrote {target}; read it, then run:", *(f"  {line}" for line in next_steps(target, network)))
    return {"config": str(target)}, lambda: note("\n".join(lines))


def check(source: str, csv: Path | None, overrides: dict[str, Any], allow_code: Collection[str], json: bool) -> None:
    """Check your data or a config and report everything that is wrong; exit status 2 if a run would be refused."""
    folder = Path(source)
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
    suggestion: Suggestion
    own: Path | None = None
    """The data's own config, if there is one."""

    @property
    def folds(self) -> int:
        """Folds of cross-validation; 0 if there are test images."""
        folds = 0 if self.config.dataset.source.settings.get("fold") else self.suggestion.folds
        if folds == 1:
            fault = "there is no test set, and a class has a single label, so that nothing can be held out"
            remedy = "Label at least 2 samples of each class, or add a test set"
            raise FedfewError("E206", shown(self.suggestion.root), fault, remedy)
        return folds


def plan_folder(folder: Path, overrides: dict[str, Any], allow_code: Collection[str] = ()) -> FolderPlan:
    """With the data's own config, or else the one that `fedfew init` would write."""
    file = own_config(folder)
    if not file.is_file():
        suggestion = suggested(folder, overrides)
        return FolderPlan(load(suggestion.table, overrides), suggestion)
    config = load(file, overrides, allow_code)
    columns = {f"dataset.{key}": name for key, name in config.dataset.source.settings.items() if key in COLUMNS}
    chosen = columns | {"model.name": config.model.name, "dataset.name": config.dataset.name}
    return FolderPlan(config, suggested(folder, chosen), file)


def is_data(path: Path) -> bool:
    """Whether a path is data rather than a config or a preset."""
    return path.is_dir() or is_rows(path)


def own_config(path: Path) -> Path:
    """Where the config of a folder or a table is."""
    return path.with_suffix(".toml") if is_rows(path) and not path.is_dir() else path / NAME


def suggested(path: Path, chosen: Mapping[str, Any], network: bool = False) -> Suggestion:
    """The settings that suit a folder of images, or tables, vectors or texts."""
    if holds_rows(path):
        return suggest_rows(path, network, chosen)
    return suggest(scan(path), network, chosen)


@read_once()
def try_folder(folder: Path, overrides: dict[str, Any], out: Path | None, allow_code: Collection[str]) -> Answer:
    """Check the data, choose a method, train with and without the sites' samples, and report what they add."""
    plan = plan_folder(folder, overrides, allow_code)
    config, odd = plan.config, list[Difference]()
    if config.dataset.name not in ("folder", *NOUNS):
        fault = f"{plan.own} is about the dataset {config.dataset.name}, not about these files"
        raise FedfewError("E113", "dataset.name", fault, "Remove it, or use `fedfew run` with it")
    if config.dataset.name == "folder":
        _, faults, odd = examined(config)
        print_faults(*faults)
    else:
        config.dataset.source()  # a fault in a row is told before anything is written
    for reason in [f"settings: {plan.own} (already there)"] if plan.own else plan.suggestion.reasons:
        note(f"· {reason}")
    target, folds = new_folder(out, f"try-{folder.resolve().stem}"), plan.folds
    if folds:
        lacking = f"There are no test {noun_of(config.dataset.name)}"
        note(f"{lacking}: the verdict comes from cross-validation on the labels, {folds} folds.")
    if not plan.own:
        target.mkdir(parents=True, exist_ok=True)
        write_atomically(target / NAME, plan.suggestion.toml(Path(NAME), here=False).encode())
    own, verdict, named = _train(config, target, folds, plan.suggestion.labels)
    if verdict is None:
        raise FedfewError("E310", str(target), "has no pair of runs on the same test images")
    better = own
    if verdict.gain.difference.mean < 0:  # with folds, server-only training has not seen all labels yet
        path = target / BASELINE
        better = Run.open(path) if path.exists() else _run(baseline_of(config), path, " on all labels")
    about: dict[str, Any] = {
        "runs": str(target),
        "model": str(own.path),
        "recommended": str(better.path),
        "config": str(plan.own or target / NAME),
        "method": own.method,
        "different": {site.site: list(site.words) for site in odd},
    }
    lines = [f"fedfew evaluate {better.path}", f"fedfew export {better.path} --format onnx", f"fedfew watch {target}"]
    sentences, names = [verdict.sentence], [site.site for site in odd]
    if named is not None:
        about |= {"labels_names": named}
        sentences.append(f"With the labels and the classes' names, without the sites: {percent(named)}.")
    if odd:
        sentences.append(f"{_look_different(names)}: label {FEWEST} images there.")
        folders = " ".join(shlex.quote(str(folder / "clients" / name)) for name in names)
        lines.insert(0, f"fedfew label-next {own.path} {folders} -n {FEWEST}")

    def show() -> None:
        console.print("\n".join(sentences), style="bold", markup=False, soft_wrap=True)
        note("\n".join(f"  {line}" for line in lines))

    return about | verdict.as_json(), show


def _train(config: Config, target: Path, folds: int, labels: int) -> tuple[Run, Verdict | None, float | None]:
    """Server-only and the method on the same split; with folds on each fold, and then the method on all labels.

    Last the accuracy of labels and class names alone, where a backbone knows the names."""
    own, base, named = list[Run](), list[Run](), list[Run]()
    for fold in range(1, folds + 1):
        held = load(config.document, {"dataset.fold": f"{fold}/{folds}"})
        where, note = target / FOLDS / str(fold), f", fold {fold} of {folds}"
        base.append(_run(baseline_of(held), where / BASELINE, note))
        own.append(_run(held, where / config.method_name, note))
        if knows_names(own[-1]):
            named.append(_run(baseline_of(held, NAMES), where / NAMES, note))
    if not folds:
        base.append(_run(baseline_of(config), target / BASELINE))
    final = _run(config, target / config.method_name, " on all labels" if folds else "")
    if not folds and knows_names(final):
        named.append(_run(baseline_of(config, NAMES), target / NAMES))
    own = own if folds else [final]
    without = weigh(own, named, labels, folds) if named else None
    return final, weigh(own, base, labels, folds), without.gain.base.mean if without else None


def _run(config: Config, target: Path, note: str = "") -> Run:
    with counting(f"features of {noun_of(config.dataset.name)}") as report:
        session = start(config, target, report=report)
    follow(session, f"{config.method_name}{note}")
    return Run(session.folder)


def _check_config(config: Config, name: str, json: bool) -> None:
    """For another dataset: build everything up to the first round."""
    noun = noun_of(config.dataset.name)
    with counting(f"features of {noun}") as report:
        parts = assemble(config, report=report)
    first_weights(config.start, parts)
    problems = config.dataset.source().problems if config.dataset.name in TABLES else ()
    warn_unreadable(problems)
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
    with counting("reading images") as report:
        folder = read(report, **config.dataset.source.settings)
    errors, warnings = check_folder(folder, config.client.batch, **config.dataset.source.settings)
    backbone = config.model.frozen and not config.model.own
    with counting("features of images") as report:
        odd = odd_looking(folder, (lambda images: features_of(config, images, report)) if backbone else None)
    if odd:
        warnings.append(FedfewError("E212", shown(folder.root), _look_different(list(map(str, odd)))))
    return folder, (errors, warnings), odd


def _look_different(sites: list[str]) -> str:
    return f"{', '.join(sites)} {'look' if sites[1:] else 'looks'} different from your labels"


def _check_folder(config: Config, csv: Path | None, json: bool) -> None:
    folder, faults, odd = examined(config)
    listed = csv or folder.root / LIST
    rows = _write_list(folder, listed)
    result = _result(folder, faults, listed if rows else None)
    result["different"] = {difference.site: list(difference.words) for difference in odd}
    if json:
        print_json(result)
    else:
        _show(result)
    print_faults(*faults)


def _result(folder: Folder, faults: Faults, listed: Path | None) -> dict[str, Any]:
    counts = Counter((file.part, file.group) for file in folder.files)
    names = sorted({*folder.groups["server"], *folder.groups["test"]})
    errors, warnings = (
        [{"code": fault.code, "what": fault.message, "serious": serious} for fault in part]
        for part, serious in zip(faults, (True, False), strict=True)
    )
    return {
        "folder": shown(folder.root),
        "size": folder.images.shape[2],
        "channels": folder.images.shape[1],
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
