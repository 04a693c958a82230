"""Client objectives: what a client minimises on its unlabeled images; each combines with any fitting aggregator."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedfew.core.settings import Registry

if TYPE_CHECKING:
    from fedfew.objectives.objective import Objective

OBJECTIVES: "Registry[Callable[..., Objective]]" = Registry(
    "fedfew.objectives",
    {
        "pseudo-label": ("pseudo_labels:PseudoLabel", "Pseudo-Label (Lee 2013): train on confident predictions."),
        "pi-model": ("consistency:PiModel", "Π-model (Laine & Aila 2017): two views get equal predictions."),
        "kl-consistency": ("consistency:KLConsistency", "Eq. 2 of Zhang et al. 2021: KL from an image to its view."),
        "temporal-ensembling": ("consistency:TemporalEnsembling", "Laine & Aila 2017: targets are past means."),
        "mean-teacher": ("consistency:MeanTeacher", "Tarvainen & Valpola 2017: agree with a moving average."),
        "mixmatch": (
            "pseudo_labels:MixMatch",
            "MixMatch (Berthelot et al. 2019): guessed labels, sharpened, and MixUp.",
        ),
        "uda": ("pseudo_labels:UDA", "UDA (Xie et al. 2020): a sharpened weak view is the target of a strong view."),
        "fixmatch": ("pseudo_labels:FixMatch", "FixMatch (Sohn et al. 2020): a sure weak view labels a strong one."),
        "freematch": ("pseudo_labels:FreeMatch", "FreeMatch (Wang et al. 2023): FixMatch with thresholds that adapt."),
    },
)
