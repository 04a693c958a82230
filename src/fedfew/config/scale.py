"""The scale of an experiment: as in the paper, or so that a laptop finishes it in minutes, all else equal."""

from collections.abc import Mapping
from typing import Any

from fedfew.config.tables import apply_overrides, read
from fedfew.config.tree import NAMED
from fedfew.core.errors import FedfewError

SCALES: dict[str, tuple[int, int]] = {"full": (64, 55_000), "laptop": (16, 11_000)}
"""Scale → width of ResNet-9, unlabeled images of CIFAR-10. Clients, rounds, labels and everything else stay."""


def scale_overrides(
    table: Mapping[str, Any], scale: str, overrides: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], str]:
    """What a scale changes in a config, as dotted keys, and a note where it changes nothing.

    ``overrides`` are applied after it: they decide which dataset and model are used.
    """
    if scale not in SCALES:
        raise FedfewError("E103", "--scale", f"{scale!r} is not a scale", f"Use one of: {', '.join(SCALES)}")
    merged = apply_overrides(dict(table), overrides or {})
    dataset, model = _named(merged, "dataset"), _named(merged, "model")
    if dataset != "cifar10":
        return {}, f"--scale {scale} is for CIFAR-10; this config uses {dataset} and stays as it is"
    width, unlabeled = SCALES[scale]
    if scale == "full" and merged.get("dataset", {}).get("split", "standard") == "standard":
        unlabeled = 0  # the official training set has 50,000 images: full size is all that are left
    changes: dict[str, Any] = {"dataset.unlabeled": unlabeled}
    if model != "resnet9":
        return changes, f"--scale {scale} sets dataset.unlabeled = {unlabeled}; the model {model} keeps its width"
    return {"model.width": width} | changes, ""


def scaled(source: Any, scale: str | None, overrides: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], str]:
    """The overrides of a config with those of its scale before them, and the scale's note."""
    if scale is None:
        return dict(overrides or {}), ""
    table = source if isinstance(source, dict) else read(source)[0]
    changes, note = scale_overrides(table, scale, overrides)
    return changes | dict(overrides or {}), note


def _named(table: Mapping[str, Any], section: str) -> str:
    given = table.get(section, {})
    key, _, default = NAMED[section]
    return str(given.get(key, default)) if isinstance(given, Mapping) else default
