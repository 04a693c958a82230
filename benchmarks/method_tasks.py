"""What the table of all methods compares: tasks with one setting each, arms, and which arms need another setting.

A setting is everything that decides how hard the problem is and how much it costs: split, clients, cohort,
rounds, local passes, model with its normalisation, the server's recipe and the evaluation. All arms of a table share
it; an arm that cannot is listed separately, with the keys that differ. An arm may differ in the settings of its method
and in what was searched for it, with the same number of trials for each (``benchmarks/method_search.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.method_search import best

from fedfew.aggregators import AGGREGATORS
from fedfew.config.files import flat, presets
from fedfew.config.schema import load
from fedfew.config.tree import Config, settings_for
from fedfew.methods import METHODS
from fedfew.objectives import OBJECTIVES
from fedfew.studies.sweep import Cell

Overrides = dict[str, Any]
SERVER_ONLY = "server-only"
POOLED = "pooled"
SETTING = ("rounds", "clients", "participation", "labels", "dataset.", "partition.", "model.", "server.",
           "client.epochs", "availability.", "evaluate.")  # fmt: skip
FOUND = Path(__file__).with_name("search")
"""Results of the searches, a CSV for each task."""


@dataclass(frozen=True)
class Task:
    """A dataset with the settings that all methods share on it."""

    words: str
    shared: Overrides
    warm: Overrides
    settings: str
    own: dict[str, Overrides] = field(default_factory=dict)
    """Settings of a method that only make sense here."""
    arms: tuple[str, ...] = ()
    """The arms to run if none are named; empty: all."""
    key: str = ""
    """The name under which its searches are stored."""

    def searched(self, arm: str) -> Overrides:
        """The search's results: the server's recipe for all, and an arm's own SGD."""
        recipe = best(FOUND / f"{self.key}.csv", SERVER_ONLY) if self.key else {}
        own = best(FOUND / f"{self.key}.csv", arm) if self.key and arm != SERVER_ONLY else {}
        return recipe | own

    @property
    def start_epochs(self) -> int:
        """Server epochs of the common starting model."""
        both = self.shared | self.warm
        return int(both["rounds"] * both["server.epochs"])


_CIFAR_SHARED: Overrides = {
    "dataset.name": "cifar10",
    "dataset.split": "paper",
    "dataset.unlabeled": 11_000,
    "dataset.validation": 500,
    "dataset.normalize": "standard",
    "clients": 100,
    "participation": 0.05,
    "labels": 1000,
    "model.name": "resnet9",
    "model.width": 16,
    "model.norm": "group",
    "rounds": 30,
    "server.epochs": 1,
    "server.batch": 50,
    "server.lr": 0.02,
    "server.momentum": 0.9,
    "server.weight_decay": 0.0005,
    "server.augment": "strong",
    "server.schedule": "cosine",
    "client.epochs": 2,
    "client.batch": 16,
    "client.lr": 0.02,  # with the presets' momentum of 0.9 even true labels destroy the model at μ = 0.1
    "client.momentum": 0.0,
    "client.weight_decay": 0.0005,
    "client.schedule": "cosine",
}
_WARM: Overrides = {"rounds": 7, "server.epochs": 5, "server.schedule": "constant"}
_PLAIN = "What was not searched are the settings of a method's preset."
_CIFAR = "CIFAR-10 at laptop scale, 1,000 labels, 100 clients"
TASKS = {
    "digits": Task(
        "mini-mnist, 50 labels, 20 clients (μ = 0.5), five a round",
        {
            "rounds": 15,
            "clients": 20,
            "participation": 0.25,
            "labels": 50,
            "partition.kind": "dirichlet",
            "partition.mu": 0.5,
            "model.norm": "group",
            "server.epochs": 10,
            "server.lr": 0.05,
            "server.batch": 10,
            "server.momentum": 0.9,
            "server.augment": "weak",
            "client.epochs": 2,
            "client.batch": 32,
            "client.lr": 0.01,
            "client.momentum": 0.9,
        },
        {"rounds": 15, "server.epochs": 10, "server.schedule": "constant"},
        _PLAIN,
        key="digits",
    ),
    "cifar-noniid": Task(
        f"{_CIFAR}, five a round, μ = 0.1",
        _CIFAR_SHARED | {"partition.kind": "dirichlet", "partition.mu": 0.1},
        _WARM,
        _PLAIN,
        key="cifar",
    ),
    "cifar-iid": Task(
        f"{_CIFAR}, five a round, IID",
        _CIFAR_SHARED | {"partition.kind": "iid"},
        _WARM,
        _PLAIN,
        {"fedfew": {"method.steps": 0}},
        key="cifar",
    ),
    "cifar-long": Task(
        f"{_CIFAR}, ten a round, μ = 0.1, in the long run",
        _CIFAR_SHARED | {"partition.kind": "dirichlet", "partition.mu": 0.1, "rounds": 40, "participation": 0.1},
        _WARM,
        f"{_PLAIN} `fedfew − clients` is the server alone.",
        arms=(
            SERVER_ONLY,
            POOLED,
            "all-labels",
            "fedfew",
            "fedfew − clients",
            "semifl",
            "fl2",
            "fedmatch",
            "fedmix + fedfreq",
        ),
        key="cifar",
    ),
}
_FEDMIX: Overrides = {"method.name": "fedmix", "method.lambda_anchor": 0.01}
ARMS: dict[str, tuple[str, Overrides]] = {
    SERVER_ONLY: ("server-only", {}),
    POOLED: (POOLED, {}),
    "all-labels": ("all-labels", {}),
    "fedfew": ("fedfew", {}),
    "fedmix + fedfreq": ("server-only", _FEDMIX | {"aggregator.name": "fedfreq"}),
    "fedmix + fedavg": ("server-only", _FEDMIX | {"aggregator.name": "fedavg"}),
    "fedbn": ("fedbn", {"model.norm": "batch"}),
}
COMBINED = ("rc-ssfl", "label-shift")
"""Published methods that are presets made of parts."""
NO_ARM = ("fedmoments", "labels-names")
"""It works on the features of a pretrained backbone."""
ARMS |= {
    name: (name, {})
    for name in (*METHODS, *OBJECTIVES, *AGGREGATORS, *COMBINED)
    if name in presets() and name not in (*ARMS, *NO_ARM)
}
ABLATION: dict[str, tuple[str, Overrides]] = {
    "fedfew − clients": ("fedfew", {"client.epochs": 0, "method.views": 1}),
    "fedfew − class mix in the vote": ("fedfew", {"method.steps": 0}),
    "fedfew − class mix in the loss": ("fedfew", {"method.correction": 0.0}),
    "fedfew − agreement of views": ("fedfew", {"method.consistency": 0.0}),
    "fedfew − mean over rounds": ("fedfew", {"method.average": 0.0}),
    "fedfew − small batches": ("fedfew", {"client.batch": 64}),
    "fedfew − threshold": ("fedfew", {"method.threshold": 0.0}),
}


