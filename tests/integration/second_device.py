"""A second device that keeps its numbers on the CPU, and tiny runs of every method on it.

Machines that run the tests have no accelerator. What can go wrong on one besides speed is a tensor in the wrong place:
torch refuses to add tensors of two devices, NumPy refuses those of another. This device refuses the same, through
torch's own dispatch, while the arithmetic below is the CPU's: so the models must agree but for the order of sums.
``python -m tests.integration.second_device`` prints, as JSON, what became of each method.
"""

import json
import sys
from typing import Any

import torch
from tests.runtime.tiny_run import CASES, SMALL, few_fits, play, tiny
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fedfew.config.parts import assemble, local_fleet
from fedfew.core import engine
from fedfew.core.network import Network
from fedfew.runs.session import one_thread
from fedfew.runtime.record import left_out
from fedfew.runtime.site import InlineFleet

backend_registration._setup_privateuseone_for_python_backend("elsewhere")
torch.inference_mode = torch.no_grad  # type: ignore[misc, assignment]  # a tensor made in Python cannot be a view in that mode
THERE = torch.device("elsewhere:0")
aten = torch.ops.aten
CROSSING = (aten._to_copy, aten.copy_)
ONE_BATCH = {"client__batch": 20, "server__batch": 20}
"""Every operation takes as long as its way through Python, whatever it works on."""
INDEXING = (aten.index, aten.index_put, aten.index_put_)


class Remote(Tensor):
    """A tensor of the second device; ``numbers`` holds its numbers."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Remote":
        made: Remote = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=THERE,
        )  # fmt: skip
        made.numbers = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return compute(func, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """Makes what is asked for on the second device, too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The operation on the CPU's numbers, unless it mixes devices in a way that accelerators refuse."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    remote = any(isinstance(t, Remote) for t in tensors)
    packet = func.overloadpacket
    if remote and packet not in CROSSING:
        indices = (torch.int64, torch.bool) if packet in INDEXING else ()
        astray = [t for t in tensors if not isinstance(t, Remote) and t.ndim and t.dtype not in indices]
        if astray:
            raise RuntimeError(f"{func}: expected all tensors on {THERE}, found {[tuple(t.shape) for t in astray]}")
    asked = kwargs.get("device")
    if asked is not None:
        remote, kwargs = torch.device(asked).type == THERE.type, kwargs | {"device": torch.device("cpu")}
    inner_args, inner_kwargs = tree_map(lambda x: x.numbers if isinstance(x, Remote) else x, (args, kwargs))
    out = func(*inner_args, **inner_kwargs)
    first = func._schema.arguments[:1]
    if first and first[0].alias_info is not None and first[0].alias_info.is_write:
        return args[0]
    return tree_map(lambda x: Remote(x) if remote and isinstance(x, Tensor) else x, out)


def tie(network: Network) -> None:
    """Do for tensors made in Python what torch does for others: ``.data = `` shares numbers, gradients add in place."""
    views, slopes = network.layout.views(network.vector), network.layout.views(network.gradient)
    for name, tensor in (*network.module.named_parameters(), *network.module.named_buffers()):
        if isinstance(tensor, Remote) and name in views:
            tensor.numbers = getattr(views[name], "numbers")  # noqa: B009 - a view of a Remote is one, unknown to mypy
    for name, parameter in network.module.named_parameters():

        def bring_back(updated: Tensor, slope: Tensor = slopes[name]) -> None:
            assert updated.grad is not None
            if updated.grad is not slope:
                updated.grad = slope.copy_(updated.grad)

        parameter.register_post_accumulate_grad_hook(bring_back)


def outcome(case: str, device: torch.device) -> tuple[Tensor, dict[str, Any]]:
    """What two rounds leave: the model, who was left out, and how much the clients moved."""
    engine.devices = lambda: [str(device)]  # "auto" takes the first
    clients = {"participation": 0.34} if case.startswith("objective ") else {}
    parts = assemble(tiny(**SMALL | ONE_BATCH | clients | CASES[case]))
    fleet = local_fleet(parts)
    assert isinstance(fleet, InlineFleet)
    for place in (parts.network.device, parts.server.labeled.samples.data.device, fleet.sites.samples.data.device):
        assert place == device
    if device == THERE:
        tie(parts.network)
    rounds = play(parts, fleet, 2)
    moved = sum(update.get("norm", 1.0) or 0.0 for _, record in rounds for update in record["updates"])
    return rounds[-1][0].omega, {"rejected": [left_out(record) for _, record in rounds], "moved": moved}


def refuses_mixtures() -> bool:
    """Whether the device notices what it is here to notice."""
    there = torch.ones(3).to(THERE)
    try:
        there.add_(torch.ones(3))
    except RuntimeError as error:
        return "expected all tensors on" in str(error)
    return False


def main(names: list[str]) -> None:
    """Each case on both devices: how far apart the models are, relative to their norm."""
    found: dict[str, Any] = {}
    few_fits()
    with one_thread():
        for name in names or CASES:
            here, about = outcome(name, torch.device("cpu"))
            with SecondDevice():
                assert refuses_mixtures()
                there, told = outcome(name, THERE)
            apart = float((here - there).norm() / here.norm())
            found[name] = {"apart": apart, "moved": about["moved"], "rejected": [about["rejected"], told["rejected"]]}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
