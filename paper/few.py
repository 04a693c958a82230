"""The few-labels study: its settings, and the rows of each; what unlabeled images at sites are worth on a backbone.

Every setting is the base (CIFAR-10 at 96 pixels, 40 labels, 11,000 images at 100 clients, μ = 0.1) with one thing
changed, or another dataset. Labels, clients, model and cohorts are drawn anew with each seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paper.arms import ALL_LABELS, POOLED, SERVER_ONLY, Arm, Overrides

PRESET = FEW = "few-labels"
SITES = "sites"
OURS, NAMES, SPREAD, VIEWS = "fedmoments", "labels + names", "label propagation", "server-only, scanner-like views"
SEMIFL, FL2, FEDMIX, FEDMATCH = "SemiFL", "(FL)²", "FedMix", "FedMatch"
SEVERAL: Overrides = {"model.views": 4}
"""Methods that compare views need several of each image."""
ROWS: dict[str, Overrides] = {
    OURS: {"method.name": "fedmoments"},
    SERVER_ONLY: {"method.name": "server-only"},
    NAMES: {"method.name": "labels-names", "rounds": 1},
    SPREAD: {"method.name": "benchmarks.study_methods:PROPAGATION", "rounds": 1},
    SEMIFL: {"method.name": "semifl", **SEVERAL},
    FL2: {"method.name": "fl2", **SEVERAL},
    ALL_LABELS: {"method.name": "all-labels"},
    POOLED: {"method.name": "pooled"},
}
STEPS: dict[str, float] = {SEMIFL: 0.005, FL2: 0.005, ALL_LABELS: 2.0}
"""Clients' step sizes: the best of some on seeds 50 and 51, see ``research-log.md``."""
BOUNDS = (SERVER_ONLY, NAMES, SPREAD, POOLED, VIEWS)
"""Rows that do not depend on who holds which image: one run serves all partitions."""
WORST = "μ = 0.1"
SKEWS: dict[str, tuple[float, Overrides]] = {
    "shards": (0.03, {"partition.kind": "shards"}),
    WORST: (0.1, {"partition.kind": "dirichlet", "partition.mu": 0.1}),
    "μ = 0.3": (0.3, {"partition.kind": "dirichlet", "partition.mu": 0.3}),
    "μ = 1": (1.0, {"partition.kind": "dirichlet", "partition.mu": 1.0}),
    "IID": (10.0, {"partition.kind": "iid"}),
}
FEW_LABELS = (40, 100, 250, 1000)
PLAIN = (OURS, SERVER_ONLY, NAMES, SPREAD, POOLED)
SHORT = (OURS, SERVER_ONLY)


@dataclass(frozen=True)
class Setting:
    """One line of a table: what is changed, and which rows are run."""

    title: str
    changes: Overrides = field(default_factory=dict)
    rows: Sequence[str] = SHORT
    skew: str = WORST
    x: float | None = None
    extra: Mapping[str, Overrides] = field(default_factory=dict)
    """Further rows of this setting alone."""

    def arms(self) -> list[Arm]:
        own_sites = "dataset.draw" in self.changes or str(self.changes.get("dataset.name", "")) in OWN_SITES
        arms = []
        for row in (*self.rows, *self.extra):
            where = SKEWS[WORST if row in BOUNDS else self.skew][1]
            own = {**self.changes, **(self.extra[row] if row in self.extra else ROWS[row])}
            if row in BOUNDS and not own_sites:
                own.pop("clients", None)
            if row == VIEWS:
                own["labels"] = own.get("labels", 40) * (1 + CHANGES)
            recipe = {"client.lr": STEPS[row]} if row in STEPS else {}
            own = {**({} if own_sites else where), **own, "fleet.kind": "inline"}
            arms.append(Arm(self.title, row, own, recipe, self.x, PRESET, own_sites))
        return arms


