"""What does not go together is refused when the config loads, with the reason and with what would do."""

from typing import Any

import pytest

from fedfew.config.schema import load
from fedfew.config.tree import Config
from fedfew.core.errors import ConfigErrors
from fedfew.core.types import Transform
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


def refused(**changes: Any) -> str:
    overrides = {key.replace("__", "."): value for key, value in changes.items()}
    with pytest.raises(ConfigErrors) as caught:
        load(BASE, overrides)
    return str(caught.value)


def accepted(**changes: Any) -> Config:
    return load(BASE, {key.replace("__", "."): value for key, value in changes.items()})


def transforms(**changes: Any) -> tuple[Transform, ...]:
    return accepted(**changes).transforms


def test_annealing_goes_with_a_model_that_knows_nothing_yet() -> None:
    """After a warm-up every label is known, so annealing would leave all of them out for most of the run."""
    asked = {"method__name": "fedavg", "server__annealing": "log"}
    assert accepted(**asked).server.annealing == "log"
    assert "E113" in (said := refused(method__warmup=5, **asked)) and "method.warmup = 5" in said
    assert "start = " in refused(start="model.safetensors", **asked)
    assert accepted(method__name="fedavg", method__warmup=5).server.annealing == "none"


def test_krum_needs_enough_clients_a_round() -> None:
    told = refused(aggregator__name="krum", aggregator__faulty=2)
    assert "E107" in told
    assert "needs at least 7 clients a round, there are 5" in told
    assert "Raise participation" in told
    assert accepted(aggregator__name="krum", aggregator__faulty=1).aggregator.settings["faulty"] == 1
    assert "at most 4 of 5" in refused(aggregator__name="krum", aggregator__select=5)


@pytest.mark.parametrize(
    "method", ["fedavg", "fedprox", "semifl", "fl2", "fedsiam-mt", "all-labels", "fedbn", "fedmatch"]
)
def test_fltrust_needs_a_server_that_trains_beside_the_clients(method: str) -> None:
    told = refused(method__name=method, aggregator__name="fltrust")
    assert "E107" in told
    assert "These fit: " in told
    assert accepted(method__name="fedmix", aggregator__name="fltrust")


@pytest.mark.parametrize("method", ["server-only", "all-labels", "fedsiam-mt"])
def test_a_prior_needs_a_vote(method: str) -> None:
    told = refused(method__name=method, vote__prior="em")
    assert "makes no pseudo-labels" in told
    assert "fedmix" in told
    assert accepted(method__name="semifl", vote__prior="em")


def test_an_objective_that_the_method_would_ignore_is_refused() -> None:
    told = refused(method__name="semifl", objective__name="uda")
    assert "an objective of its own" in told
    assert "fedavg" in told
    assert accepted(method__name="fedavg", objective__name="uda")
    assert load("fixmatch", {"method.name": "semifl"}), "what a preset brings along is dropped, not refused"


def test_fedfew_has_the_prior_under_its_own_settings() -> None:
    assert "method.steps" in refused(method__name="fedfew", vote__prior="em")


def test_a_temperature_that_is_found_needs_validation_images() -> None:
    told = refused(method__name="fedfew", method__temperature=0.0, dataset__validation=0)
    assert "dataset.validation is 0" in told
    assert accepted(method__name="fedfew", method__temperature=0.0, dataset__validation=50)
    assert accepted(method__name="fedfew", method__temperature=1.5, dataset__validation=0)


@pytest.mark.parametrize("objective", ["pi-model", "temporal-ensembling", "mean-teacher"])
def test_a_prior_needs_an_objective_that_labels(objective: str) -> None:
    told = refused(method__name="fedavg", objective__name=objective, vote__prior="em")
    assert "fixmatch" in told
    assert accepted(method__name="fedavg", objective__name="fixmatch", vote__prior="em")


