"""Client objectives: what a client minimises on its unlabeled images; each combines with any fitting aggregator."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedfew.core.registry import Registry

if TYPE_CHECKING:
    from fedfew.objectives.objective import Objective

OBJECTIVES: "Registry[Callable[..., Objective]]" = Registry(
    "fedfew.objectives",
    {
        "pseudo-label": (
            "fedfew.objectives.pseudo_labels:PseudoLabel",
            "Pseudo-Label (Lee 2013): train on confident predictions, with a weight that grows over the rounds.",
        ),
        "pi-model": (
            "fedfew.objectives.consistency:PiModel",
            "Π-model (Laine & Aila 2017): two views of an image should get equal predictions.",
        ),
        "temporal-ensembling": (
            "fedfew.objectives.consistency:TemporalEnsembling",
            "Temporal ensembling (Laine & Aila 2017): an image's target is the mean of its earlier predictions.",
        ),
        "mean-teacher": (
            "fedfew.objectives.consistency:MeanTeacher",
            "Mean teacher (Tarvainen & Valpola 2017): the student agrees with a moving average of itself.",
        ),
        "mixmatch": (
            "fedfew.objectives.mixmatch:MixMatch",
            "MixMatch (Berthelot et al. 2019): guessed labels, sharpened, and MixUp between images.",
        ),
        "uda": (
            "fedfew.objectives.pseudo_labels:UDA",
            "UDA (Xie et al. 2020): the sharpened output on a weak view is the target of a strong view.",
        ),
        "fixmatch": (
            "fedfew.objectives.pseudo_labels:FixMatch",
            "FixMatch (Sohn et al. 2020): a confident label from the weak view trains the strong view.",
        ),
        "freematch": (
            "fedfew.objectives.freematch:FreeMatch",
            "FreeMatch (Wang et al. 2023): FixMatch with class thresholds that adapt to the model.",
        ),
    },
)
