"""What does not go together is refused when the config loads, with the reason and with what would do."""

from typing import Any

import pytest

from fedfew.config.schema import load
from fedfew.config.tree import Config
from fedfew.core.errors import ConfigErrors
from fedfew.methods import METHODS
from fedfew.transforms.compression import Compressed
from fedfew.transforms.norm_policy import LocalNorm, ServerStatistics

BASE: dict[str, Any] = {
    "clients": 20,
    "participation": 0.25,
    "labels": 50,
    "dataset": {"name": "mini-mnist"},
    "model": {"name": "cnn", "norm": "group"},
}
ANNEALED = {"method.name": "fedavg", "server.annealing": "log"}
KRUM = {"aggregator.name": "krum"}
FOUND = {"method.name": "fedfew", "method.temperature": 0.0}
DS_FL = {"method.name": "ds-fl", "method.subset": 40}
MEASURED = {"norm.policy": "server-data", "model.norm": "batch"}


def accepted(changes: dict[str, Any]) -> Config:
    return load(BASE, changes)


REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    # after a warm-up every label is known, so annealing would leave all of them out for most of the run
    (ANNEALED | {"method.warmup": 5}, ["E113", "method.warmup = 5"]),
    (ANNEALED | {"start": "model.safetensors"}, ["start = "]),
    (KRUM | {"aggregator.faulty": 2}, ["E107", "needs at least 7 clients a round, there are 5", "Raise participation"]),
    (KRUM | {"aggregator.select": 5}, ["at most 4 of 5"]),
    *(
        (
            {f"{section}.schedule": "plateau", "dataset.validation": 0},
            [f"E113 config: {section}.schedule: ", "validation"],
        )
        for section in ("server", "client")
    ),
    *(
        ({"method.name": name, "vote.prior": "em"}, ["makes no pseudo-labels", "fedmix"])
        for name in ("server-only", "all-labels", "fedsiam-mt")
    ),
    *(
        ({"method.name": "fedavg", "objective.name": name, "vote.prior": "em"}, ["fixmatch"])
        for name in ("pi-model", "temporal-ensembling", "mean-teacher")
    ),
    ({"method.name": "semifl", "objective.name": "uda"}, ["an objective of its own", "fedavg"]),
    ({"method.name": "fedfew", "vote.prior": "em"}, ["method.steps"]),
    (FOUND | {"dataset.validation": 0}, ["dataset.validation is 0"]),
    *(
        ({"method.name": name, "compression.kind": "ternary"}, ["E113", "compression.kind"])
        for name in ("ds-fl", "fedmatch", "all-labels")
    ),
    *(
        ({"method.name": name, "norm.policy": "local"}, ["needs clients that send models"])
        for name in ("ds-fl", "fedmatch", "all-labels")
    ),
    ({"method.name": "fedbn", "model.norm": "none"}, ["has no normalisation layers", 'model.norm = "batch"']),
    ({"norm.policy": "local", "model.norm": "none"}, ["has no normalisation layers"]),
    ({"norm.policy": "server-data"}, ["no batch norm"]),
    *(
        ({"method.name": "fedmix", "aggregator.name": name, "model.norm": "batch"}, ["running variance"])
        for name in ("fednova", "fltrust")
    ),
    (DS_FL | {"dataset.open": 30}, ["dataset.open = 30"]),
    # everything that is wrong is told at once
    (
        {"method.name": "fedsiam-mt", "vote.prior": "em", "norm.policy": "local", "model.norm": "none"},
        ["vote.prior", "norm.policy"],
    ),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_excludes_another_is_refused_with_the_reason(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(BASE, changes)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        ANNEALED,
        {"method.name": "fedavg", "method.warmup": 5},
        KRUM | {"aggregator.faulty": 1},
        {"client.schedule": "plateau", "dataset.validation": 20},
        {"method.name": "fedmix", "aggregator.name": "fltrust"},
        {"method.name": "fedavg", "objective.name": "uda"},
        {"method.name": "fedavg", "objective.name": "fixmatch", "vote.prior": "em"},
        FOUND | {"dataset.validation": 50},
        FOUND | {"method.temperature": 1.5, "dataset.validation": 0},
        *(
            {"aggregator.name": name, "model.norm": "batch", "norm.policy": policy}
            for name in ("fednova", "fltrust")
            for policy in ("local", "server-data")
        ),
    ],
)
def test_what_goes_together_is_accepted(changes: dict[str, Any]) -> None:
    assert accepted(changes).document


def test_an_objective_that_a_preset_brings_along_is_dropped_not_refused() -> None:
    assert load("fixmatch", {"method.name": "semifl"})


def test_every_method_with_a_vote_takes_the_prior() -> None:
    for name, entry in METHODS.items():
        if entry.takes("vote") and name != "fedfew":
            assert accepted({"method.name": name, "vote.prior": "em"}).vote.prior == "em"


@pytest.mark.parametrize("method", ["fedmix", "semifl", "fl2", "cbafed", "fedavg", "fedbn", "fedsiam-mt", "grouping"])
@pytest.mark.parametrize("kind", ["float16", "int8", "top-k", "ternary"])
def test_compression_goes_around_every_method_that_sends_vectors(method: str, kind: str) -> None:
    assert isinstance(accepted({"method.name": method, "compression.kind": kind}).transforms[-1], Compressed)


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"method.name": "fedbn", "model.norm": "batch"}, [LocalNorm]),
        ({"norm.policy": "local"}, [LocalNorm]),
        (MEASURED | {"method.name": "semifl"}, [ServerStatistics]),
        (MEASURED | {"method.name": "semifl", "compression.kind": "int8"}, [ServerStatistics, Compressed]),
        *((MEASURED | {"method.name": name}, [ServerStatistics]) for name in ("all-labels", "server-only", "pooled")),
    ],
)
def test_transforms_stand_in_their_order(changes: dict[str, Any], kinds: list[type]) -> None:
    assert [type(transform) for transform in accepted(changes).transforms] == kinds


def test_ds_fl_gets_an_open_set() -> None:
    assert accepted(DS_FL).dataset.open == 120
    assert accepted(DS_FL | {"dataset.open": 40}).dataset.open == 40
    assert accepted({"method.name": "fedmix"}).dataset.open == 0
