"""FedMatch's server memory: whom it takes for alike, when helpers travel, and how many bytes really must go down."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.test_fedmatch import SIZE, fedmatch
from tests.methods.tiny import CLASSES, client_site, generator, linear_logits, random_theta, server_site
from torch import Tensor

from fedfew.core.layout import nbytes
from fedfew.core.streams import stream
from fedfew.core.types import ClientUpdate, ServerState
from fedfew.methods.fedmatch import FedMatch
from fedfew.methods.fedmatch_helpers import known, last_seen, nearest
from fedfew.runtime.rounds import count, server_turn


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 15), st.integers(1, 5), st.integers(0, 2**32))
def test_the_nearest_models_are_those_of_brute_force(known: int, wanted: int, seed: int) -> None:
    clients = [3 * k + 1 for k in range(known)]
    points = torch.randn(known, CLASSES, generator=generator(seed)).softmax(1)
    embeddings = dict(zip(clients, points, strict=True))
    kept = {f"client/{k}": torch.tensor([float(k)]) for k in clients}
    kept |= {f"embedding/{k}": point for k, point in embeddings.items()}
    state = ServerState(0, torch.empty(0), torch.empty(0), extra=kept)
    me, place = clients[0], points[0].double()
    by_distance = sorted(clients[1:], key=lambda k: float((embeddings[k].double() - place).norm()))

    chosen = [int(model.item()) for model in nearest(state, me, wanted)]

    assert chosen == by_distance[: min(wanted, known - 1)]
    assert me not in chosen
    assert nearest(state, 2, wanted) == [], "a stranger has nobody alike"


def run_round(method: FedMatch, state: ServerState, cohort: list[int]) -> ServerState:
    """One round from the state after ``before_clients``."""
    updates = []
    for k in cohort:
        trained = method.train_client(method.broadcast(state, k), client_site(k), generator(k))
        updates.append(ClientUpdate(k, trained.reply, 12, trained.metrics))
    counted = replace(state, participation=count(state, updates))
    done, _ = method.after_clients(counted, updates, server_site(), generator(0))
    return replace(done, round=state.round + 1)


def test_clients_are_known_by_what_they_say_to_one_noise_image() -> None:
    method = fedmatch(threshold=0.0, lambda_a=1.0)
    state = method.warm_up(method.start(random_theta(1)), server_site(), generator(0))
    done = run_round(method, state, [2, 5])

    models, embeddings = known(done, "client"), known(done, "embedding")
    assert set(models) == set(embeddings) == {2, 5} and last_seen(done) == {2: 0, 5: 0}
    noise = torch.randint(0, 256, (1, 1, 8, 8), dtype=torch.uint8, generator=stream(0, "fedmatch", "noise"))
    for k in (2, 5):
        expected = linear_logits(state.sigma + models[k], noise).softmax(1)[0]
        torch.testing.assert_close(embeddings[k], expected)
    assert not torch.equal(models[2], models[5])


def test_helpers_go_every_interval_rounds_to_clients_seen_before() -> None:
    method = fedmatch(interval=3, helpers=2, threshold=0.0)
    state = method.start(random_theta(1))
    sent = {}
    for t, cohort in enumerate([[1, 0, 2], [3, 4], [0, 9], [0, 4], [0, 1], [5, 3], [2]]):
        state = server_turn(method, state, server_site(), generator(t))
        for k in cohort:
            sent[t, k] = sorted(name for name in method.broadcast(state, k) if name.startswith("helper"))
        state = run_round(method, state, cohort)
    both = ["helper0", "helper1"]
    assert {place: names for place, names in sent.items() if names} == {(2, 0): both, (5, 3): both}
    # rounds 2 and 5, the third and the sixth; 9 in round 2 and 5 in round 5 come for the first time


def test_the_helpers_sent_are_the_models_of_the_nearest_clients() -> None:
    method = fedmatch(interval=1, helpers=2, threshold=0.0, lambda_a=1.0, lambda_l2=0.0, lambda_s=0.1)
    state = method.warm_up(method.start(random_theta(1)), server_site(), generator(0))
    state = run_round(method, state, [0, 1, 2, 3, 4])
    state = server_turn(method, state, server_site(), generator(1))
    models = known(state, "client")
    place = {k: e.double() for k, e in known(state, "embedding").items()}
    distance = {k: float((place[k] - place[1]).norm()) for k in (0, 2, 3, 4)}
    assert min(abs(a - b) for a in distance.values() for b in distance.values() if a != b) > 1e-6
    nearest = sorted(distance, key=distance.__getitem__)[:2]
    payload = method.broadcast(state, 1)
    assert torch.equal(payload["helper0"], models[nearest[0]])
    assert torch.equal(payload["helper1"], models[nearest[1]])


@pytest.mark.parametrize("delta", [0.0, 1e-3, 1e-2])
def test_bytes_down_are_those_a_client_with_a_copy_would_need(delta: float) -> None:
    """Every client's copy of σ and ψ is kept here and brought up to date entry by entry; the entries are counted."""
    method = fedmatch(delta=delta, interval=2, threshold=0.0, lambda_l1=0.0, lambda_l2=0.0, lambda_a=0.5)
    copies: dict[int, dict[str, Tensor]] = {}
    state, server = method.start(random_theta(1)), server_site(4)
    draw = np.random.default_rng(7)
    fewer = 0
    for t in range(8):
        server.labeled.samples.data[:] = 0
        server.labeled.samples.data[:, :, t % 8] = 200  # the server learns about one row of pixels a round
        state = server_turn(method, state, server, generator(t))
        cohort = sorted(int(k) for k in draw.choice(6, 3, replace=False))
        for k in cohort:
            payload = method.broadcast(state, k)
            expected = nbytes({n: v for n, v in payload.items() if n not in ("sigma", "psi")})
            for name in ("sigma", "psi"):
                whole = 4 * SIZE
                if k in copies:
                    changed = int((copies[k][name] != payload[name]).sum())
                    expected += min(whole, 8 * changed)
                    fewer += 8 * changed < whole
                else:
                    expected += whole
            assert method.bytes_down(state, k, payload) == expected, (t, k)
            copies[k] = {name: payload[name].clone() for name in ("sigma", "psi")}
        state = run_round(method, state, cohort)
    assert fewer > 0, "some client must have been spared something"


def test_what_travels_stays_within_delta_of_the_truth() -> None:
    method = fedmatch(delta=0.01, threshold=0.0)
    state = method.start(random_theta(1))
    for t in range(4):
        state = server_turn(method, state, server_site(), generator(t))
        for name, truth in (("sigma", state.sigma), ("psi", state.extra["psi"])):
            assert (state.extra[f"wire_{name}"] - truth).abs().max() <= 0.01
        state = run_round(method, state, [t % 2])
