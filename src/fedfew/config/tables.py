"""Config tables before they are checked: read and merged with base and overrides, and adapted to what they name.

A config that names another method takes it over as published: with the defaults of its settings unless
``Entry.published`` has others, and with ``Entry.aggregator`` and that one's defaults; an objective likewise. What all
methods of a comparison share stays: data, network, rounds, cohort, the steps of server and clients, and the server's
warm-up and weight.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedfew.config.files import flat, parse, presets
from fedfew.config.names import SITES, find, refuse_code
from fedfew.config.tree import AUTO, LINEAR, NAMED, is_known, settings_for
from fedfew.core.errors import FedfewError
from fedfew.data import DATASETS
from fedfew.methods import METHODS
from fedfew.objectives import OBJECTIVES

Table = dict[str, Any]
SERVER_RECIPE = ("warmup", "lambda_s")
"""Settings of methods that say how the server trains, which a comparison holds equal."""
IMPLIED = {"lambda_s": 1.0}
"""Their values for a method that has no such setting."""
SPLIT = ("split", "test", "unlabeled", "open")
"""Settings of a dataset that is dealt out to simulated clients."""
FOLLOWING = ("population",)
"""Settings of methods that follow from the rest of the config."""
HEAD: dict[str, Table] = {
    "server": {
        "epochs": 20, "batch": 20, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine",
    },
    "client": {"epochs": 2, "batch": 16, "lr": 0.02, "momentum": 0.9, "schedule": "cosine"},
}  # fmt: skip
"""Defaults of the steps where only a head is trained, on the features of a frozen backbone."""
SCALES: dict[str, tuple[int, int]] = {"full": (64, 55_000), "laptop": (16, 11_000)}
"""Scale → width of ResNet-9, unlabeled images of CIFAR-10. Clients, rounds, labels and everything else stay."""


def read(
    source: str | Path | Table, allow_code: Collection[str] | None = None, above: tuple[str, ...] = ()
) -> tuple[Table, str]:
    """The table of a preset, a TOML file or a dict, merged with its base, and its name for errors. A dict may have
    dotted keys.

    With ``allow_code``, no table may name other code of the user's own. ``above`` are the files that led to this one.
    """
    table, where, folder = (with_sections(source), "config", Path()) if isinstance(source, dict) else parse(source)
    if isinstance(table.get("dataset"), dict):
        table = table | {"dataset": named_on_hub(table["dataset"])}
    if allow_code is not None:
        refuse_code(table, allow_code, where)
    base = table.pop("base", None)
    if base is None:
        return absolute_paths(table, folder), where
    if not isinstance(base, str):
        why = f"base = {base!r} is not a name"
        raise FedfewError("E103", where, why, "Give the name of a preset or TOML file in quotes")
    chain = (*above, str(Path(where).resolve()) if Path(where).is_file() else where)
    below = base if base in presets() else str(folder / Path(base).expanduser())
    if below in chain or str(Path(below).resolve()) in chain:
        raise FedfewError("E118", where, f"base = {base!r} leads back to itself")
    own, table = flat(table), adapted(read(below, allow_code, chain)[0], flat(table), where in presets())
    return absolute_paths(apply_overrides(table, own), folder), where


def with_sections(options: Table) -> Table:
    """A dict whose dotted keys are entries of its sections."""
    dotted = {key: value for key, value in options.items() if "." in str(key)}
    return apply_overrides({key: value for key, value in options.items() if key not in dotted}, dotted)


def named_on_hub(options: Mapping[str, Any], prefix: str = "") -> Table:
    """``name = "huggingface:NAME"`` written out; keys of overrides have the prefix ``dataset.``."""
    kind, _, name = str(options.get(f"{prefix}name", "")).partition(":")
    if kind != "huggingface" or not name:
        return dict(options)
    return {**options, f"{prefix}name": kind, f"{prefix}hub": name}


def absolute_paths(table: Table, folder: Path) -> Table:
    """Paths in a config file are relative to its folder, others to the current one; run.toml has absolute paths."""
    if isinstance(start := table.get("start"), str) and start:
        table = table | {"start": str((folder / Path(start).expanduser()).absolute())}
    match table.get("model"):
        case {"name": "transformers" | "sentence" | "onnx", "source": str(source)} if source:
            local = folder / Path(source).expanduser()
            if local.exists():  # anything else is a name on the hub
                table = table | {"model": {**table["model"], "source": str(local.absolute())}}
    match table.get("dataset"):
        case {"name": str(name), "path": str(path)} if name in DATASETS and path:
            local = folder / Path(path).expanduser()
            return table | {"dataset": {**table["dataset"], "path": str(local.absolute())}}
    return table


def apply_overrides(table: Table, overrides: Mapping[str, Any]) -> Table:
    """The table with dotted keys replaced.

    Naming another method (model, partition, …) drops those settings of the old one that the new one does not have;
    settings that both have stay, so that methods can be compared with all else equal.
    """
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
    for path, value in overrides.items():
        section, _, key = path.rpartition(".")
        if not section:
            merged[key] = value
            continue
        target = merged.setdefault(section, {})
        if not isinstance(target, dict):
            raise FedfewError("E103", path, f"{section} is a value, not a section")
        names = NAMED.get(section)
        if names and key == names[0] and target.get(key, names[2]) != value and is_known(section, value):
            known = settings_for(section, value) if value != "auto" else {}
            asked = {name.rpartition(".")[2] for name in overrides if name.rpartition(".")[0] == section}
            for old in set(target) - set(known) - asked:
                del target[old]
        target[key] = value
    return merged


def adapted(table: Table, overrides: Mapping[str, Any], keep_settings: bool = False) -> Table:
    """The table without what does not fit the method and the dataset that the overrides name."""
    return with_own_sites(table if keep_settings else as_published(table, overrides), overrides)


def as_published(table: Table, overrides: Mapping[str, Any]) -> Table:
    """The table without the settings of its objective, and those of its method with the aggregator, if the overrides
    name others."""
    if old := _replaced("objective", table, overrides):
        table = table | {"objective": {"name": old} | published_settings(overrides["objective.name"])}
    if not (old := _replaced("method", table, overrides)):
        return table
    name = overrides["method.name"]
    entry = find("method", name)
    kept = {key: value for key, value in table.get("method", {}).items() if key in SERVER_RECIPE}
    own = {key: value for key, value in entry.published.items() if key not in SERVER_RECIPE}
    settings = any(key.startswith("aggregator.") for key in overrides)
    aggregator = {"name": entry.aggregator if settings else AUTO}
    return table | {"method": {"name": old} | _implied(old, name) | kept | own, "aggregator": aggregator}


def _replaced(section: str, table: Table, overrides: Mapping[str, Any]) -> str:
    """What a section of the table names, if the overrides name something else there; or else empty."""
    options, name = table.get(section, {}), overrides.get(f"{section}.name")
    old = options.get("name", NAMED[section][2]) if isinstance(options, dict) else name
    return str(old) if old != name and is_known(section, name) else ""


def published_settings(objective: str) -> Table:
    """The settings that an objective's publication states."""
    return dict(getattr(find("objective", objective), "published", {}))


