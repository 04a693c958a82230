"""Sites that violate the assumptions of fedmoments: images of no class, different cameras, few clients per round.

    python -m benchmarks.odd_sites [--seeds 3] [--out runs/odd-sites]

CIFAR-10 with 100 sites, otherwise the preset few-labels unchanged. ``animals``: the six animals are the classes, and a
share of the sites' images are vehicles, which belong to none. ``cameras``: each site changes brightness, contrast and
white balance of all its images in its own way; the server's labeled images and the test images come from no such
camera. Both are datasets that a config can name: ``dataset.name=benchmarks.odd_sites:animals``, with
``dataset.share=0.2`` and ``dataset.unlabeled=0``.
"""

import argparse
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from benchmarks.untouched import accuracy

from fedfew.core.samples import LabeledSet
from fedfew.data import DATASETS
from fedfew.data.dataset import Dataset, SiteSamples
from fedfew.data.partitions import make_partition
from fedfew.data.samples import Images

HERE = "benchmarks.odd_sites"
ANIMALS = ("bird", "cat", "deer", "dog", "frog", "horse")


def animals(
    *, share: float = 0.2, sites: int = 100, images: int = 6600, labels: int = 24, mu: float = 0.1, draw: int = 0
) -> Dataset:
    """Sites with animals by Dirichlet(μ), and a share of vehicles at each; ``labels`` are the server's."""
    cifar = DATASETS["cifar10"]()
    index = {cifar.classes.index(name): label for label, name in enumerate(ANIMALS)}
    rng = np.random.default_rng(draw)
    known = np.isin(cifar.train.labels.numpy(), list(index))
    order = rng.permutation(np.flatnonzero(known))
    classes = torch.tensor([index.get(label, -1) for label in range(len(cifar.classes))])
    truth = classes[cifar.train.labels]
    per_class = [order[truth[order].numpy() == label][: labels // len(ANIMALS)] for label in range(len(ANIMALS))]
    server = np.concatenate(per_class)
    rest = np.setdiff1d(order, server, assume_unique=True)
    held = rng.permutation(rest)[:images]
    vehicles = rng.permutation(np.flatnonzero(~known))
    dealt = make_partition(truth[held].numpy(), sites, "dirichlet", draw, {"mu": mu})
    chosen, offsets, used = [], [0], 0
    for site in range(sites):
        own = held[dealt.of(site)]
        more = round(len(own) * share / (1 - share))
        chosen += [own, vehicles[used : used + more]]
        used += more
        offsets.append(offsets[-1] + len(own) + more)
    indices = torch.from_numpy(np.concatenate(chosen))
    names = tuple(f"site {site}" for site in range(sites))
    clients = SiteSamples(names, cifar.train.samples.take(indices), np.array(offsets, np.int64), truth[indices])
    tested = classes[cifar.test.labels]
    test = LabeledSet(cifar.test.samples.take(tested >= 0), tested[tested >= 0])
    return Dataset("animals", cifar.train.take(torch.from_numpy(server)), test, ANIMALS, sites=clients)


def cameras(
    *, strength: float = 0.5, sites: int = 100, images: int = 11_000, labels: int = 40, mu: float = 0.1, draw: int = 0
) -> Dataset:
    """Sites by Dirichlet(μ), each with a camera; ``strength`` 0 changes no pixel, 1 doubles or halves brightness."""
    cifar = DATASETS["cifar10"]()
    truth, count = cifar.train.labels, len(cifar.classes)
    rng = np.random.default_rng(draw)
    order = rng.permutation(len(truth))
    server = np.concatenate([order[truth[order].numpy() == label][: labels // count] for label in range(count)])
    held = rng.permutation(np.setdiff1d(order, server, assume_unique=True))[:images]
    dealt = make_partition(truth[held].numpy(), sites, "dirichlet", draw, {"mu": mu})
    indices = [held[dealt.of(site)] for site in range(sites)]
    pixels = torch.cat([_seen(cifar.train.samples.data[torch.from_numpy(own)], rng, strength) for own in indices])
    offsets = np.cumsum([0, *map(len, indices)]).astype(np.int64)
    names = tuple(f"site {site}" for site in range(sites))
    clients = SiteSamples(names, Images(pixels), offsets, truth[torch.from_numpy(np.concatenate(indices))])
    own = cifar.train.take(torch.from_numpy(server))
    return Dataset("cameras", own, cifar.test, cifar.classes, sites=clients)


def _seen(images: torch.Tensor, rng: np.random.Generator, strength: float) -> torch.Tensor:
    """The images as one camera sees them: gain by channel, contrast about the middle, brightness."""
    gain = torch.from_numpy(2 ** (strength * rng.uniform(-0.5, 0.5, (1, 3, 1, 1)))).float()
    contrast, light = 2 ** (strength * rng.uniform(-1, 1)), 2 ** (strength * rng.uniform(-1, 1))
    seen = ((images.float() - 127.5) * contrast + 127.5) * light * gain
    return seen.round().clamp(0, 255).to(torch.uint8)


def cases() -> dict[str, dict[str, Any]]:
    """The cases to run: one line of the table each."""
    own = {"dataset.unlabeled": 0}
    result: dict[str, dict[str, Any]] = {}
    for share in (0.0, 0.2, 0.4):
        result[f"animals, {100 * share:.0f} % of the images of no class"] = own | {
            "dataset.name": f"{HERE}:animals", "labels": 24, "dataset.share": share}  # fmt: skip
    for mu, words in ((0.1, "μ = 0.1"), (100.0, "alike")):
        for strength in (0.0, 0.5, 1.0):
            result[f"{words}, cameras that differ by {strength:g}"] = own | {
                "dataset.name": f"{HERE}:cameras", "dataset.strength": strength, "dataset.mu": mu}  # fmt: skip
    for participation, rounds in ((0.1, 80), (0.05, 160)):
        result[f"μ = 0.1, {100 * participation:.0f} % of the clients a round, {rounds} rounds"] = {
            "participation": participation, "rounds": rounds}  # fmt: skip
    return result


def changes(case: dict[str, Any], method: str, seed: int) -> dict[str, Any]:
    """A case with its method, and one seed for all randomness."""
    drawn = "dataset.draw" if str(case.get("dataset.name", "")).startswith(HERE) else "dataset.seed"
    return case | {"method.name": method, "seed": seed, drawn: seed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/odd-sites"))
    options = parser.parse_args()
    print("| sites | server-only | fedmoments | gain |\n|---|---|---|---|")
    for number, (words, case) in enumerate(cases().items()):
        table = {
            method: [
                accuracy(changes(case, method, seed), options.out / f"{number}-{method}-{seed}")
                for seed in range(options.seeds)
            ]
            for method in ("server-only", "fedmoments")
        }
        cells = [f"{100 * mean(v):.1f} %" + (f" ± {100 * stdev(v):.1f}" if len(v) > 1 else "") for v in table.values()]
        gains = [100 * (b - a) for a, b in zip(*table.values(), strict=True)]
        print(f"| {words} | {' | '.join(cells)} | {mean(gains):+.1f} |", flush=True)


if __name__ == "__main__":
    main()
