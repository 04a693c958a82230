"""Accuracy of fedmoments against ε of a single image: noise on the sum over all sites, and at each site.

    python -m benchmarks.private_sums run [--seeds 110 111 112] [--draws 3]    a line of the CSV a run; may be repeated
    python -m benchmarks.private_sums page                                     table and figure of security.md

CIFAR-10 as in the preset few-labels: 40 labels, 11,000 images at the sites (Dirichlet 0.1), all 10,000 test images. The
sites' code, accounting, fixed point and noise are those of a run; masks are left out, because they cancel exactly in
the sum (tests/secure). With noise on the sum all sites stay, so it has √2 of the deviation that is accounted for.
"""

import argparse
import csv
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from fedfew.config.parts import Parts, assemble, sites_of
from fedfew.config.schema import load
from fedfew.config.sums import exchange_of
from fedfew.config.tree import Config
from fedfew.core.types import ClientUpdate, Trained
from fedfew.interface.charts.printed import save
from fedfew.runs.summary import privacy_of
from fedfew.runtime.rounds import run_rounds
from fedfew.runtime.site import InlineFleet
from fedfew.secure.exchange import SecureExchange, Sum
from fedfew.transforms import epsilon
from fedfew.transforms.discrete_gaussian import Words

DELTA = 1e-5
EPSILONS = (8.0, 3.0, 1.0)
SITES = (5, 10, 30, 100)
ANSWERS = 4
"""Releases of a site: the survey, and three steps of EM."""
KINDS = {
    "labels alone": {"method.name": "server-only"},
    "labels + names": {"method.name": "labels-names"},
    "open": {},
    "sum": {"privacy.sums": "secure"},
    "site": {},
}
PAGE = Path("docs/understand/security.md")
CELLS = PAGE.parent / PAGE.stem / "private-sums.csv"
BEGIN, END = "<!-- private sums: begin -->", "<!-- private sums: end -->"
Row = dict[str, Any]


def noise_for(budget: float, answers: int = ANSWERS) -> float:
    """The smallest z, to a thousandth, whose ε over so many answers is within the budget."""
    low, high = 0.01, 1000.0
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if epsilon({2 * middle: answers}, DELTA) > budget else (low, middle)
    return high


class Unmasked(SecureExchange):
    """Secure sums without their masks."""

    def collect(self, asked: Sum, clients: Iterable[int]) -> tuple[Words, tuple[int, ...]]:
        words, summed = np.zeros(1, np.uint64), []
        weights = dict(zip(asked.terms.sites, asked.terms.weights, strict=True))
        for update in asked.post.fleet.train(asked.post.round, dict.fromkeys(clients, asked.payload)):
            if isinstance(update, ClientUpdate):
                trained = Trained(dict(update.reply), update.metrics)
                words = words + asked.codec.encode(trained, asked.payload, weights[update.client], update.examples)
                summed.append(update.client)
        return words, tuple(sorted(summed))

    @staticmethod
    def of(config: Config) -> "Unmasked":
        secure = exchange_of(config)
        return Unmasked(secure.rules, secure.identity, secure.weigh)


def settings(kind: str, budget: float, sites: int, seed: int) -> Config:
    """The config of a cell; a budget of 0: no noise."""
    chosen = KINDS[kind] | {"seed": seed, "clients": sites, "fleet.kind": "inline", "privacy.delta": DELTA}
    if budget:
        chosen |= {"privacy.unit": "image", "privacy.noise": noise_for(budget)}
    return load("few-labels", chosen)


def accuracy(config: Config, parts: Parts, start: Tensor) -> tuple[float, float]:
    """Accuracy in per cent at the end of a run on these data from this model, and the ε that the run reports.

    The network of ``parts`` is the runs' common workspace: after one run it holds that run's model.
    """
    secure = config.privacy.sums == "secure"
    exchange = Unmasked.of(config) if secure else None
    clients = replace(parts.clients, transforms=config.transforms, exchange=exchange)
    sites = replace(sites_of(config, parts.federation, parts.network), sums=None)
    begun = config.method.start(start)
    rounds = list(run_rounds(clients, config.method, parts.server, InlineFleet(sites), begun, config.rounds))
    spent = privacy_of([record for _, record in rounds], config.privacy)
    return 100 * float(rounds[-1][1]["accuracy"] or 0.0), float(spent["epsilon"]) if spent else 0.0


