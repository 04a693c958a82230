"""fedmoments and SemiFL with secure sums on a network: the model of every other fleet, whatever is lost on the way."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.deploy.cluster import Cluster, alive, descendants, eventually, named
from tests.deploy.in_process import loop
from tests.deploy.test_cluster_faults import kill
from tests.deploy.test_secure_sums import Server
from tests.secure.test_exchange import Between, parts_of
from tests.secure.test_moments import parts_of as moments_of

from fedfew.config.files import dumps
from fedfew.config.parts import Parts, local_fleet
from fedfew.core.layout import Payload
from fedfew.core.types import Fleet, ServerState
from fedfew.runs.session import Experiment
from fedfew.runtime.record import RoundRecord
from fedfew.runtime.rounds import run_rounds
from fedfew.secure.messages import REVEAL

Rounds = list[tuple[ServerState, RoundRecord]]


def moments(folder: Path, **changes: Any) -> Parts:
    """fedmoments with six clients; it never settles, so that every round has a sum."""
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return moments_of(folder / "x", {"method.population": 6, "rounds": 6, "method.most_steps": 9} | changes)


def semifl(folder: Path, **changes: Any) -> Parts:
    return parts_of(**{"method__name": "semifl", "rounds": 6} | changes)


METHODS: dict[str, Callable[..., Parts]] = {"fedmoments": moments, "semifl": semifl}
methods = pytest.mark.parametrize("made", METHODS.values(), ids=METHODS)


def trained(parts: Parts, fleet: Fleet) -> Rounds:
    begun = parts.algorithm.start(parts.network.snapshot())
    try:
        return list(run_rounds(parts.clients, parts.algorithm, parts.server, fleet, begun, parts.config.rounds))
    finally:
        fleet.close()


def same(first: ServerState, second: ServerState) -> bool:
    tensors = {**first.extra, "omega": first.omega}, {**second.extra, "omega": second.omega}
    return tensors[0].keys() == tensors[1].keys() and all(torch.equal(tensors[1][k], t) for k, t in tensors[0].items())


class OneLess:
    """In round r the clients of site 1 leave before exchange r: in the sixth round all stay."""

    def __init__(self) -> None:
        self.round, self.before = 0, REVEAL

    def __call__(self, step: int, sent: dict[int, Payload]) -> dict[int, Payload]:
        self.round += step < self.before
        self.before = step
        return {k: payload for k, payload in sent.items() if step < self.round or k % 3 != 1}


@methods
def test_a_site_leaves_in_each_exchange_and_all_fleets_have_one_model(
    made: Callable[..., Parts], tmp_path: Path
) -> None:
    parts, over = made(tmp_path), made(tmp_path)
    inline = trained(parts, Between(parts, OneLess()))
    third = parts.config.clients // 3
    assert [len(record["missing"]) for _, record in inline] == [third, third, third, 0, 0, 0]
    with loop(over, sites=3) as network:
        flower = trained(over, Server(over, OneLess(), network.fleet))
    shared = made(tmp_path, fleet__kind="pool", fleet__workers=2)
    pool = trained(shared, Between(shared, OneLess(), local_fleet(shared)))
    for other in (flower, pool):
        assert [record["missing"] for _, record in inline] == [record["missing"] for _, record in other]
        assert same(inline[-1][0], other[-1][0])


NOISY: dict[str, dict[str, Any]] = {
    "fedmoments": {"privacy__unit": "image", "privacy__noise": 0.5, "method__directions": 12, "privacy__group": 2},
    "semifl": {"privacy__clip": 0.01, "privacy__noise": 2.0, "clients": 6},  # so little that no sum raises the loss
}


@pytest.mark.parametrize("method", METHODS)
def test_with_noise_a_run_of_real_sites_ends_and_every_answer_is_charged_once(method: str, tmp_path: Path) -> None:
    parts = METHODS[method](tmp_path, **NOISY[method])
    files = {k: tmp_path / f"{k}.npz" for k in range(6)}
    for k, path in files.items():
        own = parts.federation.samples.data[torch.from_numpy(parts.federation.partition.of(k))].numpy().repeat(2, 0)
        np.savez(path, x=own) if method == "fedmoments" else np.savez(path, images=own)
    with loop(parts, sites=6, images=files) as network:
        members = network.fleet._members
        network.fleet._members = replace(members, identity=replace(members.identity, sites=0))  # type: ignore[type-var]
        ended = trained(parts, Server(parts, lambda step, sent: sent, network.fleet))
        accounts = [json.loads((network.folder / f"site{k}" / "privacy.json").read_bytes()) for k in range(6)]
    assert all(record["missing"] == [] and not record["skipped"] for _, record in ended)
    assert bool(ended[-1][0].omega.isfinite().all())
    unit = {"noise": 0.5, "unit": "image", "group": 2} if method == "fedmoments" else {"noise": 2.0, "unit": "site"}
    assert accounts == [{"updates": [{"group": 1} | unit | {"count": len(ended)}]}] * 6


@pytest.mark.slow
@methods
def test_a_trial_that_is_killed_in_the_middle_of_sums_gives_the_model_of_an_inline_run(
    made: Callable[..., Parts], tmp_path: Path
) -> None:
    """Flower's processes, TLS and keys; kill -9 of the warm site, of the ServerApp, then of all, and resume."""
    (tmp_path / "run.toml").write_text(dumps(made(tmp_path, rounds=4).config.document))
    expected = Experiment.load(tmp_path / "run.toml").run(tmp_path / "inline").summary["model_sha256"]
    here, run = Cluster(tmp_path, plan=None), tmp_path / "run"  # type: ignore[arg-type]
    trial = here.start("deploy", "local", str(tmp_path / "run.toml"), "--sites", "3", "--json", "--out", str(run))
    secrets = lambda: list((run / "network" / "sites" / "site1" / "sums").glob("*"))  # noqa: E731
    try:
        assert eventually(secrets, 900), trial.errors()  # the first sum has begun
        kill(named(trial.pid, "fedfew.deploy.site.warm_site"))
        assert eventually((run / "rounds.jsonl").exists, 900), trial.errors()
        kill(named(trial.pid, "flwr-serverapp"))
        lines = lambda: (run / "rounds.jsonl").read_text().count("\n")  # noqa: E731
        assert eventually(lambda: lines() >= 2, 900), trial.errors()
        below = descendants(trial.pid)
        trial.process.kill()
        trial.wait(10)
        assert eventually(lambda: not alive(below), 40)
    finally:
        trial.end()
    last = here.start("resume", str(run), "--json")
    try:
        assert last.wait(900) == 0, last.errors()
    finally:
        last.end()
    assert last.result()["model_sha256"] == expected
    assert not secrets()
