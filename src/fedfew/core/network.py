"""A network whose parameters and gradients are one vector each, so that training works on vectors in place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedfew.core.engine import Engine, compiled, precision
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Layout, Vector, frozen_modules
from fedfew.core.samples import Samples

ON_CPU = Engine(device="cpu")


@dataclass(frozen=True, eq=False)
class Network:
    """A module bound to ``vector`` (its weights) and ``gradient``; one per process, loaded anew for each client."""

    module: nn.Module
    layout: Layout
    vector: Vector
    gradient: Vector
    device: torch.device
    engine: Engine
    _fast: Callable[[Tensor], Tensor] = field(repr=False)
    """The module as it is called: compiled if the engine says so."""
    _still: Sequence[nn.Module] = field(repr=False)
    """The frozen parts."""
    rates: Tensor | None = field(default=None, repr=False)
    """Factors of the step size for each trainable entry; None: 1 for all."""

    @staticmethod
    def of(module: nn.Module, engine: Engine = ON_CPU, example: Samples | None = None) -> "Network":
        """Bind a module: from here on its tensors are views into the vectors.

        ``example`` are samples to compile it with, which the engine may ask for.
        """
        device = engine.chosen_device()
        module.to(device)
        layout = Layout.of(module)
        if not layout.trainable:
            raise FedfewError("E115", "model", "has no parameter that can be trained (requires_grad)")
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        vector = layout.pack({name: tensors[name].detach() for name in layout.names}).to(device)
        gradient = torch.zeros_like(vector)
        views, slopes = layout.views(vector), layout.views(gradient)
        for name, parameter in module.named_parameters():
            if name in views:
                parameter.data = views[name]
                parameter.grad = slopes[name]
        still = [module.get_submodule(path) for path in sorted(frozen_modules(module) - {""})]
        _train(module, True, still)
        for name, buffer in module.named_buffers():
            if name in views:
                buffer.data = views[name]
        fast: Callable[[Tensor], Tensor] = module
        if engine.compile:
            assert example is not None, "samples are needed to compile a network"
            two = example.like(torch.zeros(2, *example.data.shape[1:], dtype=example.data.dtype))
            with precision(engine, device):
                fast = compiled(module, two.inputs(device))
        return Network(module, layout, vector, gradient, device, engine, fast, still)

    def set_training(self, training: bool) -> None:
        """Set training or evaluation mode; only if it changes, because that is slow compared with a small model."""
        if self.module.training != training:
            _train(self.module, training, self._still)

    @property
    def frozen(self) -> dict[str, Tensor]:
        """Parameters and float buffers that do not train, by name."""
        tensors = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        return {n: t.detach() for n, t in tensors.items() if t.is_floating_point() and n not in self.layout.names}

    def load(self, vector: Vector) -> None:
        """Continue from these weights."""
        self.vector.copy_(vector)

    def load_all(self, tensors: Mapping[str, Tensor]) -> None:
        """Load every tensor by name, frozen ones too; E307 where names or shapes are not the model's."""
        frozen = self.frozen
        self.load(self.layout.pack({name: t for name, t in tensors.items() if name not in frozen}))
        for name, tensor in frozen.items():
            if name not in tensors or tensors[name].shape != tensor.shape:
                raise FedfewError("E307", name, "is missing or has another shape than the model's")
            tensor.copy_(tensors[name])

    def snapshot(self) -> Vector:
        """A copy of the weights as they are now."""
        return self.vector.detach().to("cpu", copy=True)

    def __call__(self, samples: Samples) -> Tensor:
        """Logits of a batch; gradients flow where autograd is on."""
        batch = samples.inputs(self.device)
        with precision(self.engine, self.device):
            logits = self._fast(batch)
        return logits.float()

    def outputs_of(self, weights: Vector, samples: Samples) -> Tensor:
        """Logits with other weights, without autograd; batch-norm statistics are written to ``weights``."""
        with torch.no_grad(), precision(self.engine, self.device):
            batch = samples.inputs(self.device)
            logits: Tensor = functional_call(self.module, self.layout.views(weights), (batch,))
        return logits.float()

    def probabilities(self, samples: Samples, batch: int = 500) -> Tensor:
        """Softmax outputs without autograd, in evaluation mode, batch by batch."""
        was_training = self.module.training
        self.set_training(False)
        with torch.inference_mode():
            parts = [self(part).softmax(1).cpu() for part in samples.split(batch)]
        self.set_training(was_training)
        return torch.cat(parts) if parts else torch.empty(0)


def _train(module: nn.Module, training: bool, still: Sequence[nn.Module]) -> None:
    """Set a module's mode by its own ``train``; frozen parts are never in training mode, so their statistics stay.

    The mode of a fresh module is always set once, so that a custom ``train`` is not skipped.
    """
    module.train(training)
    if training:
        for part in still:
            part.training = False
