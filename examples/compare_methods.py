"""Do unlabeled clients help? Several methods on the same splits, over seeds, as a table and two figures.

    python examples/compare_methods.py --seeds 3 --out runs/example

The digits come with the package, so nothing is fetched. Runs that are finished are not repeated.
"""

import argparse
from pathlib import Path
from typing import Any

import fedfew

SHARED: dict[str, Any] = {"labels": 20, "partition.mu": 0.3, "method.warmup": 300}
"""Two labels of each digit, and clients of which most hold two or three kinds; the server trains 300 epochs before the
first round in all methods, so that they can be compared. All else is the preset `demo`."""
METHODS: dict[str, dict[str, Any]] = {
    "server-only": {},
    "fedavg": {"objective.name": "pseudo-label"},
    "semifl": {},
    "fedfew": {"method.steps": 30, "method.temperature": 1.5},
}
"""fedfew, this project's own, estimates each client's class mix as well."""


def main() -> None:
    """Run what is missing, then show what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="repeat with seeds 0, 1, …")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/compare-methods"))
    options = parser.parse_args()

    runs = {
        name: [run_once(options.out / f"{name}-{seed}", name, options.rounds, seed) for seed in range(options.seeds)]
        for name in METHODS
    }
    print(fedfew.compare([run for seeds in runs.values() for run in seeds], ["method"]))

    ours, *others = [seeds[0] for seeds in reversed(runs.values())]
    fedfew.plots.accuracy(ours, *others).savefig(options.out / "accuracy.png", dpi=150)
    fedfew.plots.pseudo_labels(ours).savefig(options.out / "pseudo-labels.png", dpi=150)
    print(f"figures in {options.out}; `fedfew report {options.out}` makes a page of it")


def run_once(out: Path, name: str, rounds: int, seed: int) -> fedfew.Run:
    """The run in a folder, made or finished if it is not there yet."""
    both = {"seed": seed, "dataset.seed": seed}  # another split for every seed, the same one for every method
    chosen = SHARED | {"method.name": name, "rounds": rounds} | METHODS[name] | both
    return fedfew.run("demo", chosen, out=out, if_exists="continue")


if __name__ == "__main__":
    main()
