"""Datasets on which no setting was chosen: the preset few-labels unchanged, against its bounds and SemiFL.

    python -m benchmarks.untouched fashion-mnist | clipart=FOLDER [--seeds 3] [--out runs/untouched]

``clipart`` takes the folder of PNG files by category that Debian's package openclipart-png installs
(/usr/share/openclipart/png): five categories of 316 to 614 drawings, on white, scaled to 64×64.
"""

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import fedfew

METHODS = ("server-only", "semifl", "fedmoments", "pooled")
SKEWS: dict[str, dict[str, Any]] = {
    "μ = 0.1": {"partition.kind": "dirichlet", "partition.mu": 0.1},
    "μ = 1": {"partition.kind": "dirichlet", "partition.mu": 1.0},
    "IID": {"partition.kind": "iid"},
}
FASHION: dict[str, Any] = {"dataset.name": "fashion-mnist"}
CLIPART: dict[str, Any] = {"dataset.name": "npz", "labels": 25, "clients": 20, "dataset.unlabeled": 1500}
CATEGORIES = ("animals", "food", "people", "recreation", "transportation")
SIDE = 64


def clipart(folder: Path, to: Path) -> Path:
    """The drawings as an NPZ file; a quarter of every category is test data."""
    parts: dict[str, list[Any]] = {name: [] for name in ("train_images", "train_labels", "test_images", "test_labels")}
    for label, category in enumerate(CATEGORIES):
        result = sorted((folder / category).rglob("*.png"))
        if not result:
            raise SystemExit(f"{folder / category} holds no PNG file")
        for index in np.random.default_rng(0).permutation(len(result)):
            if (image := _on_white(result[index])) is not None:
                part = "test" if len(parts["train_labels"] + parts["test_labels"]) % 4 == 0 else "train"
                parts[f"{part}_images"].append(image)
                parts[f"{part}_labels"].append(label)
    to.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {name: np.stack(values) for name, values in parts.items()}
    np.savez_compressed(to, **arrays, classes=np.array(CATEGORIES))
    return to


def _on_white(path: Path) -> NDArray[np.uint8] | None:
    """A drawing in the middle of a white square; None for a file that is not an image."""
    try:
        with Image.open(path) as opened:
            drawing = opened.convert("RGBA")
            drawing.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    square = Image.new("RGBA", (SIDE, SIDE), "white")
    square.alpha_composite(drawing, ((SIDE - drawing.width) // 2, (SIDE - drawing.height) // 2))
    return np.asarray(square.convert("RGB"))


def accuracy(changes: dict[str, Any], out: Path) -> float:
    """The accuracy of a run, which is made if it does not exist."""
    if not (out / "summary.json").is_file():
        fedfew.Experiment.load("few-labels", changes).run(out=out)
    value = fedfew.Run.open(out).summary["accuracy"]["last"]
    return float(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="fashion-mnist|clipart=FOLDER")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/untouched"))
    options = parser.parse_args()
    name, _, folder = options.data.partition("=")
    if name not in ("fashion-mnist", "clipart") or (name == "clipart") != bool(folder):
        parser.error(f"{options.data!r}: give fashion-mnist or clipart=FOLDER")
    base = FASHION if name == "fashion-mnist" else CLIPART
    if folder and not (file := options.out / "clipart.npz").is_file():
        clipart(Path(folder), file)
    base = base | ({"dataset.path": str(options.out / "clipart.npz")} if folder else {})
    table: dict[str, dict[str, list[float]]] = {}
    for seed in range(options.seeds):
        for skew, where in SKEWS.items():
            for method in METHODS:
                same = method in ("server-only", "pooled")  # bounds do not depend on the partition
                own = base | (SKEWS["IID"] if same else where)
                own |= {"method.name": method, "seed": seed, "dataset.seed": seed}
                out = options.out / "-".join([name, method, "any" if same else skew.replace(" = ", ""), f"s{seed}"])
                table.setdefault(skew, {}).setdefault(method, []).append(accuracy(own, out))
                print(skew, method, seed, table[skew][method][-1], flush=True)
    print(json.dumps({"data": name, "seeds": options.seeds, "accuracy": table}, ensure_ascii=False))
    print("| clients | " + " | ".join(METHODS) + " | gain |\n|" + "---|" * (len(METHODS) + 2))
    for skew, row in table.items():
        cells = [f"{100 * mean(v):.1f} %" + (f" ± {100 * stdev(v):.1f}" if len(v) > 1 else "") for v in row.values()]
        gain = mean(a - b for a, b in zip(row["fedmoments"], row["server-only"], strict=True))
        print(f"| {skew} | " + " | ".join(cells) + f" | {100 * gain:+.1f} |")


if __name__ == "__main__":
    main()
