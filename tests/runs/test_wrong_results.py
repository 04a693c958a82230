"""Results that used to be wrong in silence: wrapped bounds, common faults, magic names, sites with a truth."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.runtime.tiny_run import TINY

import fedfew
from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.data import DATASETS
from fedfew.data.dataset import Dataset, SiteSamples
from fedfew.data.federation import Split, federate
from fedfew.data.partitions import make_partition

OWN = "tests.runs.own_runs"


def run(path: Path, **changes: Any) -> fedfew.Run:
    overrides = {key.replace("__", "."): value for key, value in changes.items()}
    return fedfew.Experiment.load(dict(TINY), overrides).run(path)


@pytest.mark.parametrize(
    "around",
    [
        {"privacy__clip": 1.0},
        {"compression__kind": "int8"},
        {"norm__policy": "local", "model__norm": "batch"},
    ],
)
def test_server_only_asks_nobody_whatever_is_done_to_messages(around: dict[str, Any], tmp_path: Path) -> None:
    plain = {key: value for key, value in around.items() if key.startswith("model")}
    bound = run(tmp_path / "bound", method__name="server-only", rounds=2, **plain)
    wrapped = run(tmp_path / "wrapped", method__name="server-only", rounds=2, **around)
    assert [r["cohort"] for r in wrapped.rounds] == [[], []]
    assert [r["accuracy"] for r in wrapped.rounds] == [r["accuracy"] for r in bound.rounds]


SITES = {"dataset__name": f"{OWN}:three_sites", "dataset__unlabeled": 0}


def test_a_dataset_that_brings_sites_is_recorded_as_such(tmp_path: Path) -> None:
    found = run(tmp_path / "run", **SITES, participation=1.0, method__threshold=0.0, rounds=1)
    again = fedfew.Run.open(found.path)
    assert again.document["partition"] == {"kind": "sites"}
    assert again.document["clients"] == 3
    assert again.rounds[0]["coverage"] == 1.0
    assert 0.0 <= (again.rounds[0]["correct"] or -1.0) <= 1.0


def test_a_users_images_stay_together() -> None:
    users = np.repeat(np.arange(7), 5)
    dealt = make_partition(np.zeros(35, np.int64), 3, "users", 0, users=users)
    owners = [set(users[dealt.of(k)].tolist()) for k in range(3)]
    assert sorted(user for own in owners for user in own) == list(range(7))
    assert min(map(len, owners)) >= 2
    with pytest.raises(FedfewError, match=r"E113 partition.kind: the dataset does not say which user"):
        make_partition(np.zeros(35, np.int64), 3, "users", 0)
    with pytest.raises(FedfewError, match=r"E108 clients: 9 clients, but the images come from 7 users"):
        make_partition(np.zeros(35, np.int64), 9, "users", 0, users=users)


def test_a_function_of_ones_own_sees_the_users() -> None:
    seen = []

    def deal(labels: Any, clients: int, rng: Any, users: Any = None) -> list[list[int]]:
        seen.append(users)
        return [[0, 1], [2, 3]]

    make_partition(np.zeros(4, np.int64), 2, deal, 0, users=np.array([5, 5, 9, 9]))
    assert seen[0].tolist() == [5, 5, 9, 9]


def test_sites_that_do_not_add_up_are_refused() -> None:
    digits = DATASETS["mini-mnist"]()
    few = LabeledSet(digits.train.samples.like(digits.train.samples.data[:20]), digits.train.labels[:20])
    wrong = SiteSamples(("a", "b"), few.samples, np.array([0, 10]))
    with pytest.raises(FedfewError, match=r"2 sites need 3 offsets"):
        federate(Dataset("own", few, few, digits.classes, sites=wrong), Split(validation=0), labels=10, clients=1)
    odd = SiteSamples(("a",), few.samples, np.array([0, 20]), truth=torch.full((20,), 11))
    with pytest.raises(FedfewError, match=r"labels go from 11 to 11"):
        federate(Dataset("own", few, few, digits.classes, sites=odd), Split(validation=0), labels=10, clients=1)
