"""A network whose parameters and gradients are one vector each, so that training works on vectors in place."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedfew.core.engine import Engine, compiled, precision
from fedfew.core.layout import Layout, Vector

ON_CPU = Engine(device="cpu")


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
    engine: Engine
    _scale: Tensor = field(repr=False)
    _shift: Tensor = field(repr=False)
    _fast: Callable[[Tensor], Tensor] = field(repr=False)
    """The module as it is called: compiled if the engine says so."""
    backward: Callable[[Tensor], None] = field(default=Tensor.backward, repr=False)
    """Adds a loss's gradient to ``gradient``; clients that are trained in one stack wait here for each other."""

    @staticmethod
    def of(module: nn.Module, pixels: Pixels, engine: Engine = ON_CPU, shape: tuple[int, ...] = ()) -> "Network":
        """Bind a module: from here on its tensors are views into the vectors.

        ``shape`` is that of an image, which the engine needs to compile.
        """
        place = engine.place()
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
        std = torch.tensor(pixels.std).view(1, -1, 1, 1).to(place)
        mean = torch.tensor(pixels.mean).view(1, -1, 1, 1).to(place)
        scale, shift = 1 / (255 * std), -mean / std
        fast: Callable[[Tensor], Tensor] = module
        if engine.compile:
            two = torch.zeros(2, *shape, device=place).contiguous(memory_format=torch.channels_last)
            with precision(engine, place):
                fast = compiled(module, two)
        return Network(module, layout, pixels, vector, gradient, place, engine, scale, shift, fast)

    def set_training(self, training: bool) -> None:
        """Training or evaluation mode; walking through the module, which takes long for a small one, only if needed."""
        if self.module.training != training:
            self.module.train(training)

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
        batch = self.input(images)
        with self._precision():
            logits = self._fast(batch)
        return logits.float()

    def outputs_of(self, weights: Vector, images: Tensor) -> Tensor:
        """Logits of other weights in this network, without autograd; statistics of a batch norm go to ``weights``."""
        with torch.no_grad(), self._precision():
            logits: Tensor = functional_call(self.module, self.layout.views(weights), (self.input(images),))
        return logits.float()

    def _precision(self) -> AbstractContextManager[object]:
        return precision(self.engine, self.device)

    def probabilities(self, images: Tensor, batch: int = 500) -> Tensor:
        """Softmax outputs without autograd, in evaluation mode, batch by batch."""
        was_training = self.module.training
        self.set_training(False)
        with torch.inference_mode():
            parts = [self(part).softmax(1).cpu() for part in images.split(batch)]
        self.set_training(was_training)
        return torch.cat(parts) if parts else torch.empty(0)
