"""Methods as published: what a config takes over when it names another method, and where a run differs from it.

Published is what a method's registry entry says: the defaults of its settings unless ``Entry.published`` has others,
and ``Entry.aggregator`` with that one's defaults. What all methods of a comparison share stays: data, network, rounds,
cohort, the steps of server and clients, and the server's warm-up and weight.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fedfew.config.names import SITES, find
from fedfew.config.tree import AUTO, LINEAR, NAMED, is_known, settings_for
from fedfew.core.errors import FedfewError
from fedfew.data import DATASETS
from fedfew.methods import METHODS

Table = dict[str, Any]
SERVER_RECIPE = ("warmup", "lambda_s")
"""Settings of methods that say how the server trains, which a comparison holds equal."""
FOLLOWING = ("population",)
"""Settings of methods that follow from the rest of the config."""
HEAD: dict[str, Table] = {
    "server": {
        "epochs": 20, "batch": 20, "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine",
    },
    "client": {"epochs": 2, "batch": 16, "lr": 0.02, "momentum": 0.9, "schedule": "cosine"},
}  # fmt: skip
"""Defaults of the steps where only a head is trained, on the features of a frozen backbone."""


def adapted(table: Table, overrides: Mapping[str, Any], keep_settings: bool = False) -> Table:
    """The table without what does not fit the method and the dataset that the overrides name."""
    return without_partition(table if keep_settings else as_published(table, overrides), overrides)


def as_published(table: Table, overrides: Mapping[str, Any]) -> Table:
    """The table without the settings and the aggregator of its method, if the overrides name another one."""
    method, name = table.get("method", {}), overrides.get("method.name")
    if not isinstance(method, dict) or method.get("name", NAMED["method"][2]) == name or not is_known("method", name):
        return table
    entry = find("method", str(name))
    kept = {key: value for key, value in method.items() if key in ("name", *SERVER_RECIPE)}
    own = {key: value for key, value in entry.published.items() if key not in SERVER_RECIPE}
    settings = any(key.startswith("aggregator.") for key in overrides)
    return table | {"method": kept | own, "aggregator": {"name": entry.aggregator if settings else AUTO}}


def without_partition(table: Table, overrides: Mapping[str, Any]) -> Table:
    """The table without its partition, if the overrides name a dataset with sites of its own."""
    brought = getattr(DATASETS.get(str(overrides.get("dataset.name", ""))), "brings_sites", False)
    if not brought or any(key.startswith("partition.") for key in overrides):
        return table
    return table | {"partition": {"kind": SITES}}


def for_head(table: Table) -> Table:
    """The table with what suits a frozen backbone, if its model is one: the method that replaces its own, unless that
    has settings, and the steps that suit a head, where the table gives none."""
    if not _is_frozen(table.get("model")):
        return table
    steps = {section: HEAD[section] | table.get(section, {}) for section in HEAD if _is_section(table, section)}
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
                return name == LINEAR or trained == "head"
    return False


def with_data_seed(table: Table) -> Table:
    """The table with a seed for the split and the partition: the run's own, where it gives none."""
    dataset, seed = table.get("dataset", {}), table.get("seed", 0)
    if not isinstance(dataset, dict) or "seed" in dataset or not isinstance(seed, int) or seed < 0:
        return table
    return table | {"dataset": {**dataset, "seed": seed}}


def _is_section(table: Table, section: str) -> bool:
    return isinstance(table.get(section, {}), dict)


def deviations(flat: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings of a config's method and aggregator that are not as published: their value and the published one."""
    if flat.get("method.name") not in METHODS:
        return {}
    entry = METHODS[flat["method.name"]]
    published = {f"method.{key}": value for key, value in entry.as_published.items() if key not in FOLLOWING}
    rule = settings_for("aggregator", entry.aggregator) if flat.get("aggregator.name") == entry.aggregator else {}
    published |= {"aggregator.name": entry.aggregator}
    published |= {f"aggregator.{key}": setting.default for key, setting in rule.items()}
    return {key: (flat[key], value) for key, value in published.items() if key in flat and flat[key] != value}
