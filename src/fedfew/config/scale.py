"""The scale of an experiment: as in the paper, or so that a laptop finishes it in minutes, all else equal."""

from collections.abc import Mapping
from typing import Any

from fedfew.config.tables import apply_overrides, read
from fedfew.config.tree import NAMED
from fedfew.core.errors import FedfewError

SCALES: dict[str, tuple[int, int]] = {"full": (64, 55_000), "laptop": (16, 11_000)}
"""Scale → width of ResNet-9, unlabeled images of CIFAR-10. Clients, rounds, labels and everything else stay."""


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
