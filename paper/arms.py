"""The arms of each figure: what every curve and point is a run of."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

Overrides = Mapping[str, Any]
IID, NON_IID = "IID", "non-IID"
PANELS: dict[str, Overrides] = {IID: {"partition.kind": "iid"}, NON_IID: {"partition.kind": "dirichlet"}}
BEST = (0.5, 0.3, 0.2)
EQUAL = (0.34, 0.33, 0.33)
MIXES = ((0.6, 0.3, 0.1), BEST, EQUAL, (0.3, 0.5, 0.2), (0.1, 0.3, 0.6))
"""(α, β, γ) of Figure 5. The paper names the second alone; around it α falls while β stays near 0.3, one is nearly
equal ("when these three parameters are relatively close"), and one gives the server's model the most."""
MIX_KEYS = ("method.alpha", "method.beta", "method.gamma")
LEVELS = (0.1, 1.0, 10.0, 100.0)
LABELS = (700, 800, 900, 1000)
SERVER_ONLY, ALL_LABELS, POOLED = "server-only", "FedAvg with true labels", "pooled"


@dataclass(frozen=True)
class Arm:
    """One curve of a figure."""

    panel: str
    label: str
    overrides: Overrides
    """The settings that define the arm; nothing overrides them."""
    recipe: Overrides = field(default_factory=dict)
    """Settings of a method that the preset does not have; ``--set`` may change them."""
    x: float | None = None
    """Its position if the figure has an axis: μ or N_s."""
    preset: str = ""
    """The preset that its runs start from, whatever the plan's is."""
    draws: bool = False
    """Whether the dataset divides its images itself, by the seed ``dataset.draw``."""

    @property
    def key(self) -> tuple[str, str]:
        return self.panel, self.label

    @property
    def title(self) -> str:
        """Its panel and name."""
        return f"{self.panel} {self.label}".strip()


def fedmix(aggregator: str = "fedfreq") -> Overrides:
    return {"method.name": "fedmix", "aggregator.name": aggregator}


def fedmatch(aggregator: str = "fedavg") -> Overrides:
    return {"method.name": "fedmatch", "aggregator.name": aggregator}


FEDMATCH_RECIPE: Overrides = {"method.threshold": 0.75, "client.lr": 0.005}
"""τ as published (0.80 is FedMix's); η is the best of three on validation images, as FedMix's is. With λ_l2 = 10, a
client's η above 0.1 overshoots: ψ ← ψ + 2ηλ_l2(σ − ψ)."""


TRUE_LABELS_LR = 0.5
"""The server's step size: labels that are right allow what pseudo-labels do not."""


def server_only(panel: str, **more: Any) -> Arm:
    """The lower bound. It uses no client, so the partition does not matter: one run serves every panel."""
    bound: Overrides = {"method.name": "server-only", "aggregator.name": "uniform", "partition.kind": "dirichlet"}
    return Arm(panel, SERVER_ONLY, {**bound, **more})


def pooled(panel: str) -> Arm:
    """The upper bound. Nothing is assigned to clients, so one run serves every panel."""
    return Arm(panel, POOLED, {**server_only(panel).overrides, "method.name": "pooled"})


def all_labels(panel: str, partition: str = NON_IID) -> Arm:
    """FedAvg with the true labels of all images."""
    bound = {"method.name": "all-labels", "aggregator.name": "fedavg", **PANELS[partition]}
    return Arm(panel, ALL_LABELS, bound, {"client.lr": TRUE_LABELS_LR})


def _fig4() -> list[Arm]:
    names = {"fedavg": "FedAvg", "fedfreq": "FedFreq"}
    arms = []
    for panel, where in PANELS.items():
        arms += [Arm(panel, f"FedMix + {names[a]}", {**fedmix(a), **where}) for a in names]
        arms += [Arm(panel, f"FedMatch + {names[a]}", {**fedmatch(a), **where}, FEDMATCH_RECIPE) for a in names]
        arms += [server_only(panel), all_labels(panel, panel), pooled(panel)]
    return arms


def mix_label(mix: tuple[float, float, float]) -> str:
    return "α={:g} β={:g} γ={:g}".format(*mix)


def _fig5() -> list[Arm]:
    return [
        Arm(panel, mix_label(mix), {**fedmix(), **where, **dict(zip(MIX_KEYS, mix, strict=True))}, x=mix[0])
        for panel, where in PANELS.items()
        for mix in MIXES
    ] + [server_only(panel) for panel in PANELS]


