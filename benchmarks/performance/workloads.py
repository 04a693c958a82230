"""The workloads that contestants share (images, config, vectors to start from), and the arithmetic of a client."""

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedfew.config.parts import Parts, assemble
from fedfew.config.schema import load
from fedfew.config.tree import Config
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.streams import stream
from fedfew.data.fetched import cifar10, is_fetched
from fedfew.data.included import mini_mnist
from fedfew.data.samples import Images
from fedfew.data.shares import Partition
from fedfew.runs.session import one_thread

WARM = 2
"""Clients that are trained once before the clock starts: one for each worker."""


@dataclass(frozen=True)
class Workload:
    """What every contestant does in a round: the same clients, images, network, losses and step size."""

    name: str
    images: int
    """Images of each client that is timed."""
    data: str = ""
    """Where the images come from, filled in when they are drawn."""
    clients: int = 5
    labels: int = 100
    warm: int = 32
    """Images of each client that only warms up."""
    epochs: int = 1
    """Epochs on the labels before the start, so that the model is sure of some images and unsure of others."""
    width: int = 64

    @property
    def total(self) -> int:
        """Images of a timed round."""
        return self.clients * self.images


CIFAR = Workload("cifar", images=64, labels=200)
MNIST = Workload("mnist", images=245, warm=64, epochs=15, width=16)
WORKLOADS = {"cifar": CIFAR, "mnist": MNIST}
"""cifar: ResNet-9 of width 64 on 3×32×32; mnist: the small cnn on fedfew's own digits."""


def deal(labels: NDArray[np.int64], clients: int, rng: np.random.Generator, *, images: int = 1) -> Partition:
    """Clients 0..clients−WARM−1 with ``images`` each, then WARM clients that share the rest."""
    timed = (clients - WARM) * images
    rest = np.linspace(timed, len(labels), WARM + 1).astype(np.int64)
    offsets = np.concatenate([np.arange(0, timed, images), rest])
    return Partition(rng.permutation(len(labels)), offsets)


def settings(workload: Workload, folder: Path) -> dict[str, Any]:
    """The run's config, before the threshold is known."""
    cifar = workload.name == "cifar"
    return {
        "seed": 0,
        "rounds": 100,
        "clients": workload.clients + WARM,
        "participation": 1.0,
        "labels": workload.labels,
        "dataset": {"name": "npz", "path": str(folder / "images.npz"), "flips": cifar, "validation": 0},
        "partition": {"kind": "benchmarks.performance.workloads:deal", "images": workload.images},
        "model": {"name": "resnet9" if cifar else "cnn", "width": workload.width, "norm": "none" if cifar else "group"},
        "method": {"name": "fedmix", "lambda_anchor": 0.001, "lambda_ce": 0.1, "lambda_s": 1.0},
        "server": {"epochs": workload.epochs, "batch": 32, "lr": 0.02 if cifar else 0.05, "momentum": 0.9, "clip": 1.0},
        "client": {"epochs": 1, "batch": 64, "lr": 0.001},
        "fleet": {"kind": "inline"},
    }


def draw_images(workload: Workload) -> tuple[LabeledSet, LabeledSet, str]:
    """Images for server and clients, a few for scoring, and their source."""
    count = workload.total + WARM * workload.warm + workload.labels
    rng = np.random.default_rng(0)
    if workload.name == "mnist":
        dataset, source = mini_mnist(), "mini-mnist, part of the package"
    elif is_fetched("cifar10"):
        dataset, source = cifar10(), "CIFAR-10"
    else:
        pixels = torch.from_numpy(rng.integers(0, 256, (count + 20, 3, 32, 32), dtype=np.uint8))
        built = LabeledSet(Images(pixels), torch.arange(count + 20) % 10)
        return _take(built, range(count)), _take(built, range(count, count + 20)), "random pixels of CIFAR-10's shape"
    chosen = rng.permutation(len(dataset.train))[:count]
    return _take(dataset.train, chosen), _take(dataset.test, range(20)), source


def prepare(workload: Workload, folder: Path) -> Workload:
    """Write images, config, ω, σ and τ into a folder; returns the workload with its source.

    ω has been trained on the labels, and τ is the median of its confidence on unlabeled images: about half of them
    get a pseudo-label, so that the cross-entropy pass is neither free nor complete.
    """
    train, test, source = draw_images(workload)
    arrays: dict[str, Any] = {"train_images": train.samples.data, "train_labels": train.labels}
    arrays |= {"test_images": test.samples.data, "test_labels": test.labels}
    np.savez(folder / "images.npz", **{name: tensor.numpy() for name, tensor in arrays.items()})  # type: ignore[arg-type, unused-ignore]
    with one_thread():
        start, threshold = _begin(assemble(load(settings(workload, folder))))
    save_file(start, folder / "start.safetensors")
    named = Workload(**asdict(workload) | {"data": source})
    about = {"workload": asdict(named), "threshold": threshold}
    (folder / "workload.json").write_text(json.dumps(about))
    return named


