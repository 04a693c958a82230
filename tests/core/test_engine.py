"""Device, precision and compilation of a network: what is not there is refused, and what is there computes the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedfew.core import engine
from fedfew.core.engine import Engine, devices
from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.data.samples import Images

SHAPE = (1, 8, 8)
CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
quietly = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch itself deprecates


def seeded_module() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 4))


def network_with(**settings: object) -> Network:
    example = Images(torch.zeros(1, *SHAPE, dtype=torch.uint8))
    return Network.of(seeded_module(), Engine(**settings), example)  # type: ignore[arg-type]


def a_batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(count)
    images = torch.randint(0, 256, (count, *SHAPE), dtype=torch.uint8, generator=rng)
    return images, torch.randint(0, 4, (count,), generator=rng)


def slope(network: Network, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The gradient of the cross-entropy, as a copy."""
    network.gradient.zero_()
    cross_entropy(network(Images(images)), labels).backward()
    return network.gradient.clone()


def test_auto_takes_the_first_of_what_is_here() -> None:
    here = devices()
    assert here[-1] == "cpu"
    assert Engine().chosen_device() == torch.device(here[0])
    assert Engine(device="cpu").chosen_device() == torch.device("cpu")


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_a_device_that_is_not_here_is_refused_with_what_is(device: str) -> None:
    if device in devices():
        pytest.skip(f"there is {device} here")
    with pytest.raises(FedfewError, match=rf"E116 engine\.device: engine\.device = '{device}'") as caught:
        network_with(device=device)
    assert "cpu" in caught.value.remedy


def test_autocast_computes_in_bfloat16_and_keeps_everything_else_in_float32() -> None:
    plain, cast = network_with(device="cpu"), network_with(device="cpu", autocast="bfloat16")
    seen: list[torch.dtype] = []
    cast.module[0].register_forward_hook(lambda *call: seen.append(call[2].dtype))  # type: ignore[index]
    images, labels = a_batch(16)

    close, exact = slope(cast, images, labels), slope(plain, images, labels)

    assert seen == [torch.bfloat16]
    assert cast(Images(images)).dtype == cast.vector.dtype == cast.gradient.dtype == torch.float32
    assert cast.outputs_of(cast.vector.detach().clone(), Images(images)).dtype == torch.float32
    # bfloat16 has 8 bits: each of a few roundings on the way errs by up to 2⁻⁹ of a value
    assert 0 < float((close - exact).norm() / exact.norm()) < 2**-5


def test_autocast_sees_the_weights_of_every_step() -> None:
    """Casts of the weights are kept within a pass only; else the second pass would use those of the first."""
    network = network_with(device="cpu", autocast="bfloat16")
    images, _ = a_batch(4)
    before = network(Images(images))
    with torch.no_grad():
        network.vector.mul_(2)
    assert not torch.allclose(before, network(Images(images)))


@quietly
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler")
def test_a_compiled_network_computes_the_same_for_batches_of_any_size() -> None:
    plain, fast = network_with(device="cpu"), network_with(device="cpu", compile=True)
    for count in (16, 5):
        batch = a_batch(count)
        torch.testing.assert_close(slope(fast, *batch), slope(plain, *batch), rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            for network in (fast, plain):
                network.vector.add_(network.gradient, alpha=-0.1)
    assert not torch.equal(fast.vector, network_with(device="cpu").vector)


@pytest.mark.slow
def test_a_missing_compiler_is_told_and_nothing_goes_on_without_it(tmp_path: Path) -> None:
    script = (
        "from tests.core.test_engine import network_with\n"
        "from fedfew.core.errors import FedfewError\n"
        "try:\n    network_with(device='cpu', compile=True)\n"
        "except FedfewError as error:\n    print(error.code, error.message)\n"
    )
    without = {"CXX": "/nowhere/c++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ | without
    )
    assert done.stdout.startswith("E117 torch.compile failed: "), done.stderr


@quietly
def test_a_model_that_cannot_be_one_graph_is_refused() -> None:
    class Branching(nn.Module):
        """Looks at its numbers, which a compiled graph cannot."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = seeded_module()

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.inner(images)
            return logits if bool(logits.sum() > 0) else -logits

    with pytest.raises(FedfewError, match=r"E117 engine\.compile: torch\.compile failed"):
        Network.of(Branching(), Engine(device="cpu", compile=True), Images(torch.zeros(1, *SHAPE, dtype=torch.uint8)))


def test_a_machine_on_which_bfloat16_crashes_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    engine.crashes_in_bfloat16.cache_clear()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": True})
    monkeypatch.setattr(engine, "ONE_PRODUCT", CRASH)
    monkeypatch.delenv(engine.TRIED, raising=False)
    try:
        with pytest.raises(FedfewError, match=r"E120 engine\.autocast") as caught:
            network_with(device="cpu", autocast="bfloat16")
        assert "ONEDNN_MAX_CPU_ISA" in caught.value.remedy
        network_with(device="cpu")  # float32 needs no trial
    finally:
        engine.crashes_in_bfloat16.cache_clear()


@pytest.mark.parametrize(
    ("amx", "trial", "tried", "crashes"),
    [
        (False, CRASH, "", False),  # without AMX nothing is tried
        (True, CRASH, "", True),
        (True, "import os; os.abort()", "", False),  # another end, such as a lack of memory, is not this one
        (True, "print()", "works", False),
    ],
)
def test_bfloat16_is_tried_once_and_only_with_amx(
    monkeypatch: pytest.MonkeyPatch, amx: bool, trial: str, tried: str, crashes: bool
) -> None:
    engine.crashes_in_bfloat16.cache_clear()
    monkeypatch.setenv(engine.TRIED, "")
    monkeypatch.delenv(engine.TRIED)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_tile": amx})
    monkeypatch.setattr(engine, "ONE_PRODUCT", trial)
    assert engine.crashes_in_bfloat16() == crashes
    assert os.environ.get(engine.TRIED, "") == tried
    engine.crashes_in_bfloat16.cache_clear()
    monkeypatch.setattr(engine, "ONE_PRODUCT", CRASH)
    assert engine.crashes_in_bfloat16() == (crashes or (amx and not tried)), "a process that it starts need not try"
    engine.crashes_in_bfloat16.cache_clear()