def run(seeds: list[int], draws: int) -> None:
    """Every cell that is not in the CSV yet."""
    done = Counter((row["sites"], row["kind"], row["budget"], row["seed"]) for row in rows())
    for seed in seeds:
        for sites in SITES:
            cells = [("labels alone", 0.0), ("labels + names", 0.0), ("open", 0.0), ("sum", 0.0)]
            cells += [(kind, budget) for kind in ("sum", "site") for budget in EPSILONS]
            left = []
            for kind, budget in cells:
                made = done[str(sites), kind, f"{budget:g}", str(seed)]
                left += [(kind, budget)] * ((draws if budget else 1) - made)
            if not left:
                continue
            parts = assemble(settings("open", 0.0, sites, seed))
            start = parts.network.snapshot()
            for kind, budget in left:
                found, spent = accuracy(settings(kind, budget, sites, seed), parts, start)
                values = [sites, kind, f"{budget:g}", seed, f"{found:.2f}", f"{spent:.4g}"]
                print(*values, flush=True)
                new = not CELLS.exists()
                with CELLS.open("a", newline="") as file:
                    table = csv.writer(file)
                    table.writerows([["sites", "kind", "budget", "seed", "accuracy", "epsilon"]] * new + [values])


def rows() -> list[Row]:
    if not CELLS.exists():
        return []
    with CELLS.open(newline="") as file:
        return list(csv.DictReader(file))


def values_of(table: list[Row], sites: int, kind: str, budget: float = 0.0) -> list[float]:
    """The accuracies of a cell, by seed: means over the draws of noise."""
    chosen = [r for r in table if (r["sites"], r["kind"], r["budget"]) == (str(sites), kind, f"{budget:g}")]
    seeds = sorted({int(r["seed"]) for r in chosen})
    return [mean(float(r["accuracy"]) for r in chosen if r["seed"] == str(seed)) for seed in seeds]


def page() -> None:
    """Write table and figure."""
    table, columns = rows(), [("sum", 0.0), *(("sum", e) for e in EPSILONS), *(("site", e) for e in EPSILONS)]
    head = ["sites", "open, no noise", "sum, no noise", *(f"sum, ε = {e:g}" for e in EPSILONS)]
    lines = [head + [f"each site, ε = {e:g}" for e in EPSILONS], ["---"] * (3 + 2 * len(EPSILONS))]
    for sites in SITES:
        cells = [str(sites), _told(values_of(table, sites, "open"))]
        lines.append([*cells, *(_told(values_of(table, sites, *column)) for column in columns)])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    alone, named = (_told(values_of(table, SITES[0], kind)) for kind in ("labels alone", "labels + names"))
    text = f"Labels alone: {alone}; labels and class names: {named}.\n\n{text}"
    content = PAGE.read_text("utf-8")
    before, rest = content.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}", "utf-8")
    with rc_context({"svg.fonttype": "none"}):
        save(figure(table), PAGE.parent / PAGE.stem / "private-sums", ("svg",))


def _told(values: list[float]) -> str:
    return f"{mean(values):.1f} ({', '.join(f'{v:.1f}' for v in values)})" if values else "–"


def figure(table: list[Row]) -> Figure:
    """Gain over the labels alone against ε: noise on the sum, and at each site."""
    drawn = Figure(figsize=(8, 3.2), layout="constrained")
    axes = drawn.subplots(1, 2, sharey=True)
    budgets = [*EPSILONS[::-1], 0.0]
    for panel, kind, title in zip(axes, ("sum", "site"), ("noise on the sum", "noise at each site"), strict=True):
        for sites in SITES:
            alone = values_of(table, sites, "labels alone")
            quiet = "open" if kind == "site" else kind
            gains = [mean(values_of(table, sites, kind if e else quiet, e)) - mean(alone) for e in budgets]
            panel.plot(range(len(budgets)), gains, marker="o", label=f"{sites} sites")
        panel.set_xticks(range(len(budgets)), [f"{e:g}" if e else "∞" for e in budgets])
        panel.set_xlabel("ε of one image (δ = 10⁻⁵)")
        panel.set_title(title)
        panel.axhline(0.0, color="grey", linewidth=0.8)
    axes[0].set_ylabel("points over labels alone")
    axes[0].legend(frameon=False)
    return drawn


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--seeds", type=int, nargs="*", default=[110, 111, 112])
    parser.add_argument("--draws", type=int, default=3, help="draws of noise for each cell and seed (default: 3)")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    run(chosen.seeds, chosen.draws) if chosen.what == "run" else page()
