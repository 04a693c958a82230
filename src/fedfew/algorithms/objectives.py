"""Client objectives: what a client minimises on its unlabeled images; each combines with any fitting aggregator."""

from collections.abc import Callable

from fedfew.algorithms.consistency import MeanTeacher, PiModel, TemporalEnsembling
from fedfew.algorithms.mixmatch import MixMatch
from fedfew.algorithms.objective import Objective, Step, ramp
from fedfew.algorithms.pseudo_labels import UDA, FixMatch, PseudoLabel

OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "pseudo-label": PseudoLabel,
    "pi-model": PiModel,
    "temporal-ensembling": TemporalEnsembling,
    "mean-teacher": MeanTeacher,
    "mixmatch": MixMatch,
    "uda": UDA,
    "fixmatch": FixMatch,
}

__all__ = ["OBJECTIVES", "Objective", "PseudoLabel", "Step", "ramp"]
