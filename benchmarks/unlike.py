"""How often samples of none of the classes are noticed, and how often they are where there are none.

    python -m benchmarks.unlike --seeds 3 --first-seed 110 --draws 100             the statistic of the program
    python -m benchmarks.unlike --seeds 3 --first-seed 50 --draws 20 --all         and those that it was chosen from

    animals   six classes of CIFAR-10; the others are vehicles (96 pixels)
    xrays     normal and pneumonia; the others are drawings
    reuters   six of eight topics; the others are the other two

Each draw has labels of its own, an equal number of each class, and 400 unlabeled samples, of which a share is of none:
of an even class mix, or of one from Dir(0.1). Class shares are those of the nearest labels.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from benchmarks.odd_sites import ANIMALS
from torch import Tensor
from torch.nn.functional import normalize

from fedfew.core.samples import Samples
from fedfew.core.streams import stream
from fedfew.data import DATASETS
from fedfew.data.samples import Images
from fedfew.data.samples.texts import Texts
from fedfew.inference.unlike import ERROR, angles, angles_within, judged, nearest
from fedfew.methods.fedmoments.share import fitted, folds_of
from fedfew.models.backbones.features import extract
from fedfew.models.backbones.pretrained import Pretrained
from fedfew.models.build import build_model

SAMPLES, POOL, WIDTH = 400, 900, 64
Score = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Scene:
    """Features x (N×d) of length 1 with labels; −1: of none of the classes."""

    x: Tensor
    labels: Tensor

    def draw(self, rng: np.random.Generator, labels: int, share: float, mu: float) -> tuple[Tensor, Tensor, Tensor]:
        """Labeled samples, their classes, and unlabeled ones."""
        classes, lot = int(self.labels.max()) + 1, rng.permutation(len(self.x))
        truth = self.labels.numpy()[lot]
        own = [lot[truth == c] for c in range(classes)]
        each, odd = labels // classes, round(SAMPLES * share)
        mix = rng.dirichlet([mu] * classes) if mu else np.full(classes, 1 / classes)
        counts = rng.multinomial(SAMPLES - odd, mix)
        rest = [members[each : each + count] for members, count in zip(own, counts, strict=True)]
        few = np.concatenate([members[:each] for members in own])
        chosen = np.concatenate([*rest, lot[truth < 0][:odd]])
        return self.x[few], torch.arange(classes).repeat_interleave(each), self.x[chosen]


def by_neighbors(mine: Tensor, labels: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """The program's."""
    return nearest(angles_within(mine)), nearest(angles(theirs, mine))


