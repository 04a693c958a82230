"""How much a client's sums count beside the others' (fedmoments): all, unless they are further off than images can be.

    survey    u_k = ‖x̄_k − centre‖ / max_c ‖M_c − centre‖, centre and class means M_c of the server's labels: the mean
              of images of any class mix lies between the means of the classes
    classes   T_k = Σ_c n_kc ‖m_kc − M_c‖² in whitened coordinates, M_c the mean over the round's clients; in d
              directions d is expected for each class, whatever n_kc.   u_k = √(T_k / expected), over the round's median

A client with u ≤ FULL counts whole; from there its weight falls, to nothing at 1.5 FULL (a redescending influence,
F. R. Hampel 1974). Nobody is accused: a site whose pictures are unlike all others is held back as well.
"""

import torch
from torch import Tensor

FULL = 1.75
"""Honest clients stay below 1.5 (docs/security.md)."""
FEW = 0.1
"""A class of which a client has fewer images than this says nothing about it."""


def falling(far: Tensor) -> Tensor:
    """1 up to ``FULL``, then down to 0 at one and a half times that."""
    return (3 - 2 * far / FULL).clamp(0, 1)


def survey_weights(means: Tensor, labeled: Tensor, classes: Tensor) -> Tensor:
    """Weights of clients with these mean features (K×D), by the server's features (N×D) and their classes."""
    centre = labeled.mean(0)
    furthest = max(float((labeled[classes == c].mean(0) - centre).norm()) for c in classes.unique())
    return falling((means - centre).norm(dim=1) / max(furthest, 1e-9))


def class_weights(counts: Tensor, sums: Tensor) -> Tensor:
    """Weights of clients with these Σ r (K×C) and whitened Σ r c (K×C×d) of one round."""
    there = counts > FEW
    n = torch.where(there, counts, 0.0)
    together = n.sum(0).clamp_min(FEW)
    means = torch.where(there[..., None], sums, 0.0).sum(0) / together[:, None]
    off = (sums - counts[..., None] * means).square().sum(2) / counts.clamp_min(FEW)
    expected = (n.clamp_max(1) * (1 - n / together)).sum(1) * sums.shape[2]
    far = ((off * there).sum(1) / expected.clamp_min(1e-9)).sqrt()
    known = far[expected > FEW]
    if len(known) < 3:
        return torch.ones(len(counts), dtype=counts.dtype)
    return torch.where(expected > FEW, falling(far / known.median().clamp_min(1e-9)), 1.0)
