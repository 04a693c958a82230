"""Whether a pretrained backbone suits a folder's images: a cross-validation on the server's labels.

Ridge regression on the classes, with the backbone's features and, as a stand-in for a network trained from scratch,
with the pixels; every image is predicted by a model that was fitted to other images.
The backbone is taken unless the pixels are clearly better (McNemar 1947): sites add more to it than to a small network.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate, one_hot

from fedfew.data.images.folders import Folder
from fedfew.data.samples import Images
from fedfew.data.shares import ranks
from fedfew.models import MODELS
from fedfew.models.backbones import Pretrained
from fedfew.models.backbones.features import extract

MOST, FOLDS = 200, 5
"""Labels that are used, and folds."""
SIDE, PIXELS = 96, 16
"""Pixels a side: of the images the backbone sees here, and of those compared pixel by pixel."""
PENALTIES = tuple(10.0**power for power in (-3, -2, -1, 0, 1))
CLEAR = 1.5
"""Standard errors by which the pixels must be better."""


@dataclass(frozen=True)
class Comparison:
    """Labels that are predicted correctly, of so many, and whether the backbone is taken."""

    backbone: int
    pixels: int
    labels: int
    suits: bool

    def __str__(self) -> str:
        share, other = (f"{100 * count / self.labels:.0f} %" for count in (self.backbone, self.pixels))
        return f"cross-validated on {self.labels} labels {share} are right with it, {other} with pixels"


def compare(survey: Folder, backbone: str, channels: int) -> Comparison | None:
    """Backbone against pixels on the labels; None if there are classes without a second label."""
    rows = survey.rows("server")
    stride = -(-len(rows) // MOST)
    own = Folder(survey.root, [survey.files[row] for row in rows[::stride]], []).read(SIDE, channels)
    names = sorted({file.group for file in own.files})
    labels = torch.tensor([names.index(file.group) for file in own.files], dtype=torch.int64)
    if len(names) < 2 or int(torch.bincount(labels).min()) < 2:
        return None
    model = MODELS[backbone](channels, SIDE, len(names), size=SIDE)
    assert isinstance(model, Pretrained)
    features = extract(model, [Images(own.images)])[0][:, 0].double()
    pixels = interpolate(own.images.double(), (PIXELS, PIXELS), mode="area").flatten(1)
    with_it, without = left_out(features, labels), left_out(pixels, labels)
    lost, won = int((without & ~with_it).sum()), int((with_it & ~without).sum())
    suits = lost - won <= CLEAR * (lost + won) ** 0.5
    return Comparison(int(with_it.sum()), int(without.sum()), len(labels), suits)


def left_out(x: Tensor, labels: Tensor) -> Tensor:
    """Which labels (N) ridge regression on vectors N×d predicts from the other folds, at its best penalty."""
    fold = torch.from_numpy(ranks(labels.numpy()) % FOLDS)
    target = one_hot(labels).to(x)
    squares, hits = torch.zeros(len(PENALTIES)), torch.zeros(len(PENALTIES), len(x), dtype=torch.bool)
    for held in range(FOLDS):
        test = fold == held
        middle, level = x[~test].mean(0), target[~test].mean(0)  # of what is not held out, or it would leak
        own, others = x[test] - middle, x[~test] - middle
        scale = others.square().sum(1).mean().clamp_min(1e-12)
        for row, penalty in enumerate(PENALTIES):
            kernel = others @ others.T / scale + penalty * torch.eye(len(others)).to(x)
            predicted = level + own @ others.T / scale @ torch.linalg.solve(kernel, target[~test] - level)
            squares[row] += (predicted - target[test]).square().sum()
            hits[row, test] = predicted.argmax(1) == labels[test]
    return hits[int(squares.argmin())]