def by_means(mine: Tensor, labels: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """The distance to the nearest class mean, without the own sample, in whitened principal directions."""
    both = torch.cat([mine, theirs])
    _, values, axes = torch.linalg.svd(both - both.mean(0), full_matrices=False)
    basis = axes[:WIDTH].T / values[:WIDTH] * len(both) ** 0.5
    a, b = (part @ basis for part in (mine, theirs))
    means = torch.stack([a[labels == c].mean(0) for c in labels.unique()])
    counts = torch.bincount(labels).double()
    distances = torch.cdist(a, means)
    own = distances.gather(1, labels[:, None])[:, 0] * (counts / (counts - 1).clamp_min(1))[labels]
    return distances.scatter(1, labels[:, None], own[:, None]).amin(1), torch.cdist(b, means).amin(1)


def by_confidence(mine: Tensor, labels: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Minus the largest probability, by regressions on three quarters of the labels."""
    fold, classes = folds_of(labels, int(labels.max()) + 1, 4), int(labels.max()) + 1
    held, new = torch.zeros(len(mine), dtype=mine.dtype), []
    for f in fold[fold >= 0].unique():
        weight, bias = fitted(mine[fold != f], labels[fold != f], classes, 0.03, 15)
        held[fold == f] = -(mine[fold == f] @ weight + bias).softmax(1).amax(1)
        new.append(-(theirs @ weight + bias).softmax(1).amax(1))
    return held, torch.stack(new).mean(0)


SCORES: dict[str, Score] = {"neighbors": by_neighbors, "class means": by_means, "confidence": by_confidence}


def measured(scene: Scene, score: Score, seeds: Iterable[int], draws: int, labels: int, share: float, mu: float) -> str:
    """The part of the draws in which something is noticed, and the mean share then."""
    shares = []
    for seed in seeds:
        for number in range(draws):
            mine, own, theirs = scene.draw(np.random.default_rng([seed, number]), labels, share, mu)
            counts = torch.bincount(own)
            frequent = torch.bincount(own[angles(theirs, mine).argmin(1)], minlength=len(counts)).double() + 1
            shares.append(judged(*score(mine, own, theirs), (frequent / counts)[own]).share)
    noticed = [found for found in shares if found]
    return f"{len(noticed) / len(shares):.2f}" + (f" (share {np.mean(noticed):.2f})" if noticed else "")


def features(samples: Samples, model: str) -> Tensor:
    """As the backbone gives them, of length 1."""
    assert isinstance(samples, Images | Texts)
    size = samples.data.shape[-1]
    options = {"size": 96} if isinstance(samples, Images) else {}
    module = build_model(model, samples.data.shape[1], size, 2, options, stream(0, "model"))
    assert isinstance(module, Pretrained)
    return normalize(extract(module, [samples], 2)[0][:, 0].double(), dim=1)


def animals(seed: int) -> Scene:
    """Some images of each class, and vehicles."""
    cifar = DATASETS["cifar10"]().train
    index = torch.tensor([ANIMALS.index(name) if name in ANIMALS else -1 for name in DATASETS["cifar10"]().classes])
    return _scene(cifar.samples, index[cifar.labels], "efficientnet-lite0", seed)


def xrays(seed: int) -> Scene:
    """X-rays, and drawings in grey at their size."""
    from benchmarks import packaged

    known, drawn = packaged.xrays(folder=FOLDER).train, packaged.clipart().train.samples.data
    grey = drawn[:POOL].float().mean(1, keepdim=True)
    grey = torch.nn.functional.interpolate(grey, known.samples.data.shape[2:], mode="bilinear")
    some = _some(known.labels, seed)
    data = torch.cat([known.samples.data[some], grey.to(torch.uint8)[: POOL // 4]])
    labels = torch.cat([known.labels[some], torch.full((POOL // 4,), -1)])
    return Scene(features(Images(data), "efficientnet-lite0"), labels)


def reuters(seed: int) -> Scene:
    """Stories of six topics, and of the two rarest."""
    from benchmarks import rows

    with tempfile.TemporaryDirectory() as folder:
        stories = rows.reuters(Path(folder))
    names = sorted({s["label"] for s in stories}, key=lambda name: -sum(s["label"] == name for s in stories))
    index = {name: number if number < 6 else -1 for number, name in enumerate(names)}
    texts = Texts.of([s["text"] for s in stories], 400, "text")
    return _scene(texts, torch.tensor([index[s["label"]] for s in stories]), "sentence", seed)


def _scene(samples: Samples, labels: Tensor, model: str, seed: int) -> Scene:
    some = _some(labels, seed)
    return Scene(features(samples.take(some), model), labels[some])


def _some(labels: Tensor, seed: int) -> Tensor:
    """Up to so many of each class, and of none."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return torch.cat([order[labels[order] == c][: POOL // 2] for c in labels.unique()])


SCENES: dict[str, tuple[Callable[[int], Scene], tuple[int, ...]]] = {
    "animals": (animals, (24, 42, 102, 300)),
    "xrays": (xrays, (20, 40, 100, 300)),
    "reuters": (reuters, (24, 42, 102)),
}
FOLDER = ""


def main() -> None:
    global FOLDER
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=110)
    parser.add_argument("--draws", type=int, default=100, help="of each seed")
    parser.add_argument("--all", action="store_true", help="all three statistics")
    parser.add_argument("--only", choices=SCENES, action="append")
    parser.add_argument("--xrays", default="", help="where the package with X-rays was unpacked")
    given = parser.parse_args()
    FOLDER, seeds = given.xrays, range(given.first_seed, given.first_seed + given.seeds)
    torch.set_num_threads(1)
    print(f"noticed (p < {ERROR}) by share of no class and class mix; {len(seeds)} seeds × {given.draws} draws")
    for name in given.only or SCENES:
        make, counts = SCENES[name]
        scene = make(given.first_seed)
        for labels in counts:
            for title, score in SCORES.items() if given.all else [("neighbors", by_neighbors)]:
                cells = [(0.0, 0.0), (0.0, 0.1), (0.1, 0.0), (0.2, 0.0), (0.2, 0.1)]
                shown = [measured(scene, score, seeds, given.draws, labels, *cell) for cell in cells]
                texts = [
                    f"{share:.0%}{' skewed' if mu else ''}: {text}"
                    for (share, mu), text in zip(cells, shown, strict=True)
                ]
                print(f"{name}, {labels} labels, {title}: " + ", ".join(texts), flush=True)


if __name__ == "__main__":
    main()
