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
from torch import Tensor, nn

from fedfew.core.network import Network
from fedfew.core.samples import Samples
from fedfew.core.types import Report
from fedfew.inference.predict import Found, find_samples
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
) -> tuple[list[dict[str, Any]], Found]:
    """Choose up to ``count`` of the samples below the paths: a row for each, best first, and what there was."""
    about, network = run.about_model(), run.network()
    inputs = find_samples(about, paths, report, str(run.flat.get("dataset.label", "")))
    features, probabilities = embed(network, inputs.samples)
    probabilities = tempered(probabilities, float(about.get("temperature", 1.0)))
    rows = []
    for rank, pick in enumerate(choose(probabilities, features, count), 1):
        share = probabilities[pick.index]
        best = share.topk(2)
        names = [about["classes"][int(c)] for c in best.indices]
        shares = [float(p) for p in best.values]
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
                "reason": reason(names, shares, pick),
            }
        )
    return rows, inputs


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


def embed(network: Network, samples: Samples, batch: int = 500) -> tuple[Tensor, Tensor]:
    """Features of length 1 (the input of the last linear layer, or √p where there is none) and probabilities."""
    last = next((layer for layer in reversed(list(network.module.modules())) if isinstance(layer, nn.Linear)), None)
    caught: list[Tensor] = []

    def catch(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        caught.append(inputs[0].detach().flatten(1).cpu())

    handle = last.register_forward_pre_hook(catch) if last is not None else None
    try:
        probabilities = network.probabilities(samples, batch)
    finally:
        if handle is not None:
            handle.remove()
    features = torch.cat(caught) if caught else probabilities.sqrt()
    return features / features.norm(dim=1, keepdim=True).clamp_min(1e-12), probabilities


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
