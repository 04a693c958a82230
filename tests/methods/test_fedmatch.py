"""FedMatch: the two parts of the sum are trained by whom they belong to, helpers vote and pull, and little travels."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.methods.tiny import (
    CLASSES,
    MEAN,
    PIXELS,
    client_site,
    generator,
    gradient_of,
    linear_logits,
    linear_network,
    random_images,
    random_theta,
    server_site,
)
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fedfew.core.layout import Payload, nbytes
from fedfew.core.streams import stream
from fedfew.core.types import ClientUpdate, ServerState
from fedfew.data.samples import Images
from fedfew.data.samples.randaugment import POOL, rand_augment
from fedfew.methods import fedmatch as module
from fedfew.methods.fedmatch import FEDMATCH_LITE, FedMatch
from fedfew.methods.fedmatch_helpers import known, last_seen, nearest
from fedfew.runtime.rounds import count, server_turn
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised, train_supervised

SIZE = CLASSES * (PIXELS + 1)


def fedmatch(**settings: Any) -> FedMatch:
    parts: dict[str, Any] = {
        "server": Supervised(LocalSGD(lr=0.2)), "client": LocalSGD(lr=0.1), "aggregator": MEAN, "threshold": 0.4,
    }  # fmt: skip
    return FedMatch(**(parts | settings))


def payload_of(sigma: Tensor, psi: Tensor, *helpers: Tensor, lr: float = 0.1) -> Payload:
    named = {f"helper{i}": vector for i, vector in enumerate(helpers)}
    return {"sigma": sigma, "psi": psi, "lr": torch.tensor(lr, dtype=torch.float64), **named}


def dense(reply: dict[str, Tensor]) -> Tensor:
    """The change of ψ that a sparse reply stands for."""
    change = torch.zeros(SIZE)
    change[reply["index"].long()] = reply["change"]
    return change


def test_the_model_is_the_sum_and_psi_starts_at_a_fifth() -> None:
    omega = random_theta(1)
    state = fedmatch().start(omega)
    torch.testing.assert_close(state.extra["psi"], 0.2 * omega)
    torch.testing.assert_close(state.sigma, omega)
    torch.testing.assert_close(state.omega, 1.2 * omega)


def test_the_server_trains_sigma_and_leaves_psi() -> None:
    method, site = fedmatch(lambda_s=3.0), server_site()
    state = method.start(random_theta(1))

    trained = method.warm_up(state, site, generator(0))

    sigma, psi = state.sigma.clone().requires_grad_(), state.extra["psi"]
    loss = cross_entropy(linear_logits(sigma + psi, site.labeled.samples.data), site.labeled.labels)
    torch.testing.assert_close(
        trained.sigma, (sigma - 0.2 * 3.0 * gradient_of(loss, sigma)).detach(), rtol=0, atol=1e-6
    )
    assert torch.equal(trained.extra["psi"], psi) and trained.sigma.ne(state.sigma).any()


def test_a_client_trains_psi_on_the_confident_and_leaves_sigma() -> None:
    site, sigma, psi, lr = client_site(0), random_theta(1), random_theta(2), 0.1
    method = fedmatch(lambda_a=0.7, lambda_l1=0.013, lambda_l2=0.11, delta=0.0, threshold=0.5)
    before = sigma.clone(), psi.clone()

    trained = method.train_client(payload_of(sigma, psi), site, generator(5))

    rng = generator(5)
    images = site.samples.data[torch.randperm(len(site), generator=rng)]
    confidence, labels = linear_logits(sigma + psi, images).softmax(1).max(1)
    keep = confidence >= 0.5
    assert 0 < int(keep.sum()) < len(site)
    variable = psi.clone().requires_grad_()
    log_p = linear_logits(sigma + variable, Images(images[keep]).strong(rng, module.STRONG).data).log_softmax(1)
    loss = -0.7 * log_p[torch.arange(int(keep.sum())), labels[keep]].mean()
    loss = loss + 0.013 * variable.abs().sum() + 0.11 * ((sigma - variable) ** 2).sum()
    torch.testing.assert_close(dense(trained.reply), -lr * gradient_of(loss, variable), rtol=0, atol=1e-6)
    assert torch.equal(sigma, before[0]) and torch.equal(psi, before[1])
    assert trained.metrics["coverage"] == pytest.approx(float(keep.float().mean()))


@pytest.mark.parametrize(("mine", "other"), [(0, 2), (2, 0)])
def test_the_agreement_label_is_that_of_most_votes_and_a_tie_is_the_clients(mine: int, other: int) -> None:
    network, images = linear_network(), random_images(1, 3).expand(5, -1, -1, -1)
    theta = torch.zeros(SIZE)
    theta[-CLASSES + mine] = 2.0  # a bias: the client says the same, whatever it sees
    network.load(theta)
    helpers = one_hot(torch.tensor([[mine, 1, 1, 1, other], [mine, 1, other, mine, other]]), CLASSES).float()  # H×B×C

    _, labels, keep = fedmatch(threshold=0.0).loss(network, Images(images), helpers, generator(0))

    # all agree; two helpers against the client; three ways, a tie; one helper against two; two against the client
    assert labels.tolist() == [mine, 1, mine, mine, other]
    assert keep.all()
    _, labels, _ = fedmatch(threshold=0.0).loss(network, Images(images), helpers[:1], generator(0))
    assert labels.tolist() == [mine] * 5, "one against one is a tie"


def test_inter_client_consistency_is_the_mean_kl_divergence_from_the_helpers() -> None:
    theta, images = random_theta(1), random_images(6, 3)
    network = linear_network()
    network.load(theta)
    own = linear_logits(theta, images).softmax(1)
    tau = float(own.max(1).values.sort().values[1:3].mean())  # four of six
    helpers = torch.stack([linear_logits(random_theta(s), images).softmax(1) for s in (7, 8)])

    loss, _, keep = fedmatch(lambda_a=0.0, lambda_i=0.6, threshold=tau).loss(
        network, Images(images), helpers, generator(0)
    )
    assert loss is not None and int(keep.sum()) == 4
    loss.backward()

    variable = theta.clone().requires_grad_()
    p = linear_logits(variable, images).softmax(1)
    divergences = [(h[i] * (h[i] / p[i]).log()).sum() for h in helpers for i in range(6) if keep[i]]
    expected = 0.6 * sum(divergences, torch.zeros(())) / len(divergences)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(network.gradient, gradient_of(expected, variable), rtol=1e-4, atol=1e-6)


def test_helpers_speak_as_sigma_plus_their_psi() -> None:
    """The round's training with helpers in the payload is that with their outputs worked out here."""
    site, sigma, psi = client_site(0), random_theta(1), random_theta(2)
    method = fedmatch(lambda_i=2.0, lambda_a=0.0, lambda_l1=0.0, lambda_l2=0.0, threshold=0.0, delta=0.0)
    others = random_theta(8), random_theta(9)

    change = dense(method.train_client(payload_of(sigma, psi, *others), site, generator(5)).reply)

    variable = psi.clone().requires_grad_()
    p = linear_logits(sigma + variable, site.samples.data).softmax(1)
    h = torch.stack([linear_logits(sigma + other, site.samples.data).softmax(1) for other in others])
    kl = (h * (h / p).log()).sum(2).mean()
    torch.testing.assert_close(change, -0.1 * gradient_of(2.0 * kl, variable), rtol=0, atol=1e-6)


