"""The weight of a client's sums among the others' (fedmoments): 1, unless they are further off than images can be.

    survey    u_k = ‖v̄_k − centre‖ / max_c ‖M_c − centre‖, centre and class means M_c of the server's labels: the mean
              of images of any class mix lies between the means of the classes. If most clients are further off, e.g.
              with another camera, divided by the round's median instead
              and the mean square of y, which is 1 for the server's labels, over 1 or the round's median
    classes   T_k = Σ_c n_kc ‖m_kc − M_c‖² in whitened coordinates, M_c the mean over all clients; in d
              directions e = d is expected for each class, whatever n_kc.   u_k = √(T_k / e) over the clients' median
              and over 1 + 3/√e, because few directions and few classes leave more to chance

    copies    ‖S_k − S_j‖² ≤ COPY (n_k + n_j) d   →  together they count as one client

A client with u ≤ 1.1 (survey) or 1.25 (classes) counts fully; from there its weight falls to 0 at a quarter more
(a redescending influence, F. R. Hampel 1974). This accuses nobody: an honest site whose images are unlike all others
is down-weighted too.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedfew.methods.fedmoments.em import ClassSums
from fedfew.methods.fedmoments.survey import Space

SURVEY, SQUARES, CLASSES = 1.1, 2.0, 1.25
"""How far off a client may be and still count fully: honest ones were nearer wherever it was measured."""
COPY = 0.05
"""Sums of different images are further apart than this share of what chance gives."""
FEW = 0.1
"""A client with fewer images of a class than this says nothing about the class."""


def redescending(distance: Tensor, limit: float) -> Tensor:
    """1 up to ``limit``, then down to 0 at a quarter more."""
    return (5 - 4 * distance / limit).clamp(0, 1)


def survey_weights(means: Sequence[Tensor], squares: Sequence[float], labeled: Tensor, labels: Tensor) -> list[float]:
    """Weights of clients with these means v̄ (p) and mean squares of y, by the server's images v (N×p)."""
    if not means:
        return []
    centre = labeled.mean(0)
    furthest = max(float((labeled[labels == c].mean(0) - centre).norm()) for c in labels.unique())
    far = (torch.stack(list(means)) - centre).norm(dim=1)
    wide = torch.tensor(list(squares), dtype=torch.float64)
    weights: list[float] = (
        redescending(far / max(furthest, float(far.median()), 1e-9), SURVEY)
        * redescending(wide / max(1.0, float(wide.median())), SQUARES)
    ).tolist()
    return weights


def class_weights(clients: Sequence[ClassSums], space: Space) -> list[float]:
    """Weights of clients with these sums Σ r (C) and Σ r v (C×p)."""
    counts = torch.stack([sums.counts for sums in clients])
    present = counts > FEW
    n = torch.where(present, counts, 0.0)
    sums = torch.stack([space.sums(m, c.moments) for m, c in zip(n, clients, strict=True)]) * present[..., None]
    images, flat = n.sum(1), sums.flatten(1)
    alike = torch.cdist(flat, flat).square() <= COPY * sums.shape[2] * (images[:, None] + images)
    together = n.sum(0).clamp_min(FEW)
    means = sums.sum(0) / together[:, None]
    off = ((sums - n[..., None] * means).square().sum(2) / n.clamp_min(FEW)).sum(1)
    expected = (n.clamp_max(1) * (1 - n / together)).sum(1) * sums.shape[2]
    compared = expected > FEW
    if int(compared.sum()) < 3:
        return (1 / alike.sum(1)).tolist()
    expected = expected.clamp_min(FEW)
    far = (off / expected).sqrt()
    chance = far[compared].median().clamp_min(1e-9) * (1 + 3 / expected.sqrt())
    weights: list[float] = (torch.where(compared, redescending(far / chance, CLASSES), 1.0) / alike.sum(1)).tolist()
    return weights