def _implied(old: str, new: str) -> Table:
    """What a method's server trains with where the config does not say so, and another method's defaults differ."""
    first, second = (settings_for("method", name) if is_known("method", name) else {} for name in (old, new))
    implied = {key: first[key].default if key in first else value for key, value in IMPLIED.items()}
    return {key: value for key, value in implied.items() if key in second and second[key].default != value}


def with_own_sites(table: Table, overrides: Mapping[str, Any]) -> Table:
    """The table without its partition, split and number of labels, if the overrides name a dataset with own sites."""
    if not brings_sites(overrides.get("dataset.name")) or any(key.startswith("partition.") for key in overrides):
        return table
    section = table.get("dataset", {})
    kept = {k: v for k, v in section.items() if k not in SPLIT} if isinstance(section, dict) else section
    rest = {key: value for key, value in table.items() if key != "labels"}
    return rest | {"dataset": kept, "partition": {"kind": SITES}}


def for_head(table: Table) -> Table:
    """The table with what suits a frozen backbone, if its model is one: the method that replaces its own, unless that
    has settings, and the steps that suit a head, where the table gives none."""
    if not _is_frozen(table.get("model")):
        return table
    steps = {
        section: HEAD[section] | table.get(section, {}) for section in HEAD if isinstance(table.get(section, {}), dict)
    }
    match table.get("method"):
        case {"name": str(method), **own} if not own and method in METHODS and (better := METHODS[method].on_features):
            steps["method"] = {"name": better}
    return table | steps


