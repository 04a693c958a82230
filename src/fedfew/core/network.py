"""A network whose parameters and gradients are one vector each, so that training works on vectors in place."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedfew.core.layout import Layout, Vector


@dataclass(frozen=True)
class Pixels:
    """How uint8 images become the network's input: ``(image / 255 - mean) / std`` per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @staticmethod
    def unit(channels: int) -> "Pixels":
        """Images divided by 255 and nothing else, as in the paper."""
        return Pixels((0.0,) * channels, (1.0,) * channels)


@dataclass(frozen=True, eq=False)
class Network:
    """A module bound to ``vector`` (its weights) and ``gradient``; one per process, loaded anew for each client."""

    module: nn.Module
    layout: Layout
    pixels: Pixels
    vector: Vector
    gradient: Vector
    device: torch.device
    _scale: Tensor = field(repr=False)
    _shift: Tensor = field(repr=False)

    @staticmethod
    def of(module: nn.Module, pixels: Pixels, device: str = "cpu") -> "Network":
        """Bind a module: from here on its tensors are views into the vectors."""
        place = torch.device(device)
        module.to(place)
        layout = Layout.of(module)
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        vector = layout.pack({name: tensors[name].detach() for name in layout.names}).to(place)
        gradient = torch.zeros_like(vector)
        views, slopes = layout.views(vector), layout.views(gradient)
        for name, parameter in module.named_parameters():
            parameter.data = views[name]
            parameter.grad = slopes[name]
        for name, buffer in module.named_buffers():
            if name in views:
                buffer.data = views[name]
        std = torch.tensor(pixels.std, device=place).view(1, -1, 1, 1)
        mean = torch.tensor(pixels.mean, device=place).view(1, -1, 1, 1)
        return Network(module, layout, pixels, vector, gradient, place, 1 / (255 * std), -mean / std)

    def load(self, vector: Vector) -> None:
        """Continue from these weights."""
        self.vector.copy_(vector)

    def snapshot(self) -> Vector:
        """A copy of the weights as they are now."""
        return self.vector.detach().to("cpu", copy=True)

    def input(self, images: Tensor) -> Tensor:
        """Normalised float images, channels last, from uint8 (or from floats in [0, 255], as augmentations give)."""
        batch = images.to(self.device).float()
        return (batch * self._scale + self._shift).contiguous(memory_format=torch.channels_last)

    def __call__(self, images: Tensor) -> Tensor:
        """Logits of a batch of images; gradients flow where autograd is on."""
        logits: Tensor = self.module(self.input(images))
        return logits

    def probabilities(self, images: Tensor, batch: int = 500) -> Tensor:
        """Softmax outputs without autograd, in evaluation mode, batch by batch."""
        was_training = self.module.training
        self.module.eval()
        with torch.inference_mode():
            parts = [self(part).softmax(1).cpu() for part in images.split(batch)]
        self.module.train(was_training)
        return torch.cat(parts) if parts else torch.empty(0)
