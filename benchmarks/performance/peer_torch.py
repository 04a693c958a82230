"""FedMix as research code writes it in plain PyTorch: Dataset, DataLoader, Pillow transforms, autograd for every term.

Nothing here is slow on purpose. The votes of all views go through the network in one batch without autograd, images
are decoded once, and the losses are the paper's. It does not share work between the losses: the views of the
consistency term are passed again, and the cross-entropy pass runs on the whole batch and is masked: 14 forward passes'
worth for five views.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from benchmarks.performance.workloads import Opened, network_with
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from fedfew.aggregators.weighted import fedfreq_weights
from fedfew.config.parts import assemble
from fedfew.models.winograd import Conv3x3

StateDict = dict[str, Tensor]
SHIFT = 2


def to_tensor(image: Image.Image) -> Tensor:
    """C×H×W floats in [0, 1], contiguous in that order, as torchvision's ToTensor gives them."""
    pixels = np.array(image, dtype=np.uint8)
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1).contiguous().float().div(255)


def shifted(image: Image.Image) -> Image.Image:
    """A crop of the padded image: a shift by up to two pixels each way."""
    left, upper = random.randint(0, 2 * SHIFT), random.randint(0, 2 * SHIFT)
    padded = ImageOps.expand(image, border=SHIFT, fill=0)
    return padded.crop((left, upper, left + image.width, upper + image.height))


def mirrored(image: Image.Image) -> Image.Image:
    """Left to right."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def shifted_and_mirrored(image: Image.Image) -> Image.Image:
    """A shift and, half the time, the mirror image."""
    return shifted(mirrored(image) if random.random() < 0.5 else image)


def transforms(count: int, flips: bool) -> list[Callable[[Image.Image], Image.Image]]:
    """The paper's family: a shift, the mirror image (a second shift for digits), then weak views."""
    rest = shifted_and_mirrored if flips else shifted
    return [shifted, mirrored if flips else shifted, *[rest] * (count - 2)]


class ClientImages(Dataset[tuple[Tensor, Tensor]]):
    """A client's images; an item is the original image and its views, each augmented with Pillow."""

    def __init__(self, pixels: NDArray[np.uint8], views: int, flips: bool) -> None:
        self.images = [Image.fromarray(array) for array in pixels]
        self.transforms = transforms(views, flips)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        return to_tensor(image), torch.stack([to_tensor(transform(image)) for transform in self.transforms])


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything the clients' training needs, the same in a plain loop and under Flower."""

    model: nn.Module
    pixels: Sequence[NDArray[np.uint8]]
    """H×W×C (or H×W) of every client."""
    method: Mapping[str, Any]
    client: Mapping[str, Any]
    flips: bool


def setup(opened: Opened) -> tuple[Setup, StateDict, StateDict]:
    """The clients of a workload, ω and σ."""
    parts = assemble(opened.config)
    federation, network = parts.federation, parts.network
    omega, sigma = network_with(network, opened.omega), network_with(network, opened.sigma)
    model = plain_module(network.module, omega)
    shares = [torch.from_numpy(federation.partition.of(k)) for k in opened.timed + opened.warm]
    arrays = [federation.samples.data[share].numpy() for share in shares]
    pixels = [array[:, 0] if array.shape[1] == 1 else array.transpose(0, 2, 3, 1).copy() for array in arrays]
    flips = bool(federation.about["flips"])
    return Setup(model, pixels, opened.config.document["method"], opened.config.document["client"], flips), omega, sigma


def plain_module(module: nn.Module, omega: StateDict) -> nn.Module:
    """The same network of PyTorch's own layers, its tensors in the usual layout, not views into one vector."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Conv3x3):
                setattr(parent, name, nn.Conv2d(child.in_channels, child.out_channels, 3, padding=1, bias=False))
    for name, parameter in module.named_parameters():
        parameter.data, parameter.grad = omega[name].clone(), None
    return module


def train_client(setup: Setup, client: int, omega: StateDict, sigma: StateDict) -> tuple[StateDict, float]:
    """One client's round from ω: its ψ, and the share of images that got a pseudo-label."""
    model, method = setup.model, setup.method
    model.load_state_dict(omega)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=setup.client["lr"], momentum=setup.client["momentum"])
    dataset = ClientImages(setup.pixels[client], method["views"], setup.flips)
    confident = 0
    for _ in range(setup.client["epochs"]):
        for images, views in DataLoader(dataset, batch_size=setup.client["batch"], shuffle=True):
            optimizer.zero_grad()
            loss, kept = loss_of(model, images, views, sigma, method)
            loss.backward()
            optimizer.step()
            confident += kept
    psi = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return psi, confident / (len(dataset) * setup.client["epochs"])


def loss_of(
    model: nn.Module, images: Tensor, views: Tensor, sigma: StateDict, method: Mapping[str, Any]
) -> tuple[Tensor, int]:
    """λ_2 ‖p_1 − p_2‖² + λ_1 CE(ŷ, f(u)) + λ_L1 ‖σ − ψ‖², and how many images got a label."""
    with torch.no_grad():
        stacked = views.transpose(0, 1).flatten(0, 1)
        votes = model(stacked).softmax(1).view(views.shape[1], len(images), -1).mean(0)
        confidence, labels = votes.max(1)
        mask = confidence >= method["threshold"]
    first, second = model(views[:, 0]).softmax(1), model(views[:, 1]).softmax(1)
    consistency = ((first - second) ** 2).sum(1).mean()
    entropy = functional.cross_entropy(model(images), labels, reduction="none")
    entropy = (entropy * mask).sum() / mask.sum().clamp(min=1)
    anchor = sum(((parameter - sigma[name]) ** 2).sum() for name, parameter in model.named_parameters())
    loss = method["lambda_consistency"] * consistency + method["lambda_ce"] * entropy + method["lambda_anchor"] * anchor
    return loss, int(mask.sum())


def average(replies: Sequence[StateDict], omega: StateDict, sigma: StateDict, method: Mapping[str, Any]) -> StateDict:
    """ω_{t+1} = α Σ w_k ψ^k + β σ + γ ω, key by key; all clients have taken part equally often."""
    weights = fedfreq_weights([1.0] * len(replies))
    mixed = {}
    for name in omega:
        psi = torch.stack([w * reply[name] for w, reply in zip(weights, replies, strict=True)]).sum(0)
        mixed[name] = method["alpha"] * psi + method["beta"] * sigma[name] + method["gamma"] * omega[name]
    return mixed


def contest(opened: Opened, rounds: int) -> dict[str, Any]:
    """Warm up, then time rounds: one client after another with all threads, then the average."""
    random.seed(0)
    torch.manual_seed(0)
    built, omega, sigma = setup(opened)
    for k in opened.warm:
        train_client(built, k, omega, sigma)
    ready, seconds, coverage = perf_counter(), [], []
    for _ in range(rounds):
        start = perf_counter()
        answers = [train_client(built, k, omega, sigma) for k in opened.timed]
        average([psi for psi, _ in answers], omega, sigma, built.method)
        seconds.append(perf_counter() - start)
        coverage += [share for _, share in answers]
    return {"ready": ready, "rounds": seconds, "coverage": float(np.mean(coverage)), "threads": torch.get_num_threads()}
