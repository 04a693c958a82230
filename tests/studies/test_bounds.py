"""Which run counts as the bound of another: the same scenario, and for upper bounds the same image passes."""

from typing import Any

import pytest
from tests.runs.own_runs import flat

from fedfew.interface.charts.run_charts import accuracy
from fedfew.interface.report.standing import standing
from fedfew.runs.intervals import Interval
from fedfew.studies.bounds import TUNED, bounds_of
from fedfew.studies.compare import compare


@pytest.mark.parametrize("key", [{"participation": 1.0}, {"client__epochs": 7}, {"partition__mu": 3.0}])
@pytest.mark.parametrize("bound", ["all-labels", "pooled"])
def test_an_upper_bound_with_other_image_passes_is_none(bound: str, key: dict[str, Any]) -> None:
    own, same = flat(0.5, name="own"), flat(0.8, name="same", method__name=bound)
    other = flat(0.9, name="other", method__name=bound, **key)
    found = {b.name: b.runs for b in bounds_of(own, [own, same, other])}
    assert found[bound] == (same,)
    assert not {b.name: b.runs for b in bounds_of(own, [own, other])}[bound]


def test_server_only_training_does_not_depend_on_the_clients() -> None:
    own, lower = flat(0.5, name="own"), flat(0.4, name="lower", method__name="server-only", participation=1.0)
    assert bounds_of(own, [own, lower])[0].runs == (lower,)


@pytest.mark.parametrize("key", [{"compression__kind": "int8"}, {"privacy__clip": 1.0}, {"evaluate__clients": False}])
def test_how_clients_send_and_are_scored_splits_no_pair(key: dict[str, Any]) -> None:
    own = flat(0.5, method__name="fedavg", **key)
    found = compare([own, flat(0.4, method__name="server-only")])
    assert next(row for row in found.rows if row.key["method.name"] == "fedavg").difference == Interval.of([0.5 - 0.4])


BATCH: dict[str, Any] = {"model__norm": "batch", "dataset__name": "mini-mnist"}


@pytest.mark.parametrize("bound", ["server-only", "pooled"])
@pytest.mark.parametrize(("own", "its", "why"), [
    ("clients", "average", "other norm.policy"), ("average", "server-data", "other norm.policy"),
    ("clients", "clients", ""), ("local", "average", ""),
])  # fmt: skip
def test_statistics_measured_after_a_round_belong_to_the_recipe(bound: str, own: str, its: str, why: str) -> None:
    run = flat(0.5, method__name="fedavg", norm__policy=own, **BATCH)
    lower = flat(0.4, method__name=bound, norm__policy=its, **BATCH)
    assert {b.name: b.mismatch for b in bounds_of(run, [run, lower])}[bound] == why


def test_server_only_runs_with_other_statistics_are_two_experiments() -> None:
    runs = [flat(0.4, name=policy, method__name="server-only", norm__policy=policy, **BATCH)
            for policy in ("average", "server-data", "clients")]  # fmt: skip
    found = compare([*runs, flat(0.5, method__name="fedavg", norm__policy="clients", **BATCH)])
    assert not found.left_out and len(found.rows) == 4
    assert next(row for row in found.rows if row.key["method.name"] == "fedavg").difference == Interval.of([0.5 - 0.4])


def test_a_bound_scored_before_the_servers_turn_is_no_pair() -> None:
    run, true = flat(0.5), flat(0.8, method__name="all-labels", method__order="before")
    assert bounds_of(run, [run, true])[1].mismatch == "other method.order"


def test_a_method_without_lambda_s_has_one() -> None:
    run = flat(0.5, method__name="cbafed")
    lower = flat(0.4, method__name="server-only", method__lambda_s=10.0)
    assert bounds_of(run, [run, lower])[0].mismatch == "other method.lambda_s"
    assert not bounds_of(run, [run, lower, flat(0.3, name="one", method__name="server-only")])[0].mismatch


@pytest.mark.parametrize(
    ("own", "its", "why"),
    [
        ((5, "client.lr, server.lr"), (5, "server.lr"), ""),
        ((5, "server.lr"), (3, "server.lr"), "other server.lr"),
        ((5, "client.lr"), (5, "server.lr"), "other server.lr"),
        ((5, "server.lr"), None, "other server.lr"),
    ],
)
def test_settings_searched_for_with_equal_effort_may_differ(own: Any, its: Any, why: str) -> None:
    run, lower = flat(0.5, server__lr=0.1), flat(0.4, method__name="server-only", server__lr=0.3)
    for one, search in ((run, own), (lower, its)):
        vars(one)["environment"] = {"tuned": TUNED.format(*search)} if search else {}
    assert bounds_of(run, [run, lower])[0].mismatch == why


def test_why_a_bound_is_no_pair_and_what_it_bounds() -> None:
    own = flat(0.5, name="own")
    lower = flat(0.4, name="lower", method__name="server-only", server__epochs=20)
    true = flat(0.8, name="true", seed=3, method__name="all-labels")
    pooled = flat(0.9, name="pooled", method__name="pooled")
    found = bounds_of(own, [own, lower, true, pooled])
    assert [b.mismatch for b in found] == ["other server.epochs", "other seeds", ""]
    assert [b.role for b in found] == ["lower bound", "", "upper bound"]
    assert [bar.note for bar in standing(own, found)] == ["other server.epochs", "", "other seeds", ""]
    assert [level.name for level in accuracy(own, found).levels] == [
        "server-only (other server.epochs)", "FedAvg with true labels (other seeds)", "pooled"
    ]  # fmt: skip
