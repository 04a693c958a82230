"""What bfloat16 saves on a CPU: `engine.autocast = "bfloat16"` beside float32, in turn, on one thread.

python -m benchmarks.performance.precision [--images N] [--repeats N] [--json] [--page docs/understand/performance.md]

ResNet-9 of widths 16 and 64, forward alone and forward with backward. It needs a processor that multiplies bfloat16 in
hardware (AVX-512 BF16 or AMX): the result says whether this one does.
"""

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from benchmarks.machine import median, progress
from benchmarks.performance.page import RAW, finish, quiet_machine, with_output
from torch.nn.functional import cross_entropy

from fedfew.core.engine import Engine
from fedfew.core.network import Network
from fedfew.data.samples import Images
from fedfew.models.resnet9 import resnet9
from fedfew.runs.session import one_thread

WIDTHS = (16, 64)
KINDS = ("off", "bfloat16")
FLAGS = ("avx512_bf16", "amx_bf16")


def network(width: int, autocast: Any) -> Network:
    """ResNet-9 with this engine, always the same weights."""
    torch.manual_seed(0)
    return Network.of(resnet9(3, 32, 10, width=width), Engine(device="cpu", autocast=autocast))


def seconds(bound: Network, images: torch.Tensor, backward: bool) -> float:
    """The time of one pass over the images."""
    begun = perf_counter()
    with torch.set_grad_enabled(backward):
        logits = bound(Images(images))
        if backward:
            bound.gradient.zero_()
            cross_entropy(logits, torch.zeros(len(images), dtype=torch.int64)).backward()
    return perf_counter() - begun


def measure(width: int, images: int, repeats: int) -> dict[str, Any]:
    """Milliseconds for an image in both types, taken in turn, and how much faster bfloat16 is."""
    batch = torch.randint(256, (images, 3, 32, 32), dtype=torch.uint8)
    bound = {kind: network(width, kind) for kind in KINDS}
    measured: dict[str, Any] = {"width": width, "images": images}
    for name, backward in (("forward", False), ("forward and backward", True)):
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for lap in range(repeats + 1):
            for kind in KINDS:
                took = seconds(bound[kind], batch, backward)
                times[kind] += [took] if lap else []  # the first lap allocates
        ms = {kind: 1000 * median(times[kind]) / images for kind in KINDS}
        measured[name] = {"float32": ms["off"], "bfloat16": ms["bfloat16"], "ratio": ms["off"] / ms["bfloat16"]}
        progress(f"width {width}, {name}: {measured[name]['ratio']:.2f} times as fast")
    return measured


def main() -> None:
    """Measure both widths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=RAW)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9)
    options = with_output(parser).parse_args()
    about, begun = quiet_machine(options), perf_counter()
    with one_thread():
        measured = [measure(width, options.images, options.repeats) for width in WIDTHS]
    minutes = (perf_counter() - begun) / 60
    found_in = [flag for flag in FLAGS if flag in Path("/proc/cpuinfo").read_text("utf-8").split()]
    result = {"machine": about, "networks": measured, "minutes": minutes, "bfloat16 in hardware": found_in}
    finish("precision", result, options)


if __name__ == "__main__":
    main()
