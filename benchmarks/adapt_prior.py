"""Gains and costs of `fedfew predict --adapt-prior`: accuracy at skewed and unskewed sites, with and without it.

    python benchmarks/adapt_prior.py RUN [--mu 0.1,0.3,1,10] [--site 100] [--seed 0] [--json]

Takes a finished run on a simulated dataset, assigns its test images (not used in training or calibration) to
sites of ``--site`` images each, IID and by Dirichlet(μ), and predicts each site separately.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from fedfew.config.parts import federation_of
from fedfew.core.samples import LabeledSet
from fedfew.data.partitions import make_partition
from fedfew.data.shares import heterogeneity
from fedfew.inference.predict import adapt
from fedfew.runs.run import Run
from fedfew.training.label_shift import CONCENTRATION

Row = dict[str, float | str]


def measure(run: Run, mus: list[float], site: int, seed: int) -> list[Row]:
    """One row for each kind of sites: how skewed they are, and the accuracy without and with the estimate."""
    about = run.about_model()
    test = federation_of(run.config).test
    probabilities = run.network().probabilities(test.samples)
    sites = max(1, len(test) // site)
    rows = [_row("iid", probabilities, test, sites, seed, about, None)]
    rows += [_row(f"μ = {mu:g}", probabilities, test, sites, seed, about, mu) for mu in sorted(mus, reverse=True)]
    return rows


def _row(
    name: str,
    probabilities: Tensor,
    test: LabeledSet,
    sites: int,
    seed: int,
    about: dict[str, object],
    mu: float | None,
) -> Row:
    labels = test.labels.numpy()
    options = {} if mu is None else {"mu": mu}
    dealt = make_partition(labels, sites, "iid" if mu is None else "dirichlet", seed, options)
    plain_right = own_right = uncalibrated_right = loose_right = 0
    helped = hurt = 0
    for k in range(sites):
        index = torch.from_numpy(dealt.of(k))
        q, truth = probabilities[index], test.labels[index]

        def right(concentration: float = CONCENTRATION, q: Tensor = q, truth: Tensor = truth, **changes: object) -> int:
            return int((adapt(q, about | changes, concentration)[0].argmax(1) == truth).sum())

        plain, own = int((q.argmax(1) == truth).sum()), right()
        plain_right, own_right = plain_right + plain, own_right + own
        uncalibrated_right += right(temperature=1.0)
        loose_right += right(0.0)
        helped, hurt = helped + (own > plain), hurt + (own < plain)
    count = len(labels)
    histogram = dealt.histogram(labels, len(about["classes"]))  # type: ignore[arg-type]
    return {
        "sites": name,
        "R": round(heterogeneity(histogram), 3),
        "plain": round(plain_right / count, 4),
        "adapted": round(own_right / count, 4),
        "adapted, T = 1": round(uncalibrated_right / count, 4),
        "adapted, no hold": round(loose_right / count, 4),
        "sites better": round(helped / sites, 3),
        "sites worse": round(hurt / sites, 3),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Accuracy with and without --adapt-prior")
    parser.add_argument("run", type=Path)
    parser.add_argument("--mu", default="0.1,0.3,1,10")
    parser.add_argument("--site", type=int, default=100, help="images at a site")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    run = Run.open(arguments.run)
    rows = measure(run, [float(mu) for mu in arguments.mu.split(",")], arguments.site, arguments.seed)
    about = run.about_model()
    if arguments.json:
        sys.stdout.write(json.dumps({"temperature": about["temperature"], "rows": rows}, ensure_ascii=False) + "\n")
        return
    config = run.config
    print(f"{config.method_name} on {config.dataset.name}, {config.labels} labels, T = {about['temperature']}")
    print(" | ".join(rows[0]))
    for row in rows:
        print(" | ".join(str(value) for value in row.values()))


if __name__ == "__main__":
    main()
