"""The config: its schema, presets, names and checks between settings. Here is what it can name; no torch is needed."""

from typing import Any

from fedfew.aggregators import AGGREGATORS
from fedfew.core.settings import Registry
from fedfew.data import DATASETS, PARTITIONS
from fedfew.methods import METHODS
from fedfew.models import MODELS
from fedfew.objectives import OBJECTIVES

REGISTRIES: dict[str, Registry[Any]] = {
    "method": METHODS,
    "aggregator": AGGREGATORS,
    "objective": OBJECTIVES,
    "model": MODELS,
    "dataset": DATASETS,
    "partition": PARTITIONS,
}
"""The names that each section may give."""