def test_only_entries_that_changed_by_more_than_delta_travel() -> None:
    site, sigma, psi = client_site(0), random_theta(1), random_theta(2)
    site.samples.data[:, :, :2] = 0  # these pixels' weights have no gradient where no shift or turn reaches them
    method = fedmatch(lambda_l1=0.0, lambda_l2=0.0, lambda_a=1.0, delta=0.0)
    payload = payload_of(sigma, psi, lr=0.01)

    everything = method.train_client(payload, site, generator(5)).reply
    full = dense(everything)
    delta = float(full.abs().sort().values[SIZE // 2])
    some = replace(method, delta=delta).train_client(payload, site, generator(5)).reply

    expected = [i for i in range(SIZE) if abs(float(full[i])) > delta]
    assert some["index"].dtype == torch.int32 and some["index"].tolist() == expected
    assert 0 < len(expected) < SIZE // 2 + 1
    assert torch.equal(some["change"], full[expected])
    assert len(everything["index"]) == int((full != 0).sum()), "what did not change at all never travels"
    assert FedMatch.delta == 1e-5


def test_the_server_averages_what_the_clients_made_of_psi() -> None:
    method, site = fedmatch(helpers=0), server_site()
    state = method.warm_up(method.start(random_theta(1)), site, generator(0))
    replies = [
        {"index": torch.tensor([0, 3], dtype=torch.int32), "change": torch.tensor([0.5, 1.0])},
        {"index": torch.tensor([3], dtype=torch.int32), "change": torch.tensor([-2.0])},
    ]
    updates = [ClientUpdate(k, reply, 5, {}) for k, reply in enumerate(replies)]

    done, outcome = method.after_clients(replace(state, participation={0: 1, 1: 1}), updates, site, generator(0))

    expected = state.extra["wire_psi"].clone()
    expected[0] += 0.25  # (0.5 + 0) / 2
    expected[3] -= 0.5  # (1 − 2) / 2
    torch.testing.assert_close(done.extra["psi"], expected)
    torch.testing.assert_close(outcome.clients, state.sigma + expected)
    start = state.sigma + expected
    theta, _ = train_supervised(site.network, start, site.labeled, method.server, 0.2, generator(0), scale=10.0)
    torch.testing.assert_close(done.sigma, state.sigma + theta - start)
    torch.testing.assert_close(done.omega, done.sigma + expected)

    last = replace(method, order="before")
    done, outcome = last.after_clients(replace(state, participation={0: 1, 1: 1}), updates, site, generator(0))
    assert outcome.clients is not None and torch.equal(done.omega, outcome.clients)
    assert torch.equal(done.sigma, state.sigma)


def test_small_entries_of_psi_become_zero() -> None:
    sigma, psi = random_theta(1), torch.full((SIZE,), 0.5)
    psi[:4] = torch.tensor([0.004, -0.02, 0.009, 0.02])
    still = fedmatch(threshold=1.0, lambda_l1=0.0, lambda_l2=0.0, l1_threshold=0.01, delta=1e-6)
    trained = still.train_client(payload_of(sigma, psi), client_site(0), generator(0))
    after = psi + dense(trained.reply)
    torch.testing.assert_close(after[:4], torch.tensor([0.0, -0.02, 0.0, 0.02]), rtol=0, atol=1e-6)
    torch.testing.assert_close(after[4:], psi[4:], rtol=0, atol=1e-6)


def test_strong_views_are_fedmatchs() -> None:
    """Six operations out of the 13 that do something, each at a level below M, M drawn from 2 to 5 for each image."""
    images, others = random_images(64, 1), tuple(name for name in POOL if name != "identity")
    seen = Images(images).strong(generator(0), module.STRONG).data
    assert len(others) == 13
    assert torch.equal(seen, rand_augment(images, generator(0), layers=6, magnitude=(2, 5), pool=others))
    assert int((seen != images).flatten(1).any(1).sum()) > 48


def test_lite_is_fedmatch_without_helpers() -> None:
    lite = FEDMATCH_LITE.build(server=Supervised(), client=LocalSGD(), aggregator=MEAN, threshold=0.5)
    assert (lite.helpers, lite.lambda_i, lite.threshold, lite.lambda_a) == (0, 0.0, 0.5, 1e-2)
    site = server_site()
    state = lite.warm_up(lite.start(random_theta(1)), site, generator(0))
    updates = [ClientUpdate(0, lite.train_client(lite.broadcast(state, 0), client_site(0), generator(1)).reply, 12, {})]
    done, _ = lite.after_clients(replace(state, participation={0: 1}), updates, site, generator(2))
    assert not any(name.startswith(("client/", "embedding/")) for name in done.extra), "no library is kept"
    assert set(lite.broadcast(replace(done, round=10), 0)) == {"sigma", "psi", "lr"}


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