CHANGES = 21
"""Scanner-like changes under which the labels are seen in the row ``VIEWS``."""
SCANNERS, ANIMALS = "benchmarks.scanners:sites", "benchmarks.odd_sites:animals"
OWN_SITES = (SCANNERS, ANIMALS)


def few_labels() -> list[Setting]:
    """Accuracy against labels at μ = 0.1, and against μ with 40 labels."""
    by_labels = [
        Setting(f"{n} labels", {"labels": n}, (*PLAIN, *COMPARED) if n == FEW_LABELS[0] else PLAIN, x=n)
        for n in FEW_LABELS
    ]
    by_skew = [
        Setting(skew, {}, (*PLAIN, *COMPARED) if skew in (WORST, "IID") else PLAIN, skew, x)
        for skew, (x, _) in SKEWS.items()
    ]
    return by_labels + by_skew


COMPARED = (SEMIFL, FL2, ALL_LABELS)


def _xrays(labels: int, sites: int) -> dict[str, Any]:
    return {"dataset.name": "benchmarks.packaged:xrays", "dataset.unlabeled": 0, "labels": labels, "clients": sites}


def _scanned(mu: float, strength: str = "strong", odd: int = -1, **more: Any) -> dict[str, Any]:
    own = {"strength": strength, "odd": odd, "mu": mu} | more
    return {"dataset.name": SCANNERS, "dataset.unlabeled": 0} | {f"dataset.{key}": value for key, value in own.items()}


def _scanned_xrays(mu: float, odd: int = -1) -> dict[str, Any]:
    return _scanned(mu, odd=odd, of="benchmarks.packaged:xrays", labels=20) | {"labels": 20}


SEEN: dict[str, Overrides] = {VIEWS: {"method.name": "server-only", "dataset.views": CHANGES}}
ALIKE = 1000.0
"""μ of sites that are alike, where the dataset divides its images itself."""
CLIPART: Overrides = {
    "dataset.name": "benchmarks.packaged:clipart",
    "dataset.unlabeled": 0,
    "labels": 25,
    "clients": 20,
}
SOLAR: Overrides = {"dataset.name": "benchmarks.packaged:solar", "dataset.unlabeled": 0, "clients": 10}
FASHION: Overrides = {"dataset.name": "fashion-mnist"}
LARGE: Overrides = {"model.size": 224}
TAIL: Overrides = {"dataset.name": "benchmarks.odd_sites:long_tailed"}


def _outage(share: float) -> dict[str, Overrides]:
    return {OURS: {"method.name": "benchmarks.study_methods:OUTAGE", "method.away": share, "method.since": 1}}


def _ablated(**settings: Any) -> dict[str, Overrides]:
    own = {f"method.{key}": value for key, value in settings.items()}
    return {OURS: {"method.name": "benchmarks.study_methods:ABLATED", **own}}


def _animals(share: float) -> dict[str, Any]:
    return {"dataset.name": ANIMALS, "dataset.unlabeled": 0, "labels": 24, "dataset.share": share}


