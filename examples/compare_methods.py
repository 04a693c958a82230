"""Do unlabeled clients help? Several methods on the same splits, over seeds, as a table and two figures.

    python examples/compare_methods.py --seeds 3 --out runs/example

The digits come with the package, so nothing is fetched. Runs that are finished are not repeated.
"""

import argparse
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import fedfew

METHODS: dict[str, dict[str, Any]] = {
    "server-only": {"method.name": "server-only"},
    "fedavg": {"method.name": "fedavg", "objective.name": "pseudo-label"},
    "fedmix": {"method.name": "fedmix"},
    "fedmix-em": {"method.name": "fedmix", "vote.prior": "em"},
}


def main() -> None:
    """Run what is missing, then show what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2, help="repeat with seeds 0, 1, …")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/compare-methods"))
    given = parser.parse_args()

    runs = {
        name: [run_once(given.out / f"{name}-{seed}", chosen, given.rounds, seed) for seed in range(given.seeds)]
        for name, chosen in METHODS.items()
    }
    base = [accuracy(run) for run in runs["server-only"]]
    print(f"{'method':14}{'accuracy':>18}{'against server-only':>22}{'MB up':>9}")
    for name, found in runs.items():
        reached = [accuracy(run) for run in found]
        gains = [100 * (own - bound) for own, bound in zip(reached, base, strict=True)]  # paired: same seed, same split
        traffic = mean(run.summary["bytes_up"] for run in found) / 1e6
        print(f"{name:14}{spread([100 * a for a in reached], '%'):>18}{spread(gains, 'points'):>22}{traffic:9.1f}")

    first = [found[0] for found in runs.values()]
    fedfew.plots.accuracy(first[-1], *first[:-1]).savefig(given.out / "accuracy.png", dpi=150)
    fedfew.plots.pseudo_labels(first[-1]).savefig(given.out / "pseudo-labels.png", dpi=150)
    print(f"figures in {given.out}; `fedfew compare {given.out}` has the intervals")


def run_once(out: Path, chosen: dict[str, Any], rounds: int, seed: int) -> fedfew.Run:
    """The run in a folder, made if it is not there yet."""
    if (out / "summary.json").is_file():
        return fedfew.Run.open(out)
    both = {"seed": seed, "dataset.seed": seed}  # another split for every seed, the same one for every method
    return fedfew.Experiment.load("quick", chosen | both | {"rounds": rounds, "partition.mu": 0.3}).run(out)


def accuracy(run: fedfew.Run) -> float:
    """The mean of the last ten rounds, so that no lucky round counts."""
    return float(run.summary["accuracy"]["mean_last_10"])


def spread(values: list[float], unit: str) -> str:
    """Mean ± standard deviation."""
    shown = f"{mean(values):.1f}"
    return f"{shown} ± {stdev(values):.1f} {unit}" if len(values) > 1 else f"{shown} {unit}"


if __name__ == "__main__":
    main()
