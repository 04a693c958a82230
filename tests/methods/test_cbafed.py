"""CBAFed: thresholds, fixed labels, counts and mixed models by hand."""

from dataclasses import replace
from statistics import stdev
from typing import Any

import pytest
import torch
from tests.methods.tiny import generator as seeded
from tests.methods.tiny import linear_network as net
from tests.methods.tiny import random_images as images
from tests.methods.tiny import theta
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.aggregators import AGGREGATORS
from fedfew.config.schema import load
from fedfew.core.errors import ConfigErrors
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite, ClientUpdate, Outcome, ServerSite, ServerState
from fedfew.data.samples import Images
from fedfew.methods.cbafed import CBAFed, miscounted, shares, trusted_counts
from fedfew.training.sgd import Hooks, LocalSGD, ResidualConnection, descend
from fedfew.training.supervised import Supervised, train_server

SGD = LocalSGD(epochs=2, batch=3, lr=0.05)


def client(network: Network, count: int = 12) -> ClientSite:
    return ClientSite(0, network, Images(images(count, 1), flips=False), 3)


def server(network: Network) -> ServerSite:
    return ServerSite(network, LabeledSet(Images(images(6, 9), flips=False), torch.tensor([0, 0, 0, 1, 1, 2])), 3)


def cbafed(sgd: LocalSGD = SGD, **options: Any) -> CBAFed:
    return CBAFed(Supervised(sgd), sgd, AGGREGATORS["fedavg"], **options)


def payload(omega: Tensor, counts: list[float]) -> dict[str, Tensor]:
    lr = torch.tensor(0.05, dtype=torch.float64)
    return {"omega": omega, "lr": lr, "shares": shares(torch.tensor(counts, dtype=torch.float64))}


# thresholds


def test_thresholds_by_hand() -> None:
    """Counts 6, 3, 1 of three classes: P = .3 · (.6, .3, .1) = (.18, .09, .03)."""
    p = shares(torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64))
    assert p.tolist() == pytest.approx([0.18, 0.09, 0.03])
    spread = stdev([0.18, 0.09, 0.03])
    assert spread == pytest.approx(0.07549834435)  # √((.08² + .01² + .07²)/2)
    expected = [0.84 + share - spread for share in (0.18, 0.09, 0.03)]
    assert cbafed().thresholds(p).tolist() == pytest.approx([0.9445016556, 0.8545016556, 0.7945016556])
    assert cbafed(highest=0.9).thresholds(p).tolist() == pytest.approx([0.9, *expected[1:]])
    assert cbafed(threshold=0.5).thresholds(p).tolist() == pytest.approx([e - 0.34 for e in expected])


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_classes_that_are_alike_have_the_same_threshold_however_many_there_are(classes: int) -> None:
    assert cbafed().thresholds(shares(torch.full((classes,), 7.0))).tolist() == pytest.approx([0.94] * classes)


def test_a_class_that_nobody_labels_gets_a_lower_threshold() -> None:
    network = net()
    site = replace(server(network), labeled=LabeledSet(Images(images(6, 9)), torch.arange(6) % 3))
    method = cbafed()
    state = method.warm_up(method.start(theta(network)), site, seeded())
    before = method.thresholds(state.extra["shares"])
    assert before.tolist() == pytest.approx([0.94] * 3), "the labels alone"
    update = ClientUpdate(0, {"psi": state.omega, "counts": torch.tensor([8.0, 6.0, 0.0])}, 14, {"steps": 1.0})
    after = method.thresholds(method.after_clients(state, [update], site, seeded())[0].extra["shares"])
    assert after[2] < after[1] < after[0] <= 0.95
    p = [0.3 * n / 20 for n in (10, 8, 2)]
    assert after[2] == pytest.approx(0.84 + p[2] - stdev(p)) and after[2] < before[2]


# a client


def test_labels_by_hand() -> None:
    """P = (.18, .09, .03), τ = (.945, .855, .795)."""
    given = shares(torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64))
    p = torch.tensor(
        [[0.96, 0.03, 0.01], [0.94, 0.05, 0.01], [0.90, 0.01, 0.09], [0.10, 0.88, 0.02], [0.10, 0.10, 0.80]]
    )
    assert cbafed(tail=0.0).labels(p, given).tolist() == [0, -1, -1, 1, 2]
    # class 2 is in the tail: an image that is not sure of class 0 goes to it if it comes second, not to class 1
    assert cbafed(tail=0.05).labels(p, given).tolist() == [0, -1, 2, 1, 2]