SETTINGS: dict[str, list[Setting]] = {
    "Chest X-rays": [
        Setting("20 labels, 10 sites, μ = 0.3", _xrays(20, 10), PLAIN, "μ = 0.3"),
        Setting("20 labels, 10 sites, alike", _xrays(20, 10), PLAIN, "IID"),
        Setting("20 labels, 5 sites, μ = 0.3", _xrays(20, 5), PLAIN, "μ = 0.3"),
        Setting("20 labels, 5 sites, alike", _xrays(20, 5), PLAIN, "IID"),
        Setting("40 labels, 10 sites, μ = 0.3", _xrays(40, 10), PLAIN, "μ = 0.3"),
        Setting("40 labels, 10 sites, alike", _xrays(40, 10), PLAIN, "IID"),
        Setting("20 labels, ten strong scanners, μ = 0.3", _scanned_xrays(0.3), extra=SEEN),
        Setting("20 labels, ten strong scanners, alike", _scanned_xrays(ALIKE), extra=SEEN),
        Setting("20 labels, two of ten odd, μ = 0.3", _scanned_xrays(0.3, 2)),
    ],
    "Drawings, solar cells, clothing": [
        Setting("drawings, 25 labels, μ = 0.1", CLIPART, PLAIN),
        Setting("drawings, 25 labels, μ = 1", CLIPART, PLAIN, "μ = 1"),
        Setting("drawings, 25 labels, alike", CLIPART, PLAIN, "IID"),
        Setting("solar cells, 40 labels, μ = 0.3", SOLAR, PLAIN, "μ = 0.3"),
        Setting("solar cells, 40 labels, alike", SOLAR, PLAIN, "IID"),
        Setting("clothing, 40 labels, μ = 0.1", FASHION, PLAIN),
        Setting("clothing, 40 labels, μ = 1", FASHION, PLAIN, "μ = 1"),
        Setting("clothing, 40 labels, alike", FASHION, PLAIN, "IID"),
    ],
    "Scanners (CIFAR-10, ten sites, 3,000 images)": [
        Setting("no scanners, μ = 0.3", _scanned(0.3, odd=0)),
        Setting("no scanners, alike", _scanned(ALIKE, odd=0)),
        Setting("ten mild, μ = 0.3", _scanned(0.3, "mild"), extra=SEEN),
        Setting("ten strong, μ = 0.3", _scanned(0.3), (*SHORT, POOLED), extra=SEEN),
        Setting("ten strong, alike", _scanned(ALIKE), extra=SEEN),
        Setting("two of ten odd, μ = 0.3", _scanned(0.3, odd=2), extra=SEEN),
        Setting("two of ten odd, alike", _scanned(ALIKE, odd=2), extra=SEEN),
    ],
    "Larger images, fewer clients, outages, other classes (CIFAR-10)": [
        Setting("224 pixels, μ = 0.1", LARGE),
        Setting("224 pixels, alike", LARGE, skew="IID"),
        Setting("10 clients, μ = 0.1", {"clients": 10}),
        Setting("5 clients, μ = 0.1", {"clients": 5}),
        Setting("10 clients, alike", {"clients": 10}, skew="IID"),
        Setting("30 % of 100 clients gone after a step", rows=(SERVER_ONLY,), extra=_outage(0.3)),
        Setting("60 % of 100 clients gone after a step", rows=(SERVER_ONLY,), extra=_outage(0.6)),
        Setting("60 % of 10 clients gone after a step", {"clients": 10}, (SERVER_ONLY,), extra=_outage(0.6)),
        Setting("long-tailed 10:1, μ = 0.1", TAIL),
        Setting("long-tailed 10:1, alike", TAIL, skew="IID"),
        Setting("animals, 0 % of no class", _animals(0.0)),
        Setting("animals, 20 % of no class", _animals(0.2)),
    ],
    "Parts of fedmoments left out (CIFAR-10, 100 clients, μ = 0.1 unless said)": [
        Setting("nothing left out", rows=SHORT),
        Setting("one step of EM", rows=(SERVER_ONLY,), extra=_ablated(most_steps=1)),
        Setting("no class mix of a client", rows=(SERVER_ONLY,), extra=_ablated(class_mix=False)),
        Setting("no prior from the clients' spread", rows=(SERVER_ONLY,), extra=_ablated(client_spread=False)),
        Setting("neither", rows=(SERVER_ONLY,), extra=_ablated(class_mix=False, client_spread=False)),
        Setting("class names not used", rows=(SERVER_ONLY,), extra=_ablated(names=False)),
        Setting("alike clients: nothing left out", skew="IID"),
        Setting("alike clients: class names not used", skew="IID", rows=(SERVER_ONLY,), extra=_ablated(names=False)),
    ],
}  # fmt: skip
"""The settings of the second figure, by table; in the order in which they are published."""
