"""Device, precision and compilation of the model; a device or compiler that this machine lacks is an error."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal

import torch
from torch import nn

from fedfew.core.errors import FedfewError
from fedfew.core.settings import Doc

CPU = torch.device("cpu")
TRIED = "FEDFEW_BFLOAT16"
"""Set in the environment once bfloat16 has been tried with success."""
CRASHES = (-signal.SIGILL, -signal.SIGSEGV)
ONE_PRODUCT = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); assert (x @ x).min() == 64"


@dataclass(frozen=True)
class Engine:
    """What networks compute on and how. Vectors that are sent or stored are float32 in main memory."""

    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"], Doc("what networks compute on; auto: cuda or mps if available, else cpu")
    ] = "auto"
    autocast: Annotated[
        Literal["off", "bfloat16"],
        Doc("data type of forward passes where torch considers it safe; weights, gradients and losses stay float32"),
    ] = "off"
    compile: Annotated[bool, Doc("torch.compile the model; needs a C++ compiler on a CPU, Triton on cuda")] = False

    def on(self, device: Any) -> "Engine":
        """The same on another device, which may have a number, as in ``cuda:1``."""
        return replace(self, device=device)

    def chosen_device(self) -> torch.device:
        """The chosen device; E116 if this machine does not have it, E120 if it cannot compute in ``autocast``."""
        here = devices()
        name = here[0] if self.device == "auto" else self.device
        kind, _, number = name.partition(":")
        numbered = number.isdecimal() and int(number) < (torch.cuda.device_count() if kind == "cuda" else 2)
        if name not in here and not (kind in here and numbered):
            message = f"engine.device = {name!r}, but torch {torch.__version__} finds none on this machine"
            raise FedfewError("E116", "engine.device", message, f'Available: {", ".join(here)}; "auto" takes the first')
        if kind == "cpu" and self.autocast == "bfloat16" and crashes_in_bfloat16():
            raise FedfewError("E120", "engine.autocast", "a product of bfloat16 matrices ends the process here")
        return torch.device(name)


def devices() -> list[str]:
    """The available devices, fastest first."""
    known = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return [name for name, here in known.items() if here]


@cache
def crashes_in_bfloat16() -> bool:
    """Whether one product in bfloat16 ends a process: tried in a process of its own, and only on a CPU with AMX.

    Some virtual machines have AMX but hide the table of its tiles; oneDNN then executes illegal instructions. The
    processes that this one starts need not try again.
    """
    if TRIED in os.environ or not torch.cpu.get_capabilities().get("amx_tile"):
        return False
    trial = [sys.executable, "-c", ONE_PRODUCT]
    status = subprocess.run(trial, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode
    if status == 0:
        os.environ[TRIED] = "works"
    return status in CRASHES


def precision(engine: Engine, device: torch.device) -> AbstractContextManager[object]:
    """The autocast context of one forward pass; cast weights are not reused, because the next step changes them."""
    if engine.autocast == "off":
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, engine.autocast))


def compiled(module: nn.Module, example: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Compile the module and try it on a batch, so that a missing toolchain is reported at once (E117).

    The whole model must be one graph: where torch would silently fall back to eager mode, it raises instead. Sizes are
    symbolic, because the number of confident images differs from batch to batch.
    """
    fast: Callable[[torch.Tensor], torch.Tensor] = torch.compile(module, fullgraph=True, dynamic=True)
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            fast(example)
    except Exception as error:  # torch wraps compiler errors in its own types, which change between versions
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        beginning = " ".join(lines[:2])[:300]  # the first line often only says which part of torch raised
        message = f"torch.compile failed: {type(error).__name__}: {beginning}"
        raise FedfewError("E117", "engine.compile", message) from error
    finally:
        module.train(was_training)
    return fast