def warm_cell(task: Task, seed: int) -> Cell:
    """The server alone, the start of all arms."""
    own = (
        task.shared | task.searched(SERVER_ONLY) | task.warm | {"seed": seed, "dataset.seed": seed, "evaluate.ema": 0.0}
    )
    return Cell(f"start-s{seed}", load(SERVER_ONLY, own))


def config_of(task: Task, arm: str, seed: int, start: str) -> Config:
    """An arm's preset with the shared settings: the server trains equally many epochs before the first round in each.

    A model with another normalisation cannot start from the common one, and trains equally long by itself instead.
    """
    preset, own = (ARMS | ABLATION)[arm]
    own_arm = "fedfew" if arm in ABLATION else arm
    shared = task.shared | task.searched(own_arm) | {"seed": seed, "dataset.seed": seed, "start": start}
    kind = own.get("method.name") or load(preset).method_name
    if "warmup" in settings_for("method", kind):
        shared["method.warmup"] = shared["server.epochs"]
        if "model.norm" in own:
            shared |= {"start": "", "method.warmup": task.start_epochs + shared["server.epochs"]}
    if kind == "ds-fl" and task.shared.get("dataset.name") == "cifar10":
        shared["dataset.open"] = 1000
    return load(preset, shared | task.own.get(kind, {}) | own, keep_settings=True)


def other_setting(task: Task, arm: str) -> dict[str, tuple[Any, Any]]:
    """Where an arm's setting differs from the table's: key → (its value, the table's), except an ablation's keys."""
    mine, shared = (flat(config_of(task, name, 0, "start").document) for name in (arm, SERVER_ONLY))
    skip = ABLATION.get(arm, ("", {}))[1]
    keys = sorted(key for key in mine.keys() & shared.keys() if key.startswith(SETTING) and key not in skip)
    return {key: (mine[key], shared[key]) for key in keys if mine[key] != shared[key]}


def note_on(arm: str, differs: Mapping[str, tuple[Any, Any]]) -> str:
    """A note about an arm that is listed separately."""
    parts = [f"`{key} = {mine!r}` ({shared!r})" for key, (mine, shared) in differs.items()]
    return f"- {arm}: {', '.join(parts)}"