def test_labels_are_fixed_within_a_round() -> None:
    """Training makes the model surer, but no image gets a label, or another one, until the round's end."""
    network = net()
    omega, site = theta(network), client(network)
    method = cbafed(LocalSGD(epochs=30, batch=4, lr=0.05), threshold=0.5, tail=0.0)
    sent = payload(omega, [6.0, 3.0, 1.0])
    trained = method.train_client(sent, site, seeded(2))
    rng = seeded(2)
    views = site.samples.weak(rng).data
    later = method.labels(network.probabilities(Images(views)), sent["shares"])

    network.load(omega)
    expected = method.labels(network.probabilities(Images(views)), sent["shares"])
    assert trained.votes is not None and torch.equal(trained.votes, expected)
    kept = (expected >= 0).nonzero().squeeze(1)
    assert 0 < len(kept) < 12
    assert not torch.equal(later, expected), "the trained model would label more"

    # plain SGD on those views and labels
    network.set_training(True)
    for _ in range(30):
        for batch in torch.randperm(len(kept), generator=rng).split(4):
            network.gradient.zero_()
            cross_entropy(network(Images(views[kept[batch]])), expected[kept[batch]]).backward()
            network.vector.sub_(0.05 * network.gradient)
    assert torch.allclose(trained.reply["psi"], network.snapshot(), atol=1e-5)