def _begin(parts: Parts) -> tuple[dict[str, Tensor], float]:
    """ω and σ, and the threshold τ."""
    start = parts.algorithm.start(parts.network.snapshot())
    omega = parts.algorithm.warm_up(start, parts.server, stream(0, "prepare", 0)).sigma
    sigma = parts.algorithm.warm_up(replace(start, omega=omega), parts.server, stream(0, "prepare", 1)).sigma
    return {"omega": omega, "sigma": sigma}, _middle(parts, omega)


def _middle(parts: Parts, omega: Tensor) -> float:
    """The confidence that half of the warm-up clients' images reach."""
    network, federation = parts.network, parts.federation
    network.load(omega)
    last = federation.partition.clients
    index = np.concatenate([federation.partition.of(k) for k in range(last - WARM, last)])
    family = federation.samples.take(torch.from_numpy(index)).views(
        parts.config.document["method"]["views"], stream(0, "prepare", 2)
    )
    with torch.no_grad():
        mean = torch.stack([network(view).softmax(1) for view in family]).mean(0)
    return round(float(mean.max(1).values.median()), 4)


@dataclass(frozen=True, eq=False)
class Opened:
    """A prepared workload as a contestant reads it."""

    workload: Workload
    config: Config
    omega: Tensor
    sigma: Tensor

    @property
    def timed(self) -> list[int]:
        """The clients of a timed round."""
        return list(range(self.workload.clients))

    @property
    def warm(self) -> list[int]:
        """The clients of the round before the clock starts."""
        return list(range(self.workload.clients, self.workload.clients + WARM))


def open_workload(folder: Path, **fleet: Any) -> Opened:
    """Read what ``prepare`` wrote; ``fleet`` settings are the contestant's own."""
    about = json.loads((folder / "workload.json").read_text())
    workload, start = Workload(**about["workload"]), load_file(folder / "start.safetensors")
    overrides = {"method.threshold": about["threshold"]} | {f"fleet.{key}": value for key, value in fleet.items()}
    config = load(settings(workload, folder), overrides)
    return Opened(workload, config, start["omega"], start["sigma"])


def _take(labeled: LabeledSet, index: Sequence[int] | NDArray[np.int64]) -> LabeledSet:
    chosen = torch.as_tensor(np.asarray(index))
    return LabeledSet(labeled.samples.take(chosen), labeled.labels[chosen])


def network_with(network: Network, vector: Tensor) -> dict[str, Tensor]:
    """A vector as a plain module's state_dict, in PyTorch's usual layout.

    The tensors are new: a view with one input channel counts as contiguous, but its strides say channels_last, and
    convolutions follow the strides.
    """
    return {name: torch.empty(view.shape).copy_(view) for name, view in network.layout.views(vector).items()}


@dataclass(frozen=True)
class Cost:
    """FLOP of a FedMix client for one image; a product and a sum are two."""

    forward: int
    both: int
    """Forward and backward; less than three times forward, because the first layer needs no gradient of its input."""

    def shared(self, views: int, coverage: float) -> float:
        """fedfew: two views with gradient, which also vote; the others vote; cross-entropy on confident images only."""
        return 2 * self.both + (views - 2) * self.forward + coverage * self.both

    def naive(self, views: int) -> float:
        """Plain code: all views vote, two views with gradient, cross-entropy on all images."""
        return views * self.forward + 3 * self.both

    def equivalents(self, flops: float) -> float:
        """FLOP in forward passes, where a pass with gradient counts three, as in the paper."""
        return flops / self.forward


def cost(module: nn.Module, channels: int, size: int, dtype: torch.dtype = torch.float64) -> Cost:
    """Counted on one image: in float64 for direct convolutions, in float32 for fedfew's (Winograd)."""
    image, module = torch.zeros(1, channels, size, size, dtype=dtype), deepcopy(module).to(dtype)
    counts = []
    for backward in (False, True):
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(backward):
            logits = module(image)
            if backward:
                logits.sum().backward()
        counts.append(int(counter.get_total_flops()))
    return Cost(*counts)
