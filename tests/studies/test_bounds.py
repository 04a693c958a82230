"""Which run counts as the bound of another: the same scenario, and for upper bounds the same image passes."""

from typing import Any

import pytest
from tests.studies.runs_by_hand import flat

from fedfew.interface.charts.run_charts import accuracy
from fedfew.interface.report.standing import standing
from fedfew.interface.report.words import between
from fedfew.runs.statistics import Interval
from fedfew.studies.bounds import bounds_of
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


def test_why_a_bound_is_no_pair_and_what_it_bounds() -> None:
    own = flat(0.5, name="own")
    lower = flat(0.4, name="lower", method__name="server-only", server__epochs=20)
    true = flat(0.8, name="true", seed=3, method__name="all-labels")
    pooled = flat(0.9, name="pooled", method__name="pooled")
    found = bounds_of(own, [own, lower, true, pooled])
    assert [b.apart for b in found] == ["other server.epochs", "other seeds", ""]
    assert [b.role for b in found] == ["lower bound", "", "upper bound"]
    words = between(own, found)
    assert words.startswith("not compared with server-only (other server.epochs), not compared with FedAvg with true")
    assert words.endswith("40.0 points below pooled")
    assert [bar.note for bar in standing(own, found)] == ["other server.epochs", "", "other seeds", ""]
    assert [level.name for level in accuracy(own, found).levels] == [
        "server-only (other server.epochs)", "FedAvg with true labels (other seeds)", "pooled"
    ]  # fmt: skip
