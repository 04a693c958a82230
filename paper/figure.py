"""One figure with all that belongs to it: results, verdicts on the paper's claims, drawing and tables."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as Drawing

from fedfew.config.parts import federation_of
from fedfew.config.schema import load
from fedfew.config.tables import scaled
from fedfew.core.storage import write_atomically
from fedfew.data.shares import heterogeneity
from fedfew.interface.charts.printed import bubbles, save
from fedfew.studies.tables import as_csv
from paper import few_page
from paper.arms import FIG3, TITLES
from paper.claims import CLAIMS, partitions
from paper.drawing import draw
from paper.few import FEW, SITES
from paper.measures import Gain, Verdict, gain_sentence, gains
from paper.plan import ArmKey, Plan
from paper.results import Results, as_table, results
from paper.study import Request, Study

FIG3_LEVELS = (0.1, 1.0, 10.0)


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure as it can be made from the runs so far."""

    name: str
    request: Request
    verdicts: Sequence[Verdict]
    drawing: Drawing
    table: bytes
    """Its numbers as CSV."""
    results: Results = field(default_factory=dict)
    gains: Mapping[ArmKey, Gain] = field(default_factory=dict)

    @property
    def own_name(self) -> str:
        """A page may hold a figure at two scales: the one at the paper's size has files and a section of its own."""
        return f"{self.name}-full" if self.request.scale == "full" else self.name

    @property
    def title(self) -> str:
        return TITLES[self.name] + (", at full scale" if self.request.scale == "full" else "")

    @property
    def sentences(self) -> list[str]:
        """How every arm compares with server-only training."""
        return [gain_sentence(key, gain) for key, gain in self.gains.items()]

    def save(self, folder: Path) -> list[Path]:
        """Write the drawing as SVG and the numbers as CSV."""
        (drawing,) = save(self.drawing, folder / self.own_name, ("svg",))
        numbers = folder / f"{self.own_name}.csv"
        write_atomically(numbers, self.table)
        return [drawing, numbers]

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "figure": self.name,
            "claims": [asdict(verdict) for verdict in self.verdicts],
            "arms": [arm.row() for arm in self.results.values()],
            "against_server_only": self.sentences,
            "R": {mu: round(heterogeneity(np.array(table)), 4) for mu, table in self.request.partitions.items()},
        }


def make(name: str, request: Request, study: Study) -> Figure:
    """A figure from the runs so far."""
    if name == FIG3:
        return _partitions(request)
    arms = results(name, request, study)
    if name in (FEW, SITES):
        return Figure(name, request, CLAIMS[name](arms), few_page.draw(name, arms), few_page.as_table(arms), arms)
    return Figure(name, request, CLAIMS[name](arms), draw(name, arms), as_table(arms), arms, gains(arms))


def _partitions(request: Request) -> Figure:
    histograms = {mu: np.array(table, np.int64) for mu, table in request.partitions.items()}
    rows = [
        {"mu": mu, "client": client, "class": request.classes[kind], "images": int(count)}
        for mu, histogram in histograms.items()
        for client, row in enumerate(histogram)
        for kind, count in enumerate(row)
    ]
    drawing = bubbles({f"μ = {mu}": h for mu, h in histograms.items()}, request.classes)
    judged = partitions({float(mu): h for mu, h in histograms.items()})
    return Figure(FIG3, request, judged, drawing, as_csv(rows, ["mu", "client", "class", "images"]))


def request_partitions(plan: Plan, command: str) -> Request:
    """Figure 3: no run is needed, the partitions are made from their seed."""
    tables: dict[str, list[list[int]]] = {}
    classes: list[str] = []
    for mu in FIG3_LEVELS:
        own = {**plan.overrides, "partition.kind": "dirichlet", "partition.mu": mu}
        federation = federation_of(load(plan.preset, scaled(plan.preset, plan.scale, own)[0]))
        classes = list(federation.classes)
        tables[f"{mu:g}"] = federation.partition.histogram(federation.truth.numpy(), len(classes)).tolist()
    return Request(command, plan.scale, plan.seeds, partitions=tables, classes=classes)
