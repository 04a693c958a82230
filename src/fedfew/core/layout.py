"""The vector layout: the part of a network that is trained and sent, as views into one flat float32 tensor.

With this, the paper's Eq. 9 is one line of code (``alpha * psi + beta * sigma + gamma * omega``), SGD is two in-place
operations, and gate, norms, hashes and wire handle one tensor each. The form of messages with such vectors is here too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedfew.core.errors import FedfewError

Vector = Tensor
"""A 1-D float32 tensor in the order of a Layout."""
Payload = dict[str, Tensor]
"""Server → client, e.g. {"omega", "sigma", "lr"}."""
Reply = dict[str, Tensor]
"""Client → server, e.g. {"psi"}."""


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lives in a Vector: the parameters first (``trainable`` entries), then the buffers.

    Frozen parameters (``requires_grad = False``) and their buffers are not part of it: they do not change, are not sent
    and count in no norm.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    trainable: int

    @property
    def size(self) -> int:
        return self.offsets[-1]

    @property
    def has_buffers(self) -> bool:
        """Whether the model keeps statistics, as batch normalisation does."""
        return self.trainable < self.size

    @staticmethod
    def of(module: nn.Module) -> "Layout":
        """The layout of a module: trainable parameters in their order, then the buffers of floating point."""
        parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        still = frozen_modules(module)
        buffers = {
            name: b
            for name, b in module.named_buffers()
            if b.is_floating_point() and name.rpartition(".")[0] not in still
        }
        tensors = parameters | buffers
        offsets = [0]
        for tensor in tensors.values():
            offsets.append(offsets[-1] + tensor.numel())
        return Layout(
            names=tuple(tensors),
            shapes=tuple(tuple(t.shape) for t in tensors.values()),
            offsets=tuple(offsets),
            trainable=offsets[len(parameters)],
        )

    def views(self, vector: Vector) -> dict[str, Tensor]:
        """The named tensors of a vector, sharing its memory."""
        if vector.shape != (self.size,):
            raise FedfewError("E307", "vector", f"has shape {tuple(vector.shape)}, the model needs ({self.size},)")
        spans = pairwise(self.offsets)
        return {
            name: _view(vector[start:stop], shape)
            for name, shape, (start, stop) in zip(self.names, self.shapes, spans, strict=True)
        }

    def pack(self, tensors: Mapping[str, Tensor]) -> Vector:
        """One vector from named tensors; names and shapes must be those of the layout."""
        if set(tensors) != set(self.names):
            odd = sorted(set(tensors) ^ set(self.names))
            raise FedfewError("E307", "model", f"tensors differ from the model's: {', '.join(odd[:4])}")
        vector = torch.empty(self.size)
        for name, view in self.views(vector).items():
            if tensors[name].shape != view.shape:
                raise FedfewError("E307", name, f"has shape {tuple(tensors[name].shape)}, not {tuple(view.shape)}")
            view.copy_(tensors[name])
        return vector

    def select(self, vector: Vector, wanted: frozenset[str]) -> Tensor:
        """A boolean mask over the vector that is true where the tensor's name is in ``wanted``."""
        mask = torch.zeros(self.size, dtype=torch.bool, device=vector.device)
        for name, start, stop in zip(self.names, self.offsets, self.offsets[1:], strict=False):
            if name in wanted:
                mask[start:stop] = True
        return mask


def frozen_modules(module: nn.Module) -> frozenset[str]:
    """The paths of frozen modules: they, or the nearest enclosing module with parameters, have none that trains."""
    still: set[str] = set()
    for path, part in module.named_modules():
        own = list(part.parameters())
        above = path.rpartition(".")[0] in still if path else False
        if above or (own and not any(p.requires_grad for p in own)):
            still.add(path)
    return frozenset(still)


def _view(piece: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A convolution's weight lies in channels_last order inside the vector, where oneDNN reads it fastest."""
    if len(shape) == 4:
        o, i, h, w = shape
        return piece.view(o, h, w, i).permute(0, 3, 1, 2)
    return piece.view(shape)


@dataclass(frozen=True)
class Expected:
    """What the gate accepts for one tensor of a reply; a dimension of None may have any length up to ``limit``."""

    shape: tuple[int | None, ...]
    dtype: torch.dtype = torch.float32
    near: str = ""
    """Name of the payload tensor that this one is compared with: the norm bound applies to the difference."""
    limit: int = 0
    delta: bool = False
    """True for a change (delta): the norm bound applies to it directly."""
    index: bool = False
    """True for indices into a vector of length ``limit``: sorted, unique, in range."""
    group: str = ""
    """Tensors of any length that share a group have the same length."""
    per_example: float = 0.0
    """For sums over images: the bound on what one image can add to the norm; 0: no bound."""
    exact: int = 0
    """For sums over images: so many entries at the start are sent as they are, the others may be sent in fewer bits."""
    base: tuple[str, ...] = ()
    """For a change of some entries of the model: the payload tensors whose sum is the model that was sent."""
    rule: "Rule | None" = None


Schema = dict[str, Expected]
Rule = Callable[[Tensor, Payload, int], str]
"""Why no honest client with so many images can send this tensor in answer to this payload; empty if one can."""


def nbytes(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the tensors as they would travel."""
    return sum(t.numel() * t.element_size() for t in tensors.values())