def _is_frozen(model: Any) -> bool:
    """Whether a [model] is a head on vectors; a model that cannot be imported is reported elsewhere."""
    match model:
        case {"name": str(name), **options} if is_known("model", name):
            with suppress(FedfewError):
                known = settings_for("model", name)
                trained = options.get("train", known["train"].default) if "train" in known else ""
                return name == LINEAR or (trained == "head" and not options.get("hidden"))
    return False


def with_data_seed(table: Table) -> Table:
    """The table with a seed for the split and the partition: the run's own, where it gives none."""
    dataset, seed = table.get("dataset", {}), table.get("seed", 0)
    if not isinstance(dataset, dict) or "seed" in dataset or not isinstance(seed, int) or seed < 0:
        return table
    return table | {"dataset": {**dataset, "seed": seed}}


def with_validation(table: Table) -> Table:
    """The table without validation images, which your own folders' test images would pay for, if nothing uses them."""
    dataset = table.get("dataset", {})
    if not isinstance(dataset, dict) or "validation" in dataset or not brings_sites(dataset.get("name")):
        return table
    uses: dict[str, tuple[str, tuple[Any, ...]]] = dict.fromkeys(("server", "client"), ("schedule", ("plateau",)))
    uses |= {"evaluate": ("stop", ("validation", "loss")), "method": ("temperature", (0.0,))}
    sections = ((table.get(name), use) for name, use in uses.items())
    if any(isinstance(section, dict) and section.get(key) in values for section, (key, values) in sections):
        return table
    return table | {"dataset": {**dataset, "validation": 0}}


def brings_sites(name: Any) -> bool:
    """Whether a dataset has sites of its own."""
    return bool(getattr(DATASETS.get(str(name or "")), "brings_sites", False))


def deviations(values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings of a config's method, aggregator and objective that are not as published: their value and the
    published one."""
    if values.get("method.name") not in METHODS:
        return {}
    entry = METHODS[values["method.name"]]
    published = {f"method.{key}": value for key, value in entry.as_published.items() if key not in FOLLOWING}
    rule = settings_for("aggregator", entry.aggregator) if values.get("aggregator.name") == entry.aggregator else {}
    published |= {"aggregator.name": entry.aggregator}
    published |= {f"aggregator.{key}": setting.default for key, setting in rule.items()}
    if entry.takes("objective") and values.get("objective.name") in OBJECTIVES:
        stated = published_settings(values["objective.name"])
        published |= {f"objective.{key}": value for key, value in stated.items()}
    return {key: (values[key], value) for key, value in published.items() if values.get(key, value) != value}


def scaled(source: Any, scale: str | None, overrides: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], str]:
    """The overrides of a config with those of its scale before them, and a note where the scale changes less.

    ``overrides`` have the last word: they also decide which dataset and model are used.
    """
    own = dict(overrides or {})
    if scale is None:
        return own, ""
    if scale not in SCALES:
        raise FedfewError("E103", "--scale", f"{scale!r} is not a scale", f"Use one of: {', '.join(SCALES)}")
    table = apply_overrides(source if isinstance(source, dict) else read(source)[0], own)
    dataset, model = (table.get(section, {}).get("name", NAMED[section][2]) for section in ("dataset", "model"))
    if dataset != "cifar10":
        return own, f"--scale {scale} is for CIFAR-10; this config uses {dataset} and stays as it is"
    width, unlabeled = SCALES[scale]
    if scale == "full" and table.get("dataset", {}).get("split", "standard") == "standard":
        unlabeled = 0  # the official training set has 50,000 images: full size is all that are left
    changes: dict[str, Any] = {"dataset.unlabeled": unlabeled}
    if model != "resnet9":
        note = f"--scale {scale} sets dataset.unlabeled = {unlabeled}; the model {model} keeps its width"
        return changes | own, note
    return {"model.width": width} | changes | own, ""