def test_a_client_counts_its_labels() -> None:
    network = net()
    trained = cbafed(threshold=0.5).train_client(payload(theta(network), [6.0, 3.0, 1.0]), client(network), seeded(2))
    assert trained.votes is not None
    kept = [int((trained.votes == c).sum()) for c in range(3)]
    assert trained.reply["counts"].tolist() == kept and sum(kept) > 0
    assert trained.metrics == {"coverage": sum(kept) / 12, "steps": 2.0 * -(-sum(kept) // 3)}
    assert not any(name.startswith("class/") for name in trained.metrics)


@pytest.mark.parametrize("count", [12, 0])
def test_a_client_that_is_sure_of_nothing_sends_what_it_got(count: int) -> None:
    network = net()
    omega = theta(network, 1e-3)
    trained = cbafed().train_client(payload(omega, [1.0, 1.0, 1.0]), client(network, count), seeded(2))
    assert torch.equal(trained.reply["psi"], omega)
    assert trained.reply["counts"].tolist() == [0, 0, 0] and trained.metrics == {"coverage": 0.0, "steps": 0.0}


# the server


def test_descend_connects_between_passes() -> None:
    """A loss of slope −1 at η = 1 adds 1 in each pass: 1, 2, .8·1 + .2·3 = 1.4, 2.4, .8·1.4 + .2·3.4 = 1.8, …"""
    network, ends = net(), []
    parameters = list(network.module.parameters())

    def loss_of(_: Tensor) -> Tensor:
        return -torch.stack([p.sum() for p in parameters]).sum()

    for epochs in range(1, 8):
        network.load(torch.zeros(network.layout.size))
        residual = ResidualConnection(torch.zeros(network.layout.size), 0.8, 2)
        descend(network, LocalSGD(epochs=epochs, batch=4), 1.0, 4, loss_of, seeded(), Hooks(residual=residual))
        ends.append(float(network.vector[0]))
    assert ends == pytest.approx([1, 2, 1.4, 2.4, 1.8, 2.8, 2.2])


def test_the_server_trains_beside_the_clients() -> None:
    network = net()
    site, method, start = server(network), cbafed(warmup=3), theta(network)
    state = method.warm_up(method.start(start), site, seeded(7))
    rng, plain = seeded(7), ResidualConnection(torch.zeros_like(start), 0.8, 5)  # too few passes for a connection
    warm = train_server(method.server, start, method.start(start), site, rng, epochs=3, hooks=Hooks(residual=plain))
    assert torch.equal(state.omega, warm) and torch.equal(state.extra["earlier"], warm)
    assert torch.equal(state.sigma, train_server(method.server, warm, state, site, rng))
    assert torch.equal(method.broadcast(state, 0)["omega"], warm), "the clients start from ω, as the server does"
    assert state.extra["shares"].tolist() == pytest.approx([0.15, 0.1, 0.05])
    later = method.before_clients(replace(state, round=1, participation={0: 1}), site, seeded(8))
    assert torch.equal(later.omega, state.omega), "the warm-up is not repeated"


def ended(
    round: int, method: CBAFed, network: Network, answers: list[tuple[float, list[float]]]
) -> tuple[ServerState, Outcome]:
    """A round in which ω = 0, σ = 1, ω' = 5, and client k sends ψ_k everywhere with its counts; each has 20 images."""
    full = torch.ones(network.layout.size)
    extra = {"earlier": 5 * full, "shares": torch.full((3,), 0.1, dtype=torch.float64)}
    state = ServerState(round, 0 * full, full, extra=extra)
    updates = [
        ClientUpdate(k, {"psi": psi * full, "counts": torch.tensor(counts)}, 20, {"steps": 1.0})
        for k, (psi, counts) in enumerate(answers)
    ]
    return method.after_clients(state, updates, server(network), seeded())


def test_models_weigh_by_their_labels() -> None:
    """Six labels at the server, 12 and 2 pseudo-labels at the clients: (6·1 + 12·2 + 2·8) / 20 = 2.3."""
    network = net()
    answers = [(2.0, [6.0, 6.0, 0.0]), (8.0, [0.0, 0.0, 2.0]), (99.0, [0.0, 0.0, 0.0])]
    state, outcome = ended(1, cbafed(), network, answers)
    assert torch.allclose(state.omega, torch.tensor(2.3))
    assert outcome.weights == pytest.approx({0: 12 / 14, 1: 2 / 14}), "who labelled nothing is left out"
    assert outcome.metrics["server_share"] == pytest.approx(0.3)
    assert outcome.clients is not None and torch.allclose(outcome.clients, torch.tensor((12 * 2 + 2 * 8) / 14))
    total = [3 + 6, 2 + 6, 1 + 2]  # labels and pseudo-labels
    assert state.extra["shares"].tolist() == pytest.approx([0.3 * n / 20 for n in total])
    heavy, _ = ended(1, cbafed(label_weight=7.0), network, answers)
    assert torch.allclose(heavy.omega, torch.tensor((42 * 1 + 12 * 2 + 2 * 8) / 56))


def test_global_models_are_mixed_every_five_rounds() -> None:
    """ω = (6·1 + 6·3)/12 = 2, and .25·5 + .75·2 = 2.75 in the sixth round (counted from 0: 5, 10, …)."""
    network = net()
    method = cbafed(global_residual=0.25)
    for round, expected in ((0, 2.0), (4, 2.0), (5, 2.75), (6, 2.0), (10, 2.75)):
        state, _ = ended(round, method, network, [(3.0, [2.0, 2.0, 2.0])])
        assert torch.allclose(state.omega, torch.tensor(expected)), round
        kept = 2.75 if round in (5, 10) else 5.0
        assert torch.allclose(state.extra["earlier"], torch.tensor(kept)), round


def test_where_nobody_labels_anything_the_server_is_alone() -> None:
    network = net()
    state, outcome = ended(1, cbafed(), network, [(99.0, [0.0, 0.0, 0.0])])
    assert torch.equal(state.omega, torch.ones(network.layout.size)) and outcome.weights == {}


# what a client may claim


def test_counts_that_cannot_be_are_refused() -> None:
    assert not miscounted(torch.tensor([3.0, 2.0, 0.0]), {}, 5)
    for counts in ([3.0, 3.0, 0.0], [-1.0, 2.0, 0.0], [0.5] * 3):
        assert miscounted(torch.tensor(counts), {}, 5), counts


def test_no_more_labels_than_images_are_believed() -> None:
    update = ClientUpdate(0, {"counts": torch.tensor([30.0, -5.0, 10.0])}, 20)
    assert trusted_counts(update).tolist() == [15, 0, 5]
    assert trusted_counts(replace(update, examples=100)).tolist() == [30, 0, 10]


def test_privacy_does_not_cover_the_counts() -> None:
    with pytest.raises(ConfigErrors, match="sends more than a changed model"):
        load("cbafed", {"privacy.clip": 1.0})
