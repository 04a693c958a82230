"""The vector layout: whatever a module holds comes back from one flat vector, in the same memory."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Layout

sizes = st.integers(1, 5)


class Scale(nn.Module):
    """A module with a scalar parameter, an integer buffer and a float buffer, as users' modules may have."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("calls", torch.tensor(3))
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))


@st.composite
def modules(draw: st.DrawFn) -> nn.Module:
    """Any mix of layers, with weights of their own (the layout does not care whether they fit together)."""
    kinds = st.sampled_from(["conv", "batch", "group", "linear", "bare", "scale"])
    layers: list[nn.Module] = []
    for kind in draw(st.lists(kinds, min_size=1, max_size=5)):
        a, b = draw(sizes), draw(sizes)
        if kind == "conv":
            layers.append(nn.Conv2d(a, b, (draw(sizes), draw(sizes)), bias=draw(st.booleans())))
        elif kind == "batch":
            layers.append(nn.BatchNorm2d(a, affine=draw(st.booleans())))
        elif kind == "group":
            layers.append(nn.GroupNorm(1, a))
        elif kind == "linear":
            layers.append(nn.Linear(a, b, bias=draw(st.booleans())))
        else:
            layers.append(nn.ReLU() if kind == "bare" else Scale())
    module = nn.Sequential(*layers)
    filling = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor.normal_(generator=filling)
    return module


def float_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    return {name: t.detach().clone() for name, t in tensors.items() if t.is_floating_point()}


@settings(max_examples=60, deadline=None)
@given(modules())
def test_pack_then_views_gives_every_tensor_back(module: nn.Module) -> None:
    layout, tensors = Layout.of(module), float_tensors(module)

    vector = layout.pack(tensors)
    back = layout.views(vector)

    assert set(back) == set(tensors)
    assert all(torch.equal(back[name], tensors[name]) and back[name].shape == tensors[name].shape for name in tensors)
    assert vector.shape == (sum(t.numel() for t in tensors.values()),)
    assert layout.trainable == sum(p.numel() for p in module.parameters())
    assert layout.names[: len(list(module.parameters()))] == tuple(name for name, _ in module.named_parameters())
    assert torch.equal(layout.pack(layout.views(vector)), vector)


@settings(max_examples=30, deadline=None)
@given(modules(), st.integers(0, 2**32))
def test_views_share_the_vectors_memory_and_do_not_overlap(module: nn.Module, seed: int) -> None:
    layout = Layout.of(module)
    vector = torch.randn(layout.size, generator=torch.Generator().manual_seed(seed))

    for number, view in enumerate(layout.views(vector).values()):
        view.fill_(float(number))

    owner = torch.full((layout.size,), -1.0)
    for number, (start, stop) in enumerate(pairwise(layout.offsets)):
        owner[start:stop] = number
    assert torch.equal(vector, owner)


def test_a_convolution_lies_in_channels_last_order() -> None:
    layout = Layout.of(nn.Conv2d(2, 3, 2, bias=False))

    weight = layout.views(torch.arange(24.0))["weight"]

    # entry (o, i, h, w) of channels_last memory lies at ((o·H + h)·W + w)·I + i
    expected = [[[[((o * 2 + h) * 2 + w) * 2 + i for w in (0, 1)] for h in (0, 1)] for i in (0, 1)] for o in (0, 1, 2)]
    assert weight.tolist() == expected
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_select_marks_the_entries_of_the_named_tensors() -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    vector = torch.zeros(layout.size)

    mask = layout.select(vector, frozenset({"0.bias", "1.running_var"}))

    # weight 6, bias 3, bn weight 3, bn bias 3, running mean 3, running var 3
    assert mask.nonzero().squeeze(1).tolist() == [6, 7, 8, 18, 19, 20]


def test_what_does_not_fit_is_refused_and_named() -> None:
    layout = Layout.of(nn.Linear(2, 3))
    with pytest.raises(FedfewError, match=r"E307 vector: has shape \(8,\), the model needs \(9,\)"):
        layout.views(torch.zeros(8))
    with pytest.raises(FedfewError, match=r"E307 model: .*bias"):
        layout.pack({"weight": torch.zeros(3, 2)})
    with pytest.raises(FedfewError, match=r"E307 weight: has shape \(2, 3\), not \(3, 2\)"):
        layout.pack({"weight": torch.zeros(2, 3), "bias": torch.zeros(3)})
