"""The frozen backbone beside onnxruntime: the same weights and images, one thread, in turn, CPU time.

python -m benchmarks.performance.backbone [--images N] [--repeats N] [--json] [--page docs/understand/performance.md]

onnxruntime gets the images in groups of eight, which suit it best here; fedfew takes 48 at once.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import onnxruntime
import torch
from benchmarks.machine import median, progress
from benchmarks.performance.page import RAW, finish, quiet_machine, with_output

from fedfew.models.backbones.efficientnet_lite0 import EfficientNetLite0
from fedfew.runs.session import one_thread

SIDES, GOAL, GROUP = (96, 224), 1.0, 8


def contestants(side: int, images: int, folder: Path) -> dict[str, Callable[[], object]]:
    """What computes the features of the same images."""
    torch.manual_seed(0)
    module = EfficientNetLite0().eval()
    batch, path = torch.randn(images, 3, side, side), folder / f"{side}.onnx"
    torch.onnx.export(module, (batch[:2],), path, dynamo=True, dynamic_shapes=({0: "images"},), verbose=False)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    name, groups = session.get_inputs()[0].name, [part.numpy() for part in batch.split(GROUP)]
    module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    last = batch.contiguous(memory_format=torch.channels_last)
    return {
        "fedfew": torch.inference_mode()(lambda: module(last)),
        "torch, layer by layer": torch.no_grad()(lambda: module(last)),
        "onnxruntime": lambda: [session.run(None, {name: group}) for group in groups],
    }


def measure(side: int, images: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of CPU for an image, and how they compare."""
    with tempfile.TemporaryDirectory() as folder:
        runs = contestants(side, images, Path(folder))
        times: dict[str, list[float]] = {name: [] for name in runs}
        for lap in range(repeats + 1):
            for name, run in runs.items():
                begun = process_time()
                run()
                times[name] += [process_time() - begun] if lap else []  # the first lap allocates
    ms = {name: 1000 * median(taken) / images for name, taken in times.items()}
    progress(f"{side} pixels: {ms}")
    return {"side": side, "images": images, "ms": ms}


def main() -> None:
    """Measure both sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=RAW)
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=9)
    options = with_output(parser).parse_args()
    about, begun = quiet_machine(options), perf_counter()
    with one_thread():
        sizes = [measure(side, options.images, options.repeats) for side in SIDES]
    targets = []
    for one in sizes:
        got = one["ms"]["onnxruntime"] / one["ms"]["fedfew"]
        targets.append({"what": f"backbone at {one['side']} pixels against onnxruntime, one core", "goal": GOAL,
                        "got": got, "met": got >= GOAL})  # fmt: skip
    minutes = (perf_counter() - begun) / 60
    finish("backbone", {"machine": about, "sizes": sizes, "targets": targets, "minutes": minutes}, options)


if __name__ == "__main__":
    main()
