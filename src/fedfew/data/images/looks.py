"""How the images of a site look beside the server's labeled ones: brightness, contrast, sharpness, noise, color.

A site's own mix of classes moves its means too. So a site looks different if its mean is further from the labels' than
``MIX`` deviations of the class means (a site with a single class is seldom further) and ``ERRORS`` standard errors.
A backbone's features see more. There, what a mix of classes explains is taken out: the directions between class means.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from fedfew.data.images.folders import Folder

WORDS = (
    ("darker", "brighter"),
    ("of lower contrast", "of higher contrast"),
    ("blurred", "sharper"),
    ("smoother", "noisier"),
    ("less colorful", "more colorful"),
)
UNLIKE = "unlike in its features"
MIX, ERRORS = 1.5, 3.0
CHUNK = 512
SEEN, LABELS = 300, 1000
"""Images of a site and of the server, at most, whose features are compared."""
SECOND = torch.tensor([[[[0.0, 1, 0], [1, -4, 1], [0, 1, 0]]]])
"""The second difference in both directions."""


@dataclass(frozen=True)
class Difference:
    """A site that looks different from the server's labels, and how."""

    site: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.site} ({', '.join(self.words)})"


def odd_looking(folder: Folder, embed: Callable[[Tensor], Tensor] | None = None) -> list[Difference]:
    """The sites whose images look different from the server's labels, in the order of their names.

    ``embed`` makes feature vectors of images, if there is a backbone.
    """
    labels = folder.rows("server")
    if not labels:
        return []
    server = looks(folder.images[labels])
    names = {name: number for number, name in enumerate(folder.groups["server"])}
    classes = torch.tensor([names[folder.files[row].group] for row in labels])
    members: dict[str, list[int]] = {}
    for row in folder.rows("clients"):
        members.setdefault(folder.files[row].group, []).append(row)
    sites = {name: looks(folder.images[rows]) for name, rows in members.items()}
    result = {difference.site: difference for difference in different(server, classes, sites)}
    if embed is not None and members:
        stride = -(-len(labels) // LABELS)
        some = {name: rows[:: -(-len(rows) // SEEN)] for name, rows in members.items()}
        chosen = [labels[::stride], *some.values()]
        features = embed(folder.images[[row for rows in chosen for row in rows]]).double()
        own, *others = features.split([len(rows) for rows in chosen])
        for name in apart(own, classes[::stride], dict(zip(some, others, strict=True))):
            result[name] = Difference(name, (*(result[name].words if name in result else ()), UNLIKE))
    return [result[name] for name in sorted(result)]


def apart(server: Tensor, classes: Tensor, sites: Mapping[str, Tensor]) -> list[str]:
    """The sites (name → m×d) whose mean feature is off the class means of the labels (n×d) by more than chance.

    The squared distance off the directions between class means is on average at most tr(W) (Σ_c π_c² / n_c + 1/m) with
    the covariance W within a class, the site's class shares π and n_c labels of class c. Its relative deviation is
    √(2 tr(W²)) / tr(W). Shares are those of the nearest class means.
    """
    names, rank = classes.unique(return_inverse=True)
    counts = torch.bincount(rank).double()
    freedom = len(server) - len(names)
    if freedom < 1 or len(names) < 2:
        return []
    means = torch.zeros(len(names), server.shape[1], dtype=torch.float64).index_add_(0, rank, server) / counts[:, None]
    within = server - means[rank]
    gram = within @ within.T / freedom
    spread, reach = gram.trace(), 1 + ERRORS * (2 * gram.square().sum()).sqrt() / gram.trace().clamp_min(1e-12)
    middle = means.mean(0)
    between = torch.linalg.svd(means - middle, full_matrices=False).Vh[:-1]
    result = []
    for name, x in sites.items():
        off = x.mean(0) - middle
        off = off - between.T @ (between @ off)
        shares = torch.bincount(torch.cdist(x, means).argmin(1), minlength=len(names)) / len(x)
        if off.square().sum() > reach * spread * ((shares.square() / counts).sum() + 1 / len(x)) + 1e-9:
            result.append(name)
    return result


def looks(images: Tensor) -> Tensor:
    """Brightness, contrast, sharpness, grain and color of images, N×5.

    Sharpness and grain are logarithms of the second difference: its root mean square in units of contrast, and the
    value that the calmest quarter of the pixels stays below, which is noise.
    """
    rows = []
    for chunk in images.split(CHUNK):
        grey = chunk.float().mean(1)
        contrast = grey.flatten(1).std(1)
        bent = conv2d(grey[:, None], SECOND).flatten(1)
        sharp = (bent.square().mean(1).sqrt() / contrast.clamp_min(1) + 0.01).log()
        grain = (bent.abs().kthvalue(max(bent.shape[1] // 4, 1), 1).values + 1).log()
        color = (chunk.amax(1).float() - chunk.amin(1)).mean((1, 2))
        rows.append(torch.stack([grey.mean((1, 2)), contrast, sharp, grain, color], 1))
    return torch.cat(rows).double()


def different(server: Tensor, classes: Tensor, sites: Mapping[str, Tensor]) -> list[Difference]:
    """The sites (name → N×5) further from the server's labels than their own mix of classes would bring them."""
    counts = torch.bincount(classes).double()
    present, n = counts > 0, float(len(server))
    means = torch.zeros(len(counts), server.shape[1], dtype=torch.float64).index_add_(0, classes, server)
    means = means[present] / counts[present, None]
    rank, freedom = classes.unique(return_inverse=True)[1], int(n) - len(means)
    within = (server - means[rank]).square().sum(0) / freedom if freedom > 0 else server.var(0)
    chance = within * (1 / counts[present]).mean()  # of class means around the true ones
    between = (means.var(0) - chance).clamp_min(0) if len(means) > 1 else torch.zeros_like(within)
    result = []
    for name, x in sorted(sites.items()):
        reach = MIX * between.sqrt() + ERRORS * (within * (1 / n + 1 / len(x))).sqrt() + 1e-9
        off = (x.mean(0) - means.mean(0)) / reach
        words = [pair[int(side > 0)] for pair, side in zip(WORDS, off.tolist(), strict=True) if abs(side) > 1]
        if words:
            result.append(Difference(name, tuple(words)))
    return result