def _fig6a() -> list[Arm]:
    where = {"partition.kind": "dirichlet"}
    levels = [Arm("", f"μ = {mu:g}", {**fedmix(), **where, "partition.mu": mu}, x=mu) for mu in LEVELS]
    return [*levels, server_only(""), all_labels(""), pooled("")]


def _fig6b() -> list[Arm]:
    arms, where = [], PANELS[NON_IID]
    for n in LABELS:
        arms += [
            Arm("", f"FedMix, {n} labels", {**fedmix(), **where, "labels": n}, x=n),
            Arm("", f"FedMatch, {n} labels", {**fedmatch(), **where, "labels": n}, FEDMATCH_RECIPE, x=n),
            Arm("", f"{SERVER_ONLY}, {n} labels", {**server_only("").overrides, "labels": n}, x=n),
        ]
    return arms


def _extra() -> list[Arm]:
    biased = {"availability.kind": "zipf", **PANELS[NON_IID]}
    rules = {"fedfreq": "FedFreq", "fedavg": "FedAvg", "uniform": "uniform mean"}
    return [*(Arm("", f"FedMix + {rules[a]}", {**fedmix(a), **biased}) for a in rules), server_only("")]


DAMPED: dict[str, tuple[float, float, float]] = {
    "γ = 0": (0.625, 0.375, 0.0),
    "γ = 0.2 (published)": BEST,
    "γ = 0.6": (0.25, 0.15, 0.6),
}
"""(α, β, γ) with α : β as published, so that γ alone differs."""


def _ablation() -> list[Arm]:
    """Why claims fail: the damping by γ; the effect of FedFreq's weights and τ is read from the same runs."""
    arms = [
        Arm("", name, {**fedmix(), **PANELS[NON_IID], **dict(zip(MIX_KEYS, mix, strict=True))})
        for name, mix in DAMPED.items()
    ]
    return [*arms, server_only("")]


BEST_RECIPE: Overrides = {"server.augment": "strong", "server.weight_decay": 0.002}
"""What a second search found for the labels alone, after Figures 4 to 6 had been run with weak views."""
BEST_FEDMIX: Overrides = {"client.lr": 0.1, "method.lambda_anchor": 2.5}
"""FedMix's best step with this server, by validation; FedMatch and true labels have the same best step as before."""


def _groupnorm() -> list[Arm]:
    """The non-IID row of Figure 4 with GroupNorm; the paper's network has no normalisation."""
    return _non_iid_row({"model.norm": "group"})


def _recipe() -> list[Arm]:
    """The non-IID row of Figure 4 with the recipe that is best for the labels alone."""
    ours, *others = _non_iid_row(BEST_RECIPE)
    return [replace(ours, recipe=BEST_FEDMIX), *others]


def _non_iid_row(more: Overrides) -> list[Arm]:
    where = {**PANELS[NON_IID], **more}
    bounds = (server_only(""), all_labels(""), pooled(""))
    return [
        Arm("", "FedMix + FedFreq", {**fedmix(), **where}),
        Arm("", "FedMatch + FedAvg", {**fedmatch(), **where}, FEDMATCH_RECIPE),
        *(replace(arm, overrides={**arm.overrides, **more}) for arm in bounds),
    ]


FIG3 = "fig3"
PAPER = {"fig4": _fig4, "fig6b": _fig6b, "fig6a": _fig6a, "fig5": _fig5, "extra": _extra, "ablation": _ablation,
         "recipe": _recipe, "groupnorm": _groupnorm}  # fmt: skip
TITLES = {
    FIG3: "Figure 3: partitions at μ = 0.1, 1, 10",
    "fig4": "Figure 4: test accuracy, IID and non-IID",
    "fig5": "Figure 5: weights (α, β, γ) of the mix",
    "fig6a": "Figure 6a: non-IID levels μ",
    "fig6b": "Figure 6b: number of labels at the server",
    "extra": "Extra: aggregation when some clients take part far more often",
    "ablation": "Ablation: why FedMix stays near its server",
    "recipe": "Recipe: the non-IID row of Figure 4 with the best recipe for the labels alone",
    "groupnorm": "GroupNorm: the non-IID row of Figure 4 with a normalised network",
    "few-labels": "Few labels: accuracy against labels and against skew, on a frozen backbone",
    "sites": "Sites: gain over the labels alone on other images, with scanners, outages and few sites",
}
