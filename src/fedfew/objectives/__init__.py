"""Client objectives: what a client minimises on its unlabeled images; each combines with any fitting aggregator."""

from collections.abc import Callable

from fedfew.objectives.consistency import MeanTeacher, PiModel, TemporalEnsembling
from fedfew.objectives.freematch import FreeMatch
from fedfew.objectives.mixmatch import MixMatch
from fedfew.objectives.objective import Objective, Step, ramp
from fedfew.objectives.pseudo_labels import UDA, FixMatch, PseudoLabel

OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "pseudo-label": PseudoLabel,
    "pi-model": PiModel,
    "temporal-ensembling": TemporalEnsembling,
    "mean-teacher": MeanTeacher,
    "mixmatch": MixMatch,
    "uda": UDA,
    "fixmatch": FixMatch,
    "freematch": FreeMatch,
}

__all__ = ["OBJECTIVES", "Objective", "PseudoLabel", "Step", "ramp"]