def test_every_method_with_a_vote_takes_the_prior() -> None:
    with_vote = []
    for name in METHODS:
        try:
            accepted(method__name=name, vote__prior="em")
        except ConfigErrors:
            continue
        with_vote.append(name)
    assert {
        "fedmix",
        "fedmatch",
        "fedmatch-lite",
        "semifl",
        "fl2",
        "cbafed",
        "fedavg",
        "fedprox",
        "fedbn",
        "ds-fl",
        "grouping",
    } <= set(with_vote)


@pytest.mark.parametrize("method", ["ds-fl", "fedmatch", "all-labels"])
def test_compression_needs_vectors(method: str) -> None:
    told = refused(method__name=method, compression__kind="ternary")
    assert "E113" in told
    assert "compression.kind" in told


@pytest.mark.parametrize("method", ["fedmix", "semifl", "fl2", "cbafed", "fedavg", "fedbn", "fedsiam-mt", "grouping"])
@pytest.mark.parametrize("kind", ["float16", "int8", "top-k", "ternary"])
def test_compression_goes_around_every_method_that_sends_vectors(method: str, kind: str) -> None:
    assert isinstance(transforms(method__name=method, compression__kind=kind)[-1], Compressed)


def test_fedbn_needs_normalisation() -> None:
    told = refused(method__name="fedbn", model__norm="none")
    assert "has no normalisation layers" in told
    assert 'model.norm = "batch"' in told
    assert "has no normalisation layers" in refused(norm__policy="local", model__norm="none")
    assert isinstance(transforms(method__name="fedbn", model__norm="batch")[0], LocalNorm)
    assert isinstance(transforms(norm__policy="local")[0], LocalNorm)


def test_statistics_need_batch_norm() -> None:
    assert "no batch norm" in refused(norm__policy="server-data")
    batch = {"norm__policy": "server-data", "model__norm": "batch", "method__name": "semifl"}
    assert [type(t) for t in transforms(**batch)] == [ServerStatistics]
    assert [type(t) for t in transforms(**batch, compression__kind="int8")] == [ServerStatistics, Compressed]


@pytest.mark.parametrize("method", ["ds-fl", "fedmatch", "all-labels"])
def test_a_policy_needs_clients_that_send_models(method: str) -> None:
    assert "needs clients that send models" in refused(method__name=method, norm__policy="local")


@pytest.mark.parametrize("method", ["all-labels", "server-only", "pooled"])
def test_bounds_can_measure_their_statistics(method: str) -> None:
    batch = {"norm__policy": "server-data", "model__norm": "batch", "method__name": method}
    assert [type(t) for t in transforms(**batch)] == [ServerStatistics]


@pytest.mark.parametrize("aggregator", ["fednova", "fltrust"])
def test_a_running_variance_is_not_stretched(aggregator: str) -> None:
    told = refused(method__name="fedmix", aggregator__name=aggregator, model__norm="batch")
    assert "running variance" in told
    for policy in ("local", "server-data"):
        assert accepted(method__name="fedmix", aggregator__name=aggregator, model__norm="batch", norm__policy=policy)


def test_ds_fl_gets_an_open_set_or_says_what_is_missing() -> None:
    assert accepted(method__name="ds-fl", method__subset=40).dataset.open == 120
    assert accepted(method__name="ds-fl", method__subset=40, dataset__open=40).dataset.open == 40
    assert "dataset.open = 30" in refused(method__name="ds-fl", method__subset=40, dataset__open=30)
    assert accepted(method__name="fedmix").dataset.open == 0


def test_everything_wrong_is_told_at_once() -> None:
    told = refused(method__name="fedsiam-mt", vote__prior="em", norm__policy="local", model__norm="none")
    assert "vote.prior" in told
    assert "norm.policy" in told


def test_a_checked_config_can_be_checked_again() -> None:
    """run.toml holds the resolved config, and a resume reads it."""
    for name in METHODS:
        model = {"model__name": "efficientnet-lite0"} if name == "fedmoments" else {}
        document = accepted(method__name=name, **model).document
        assert load(document).document == document
