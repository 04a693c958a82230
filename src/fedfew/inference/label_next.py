"""Which images, rows or texts to label next (active learning): the least certain ones, and no two alike.

Greedy: the first is the most uncertain; each next one has the largest product of uncertainty and distance to the ones
chosen before, in the space of the model's last features (the weighted k-center of active learning: uncertainty as in
T. Scheffer et al. 2001, coverage as in O. Sener and S. Savarese 2018).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedfew.core.types import Report
from fedfew.inference.embedding import embed
from fedfew.inference.predict import Found, find_samples
from fedfew.inference.unlike import Unlike, unlike_classes
from fedfew.runs.run import Run
from fedfew.training.label_shift import tempered


@dataclass(frozen=True, eq=False)
class Pick:
    """One sample to label, and why."""

    index: int
    uncertainty: float
    """1 − (p_1 − p_2): 1 if the two best classes are equally likely, 0 if there is no doubt."""
    distance: float | None
    """To the nearest one chosen before, 0..2; None for the first."""


def label_next(
    run: Run, paths: Sequence[str | Path], count: int, report: Report | None = None
) -> tuple[list[dict[str, Any]], Found, Unlike | None]:
    """Choose up to ``count`` of the samples below the paths: a row for each, best first, what there was, and how much
    of it looks like none of the classes."""
    about, network = run.about_model(), run.network()
    inputs = find_samples(about, paths, report, str(run.flat.get("dataset.label", "")))
    features, probabilities = embed(network, inputs.samples)
    probabilities = tempered(probabilities, float(about.get("temperature", 1.0)))
    unlike, rows = unlike_classes(run, network, inputs, features, probabilities), []
    for rank, pick in enumerate(choose(probabilities, normalize(features, dim=1), count), 1):
        share = probabilities[pick.index]
        best = share.topk(2)
        names = [about["classes"][int(c)] for c in best.indices]
        shares = [float(p) for p in best.values]
        odd = unlike is not None and bool(unlike.odd[pick.index])
        rows.append(
            {
                "rank": rank,
                inputs.kind: inputs.names[pick.index],
                "label": names[0],
                "probability": round(shares[0], 4),
                "second": names[1],
                "uncertainty": round(pick.uncertainty, 4),
                "entropy": round(float(-(share * share.clamp_min(1e-30).log()).sum()), 4),
                "distance": None if pick.distance is None else round(pick.distance, 4),
                "unlike": odd,
                "reason": reason(names, shares, pick) + ("; looks like none of your classes" if odd else ""),
            }
        )
    return rows, inputs, unlike


def choose(probabilities: Tensor, features: Tensor, count: int) -> list[Pick]:
    """The greedy choice; equal scores go to the sample that comes first."""
    best = probabilities.topk(2).values
    uncertainty = 1 - (best[:, 0] - best[:, 1])
    nearest = torch.full((len(best),), float("inf"))
    free = torch.ones(len(best), dtype=torch.bool)
    picks: list[Pick] = []
    while len(picks) < min(count, len(best)):
        score = uncertainty * nearest if picks else uncertainty
        index = int(torch.where(free, score, -1.0).argmax())
        distance = float(nearest[index]) if picks else None
        picks.append(Pick(index, float(uncertainty[index]), distance))
        free[index] = False
        nearest = torch.minimum(nearest, (features - features[index]).norm(dim=1))
    return picks


def reason(names: Sequence[str], shares: Sequence[float], pick: Pick) -> str:
    """Why this sample was chosen, in words."""
    first, second = (f"{name} ({100 * share:.0f} %)" for name, share in zip(names, shares, strict=True))
    if pick.uncertainty >= 0.8:
        doubt = f"torn between {first} and {second}"
    elif pick.uncertainty >= 0.4:
        doubt = f"leans to {first}, but {second} is possible"
    else:
        doubt = f"seems to be {first}"
    if pick.distance is None:
        return f"{doubt}; the least certain of all"
    kind = "unlike" if pick.distance >= 0.5 else "somewhat like" if pick.distance >= 0.1 else "much like"
    return f"{doubt}; {kind} those above (distance {pick.distance:.2f})"
