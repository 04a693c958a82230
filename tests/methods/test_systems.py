"""FedSiam, DS-FL and grouping: their equations with numbers worked out here, and the gradients of their terms."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods.tiny import generator as seeded
from tests.methods.tiny import linear_network as net
from tests.methods.tiny import random_images as images
from tests.methods.tiny import theta
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedfew.aggregators import AGGREGATORS
from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite, ClientUpdate, ServerSite, ServerState
from fedfew.data.samples import Images
from fedfew.methods.dsfl import DSFL, sharpened
from fedfew.methods.fedsiam import FEDSIAM_PI, FedSiam, following
from fedfew.methods.grouping import Grouping, deal, gradient_diversity
from fedfew.objectives.objective import soft_ramp
from fedfew.objectives.pseudo_labels import PseudoLabel
from fedfew.training.sgd import Hooks, LocalSGD
from fedfew.training.supervised import Supervised, train_server

SGD = LocalSGD(epochs=1, batch=4, lr=0.05, rounds=10)
SERVER = Supervised(SGD)


def client(network: Network, count: int = 8, k: int = 0) -> ClientSite:
    return ClientSite(k, network, Images(images(count, 20 + k), flips=False), 3)


def server(network: Network, open_images: int = 0) -> ServerSite:
    labeled = LabeledSet(Images(images(6, 9), flips=False), torch.arange(6) % 3)
    return ServerSite(network, labeled, 3, open=Images(images(open_images, 10), flips=False))


def answered(state: ServerState, count: int) -> ServerState:
    return replace(state, participation=dict.fromkeys(range(count), 1))


# FedSiam


def siam(**options: Any) -> FedSiam:
    return FedSiam(SERVER, SGD, AGGREGATORS["uniform"], **options)


def test_fedsiam_compares_the_online_network_with_the_target() -> None:
    network = net()
    online, target = theta(network), theta(network, 0.2, 4)
    network.load(online)
    method, rng = siam(noise=0.0), seeded(7)
    ours = method.loss(network, Images(images(5, 1), flips=False), target, seeded(7))
    one, other = Images(images(5, 1), flips=False).weak(rng).data, None
    torch.randn(one.shape, generator=rng)
    other = Images(images(5, 1), flips=False).weak(rng).data
    p = network(Images(other)).softmax(1)
    network.load(target)
    q = network(Images(one)).softmax(1).detach()
    assert ours.item() == pytest.approx(((p - q) ** 2).sum(1).mean().item(), rel=1e-5)


@pytest.mark.parametrize("uploads", ["both", "online"])
def test_the_agreement_has_a_gradient_in_the_online_network_alone(uploads: Any) -> None:
    network = net()
    network.load(theta(network))
    target = theta(network, 0.2, 4) if uploads == "both" else None
    before = None if target is None else target.clone()
    network.gradient.zero_()
    siam(uploads=uploads).loss(network, Images(images(5, 1), flips=False), target, seeded(7)).backward()
    assert float(network.gradient.norm()) > 1e-4
    assert target is None or (before is not None and torch.equal(target, before))


def test_the_target_follows_with_a_ramp() -> None:
    network = net()
    network.load(torch.full((network.layout.size,), 4.0))
    target = torch.zeros(network.layout.size)
    hooks = following(target, 0.75)
    assert hooks.after_step
    hooks.after_step(network)
    assert torch.allclose(target, torch.full_like(target, 1.0))

    omega, site = theta(network), client(network, 4)  # one batch: one step, after which the target follows once
    payload = {"omega": omega, "target": omega + 1, "lr": torch.tensor(0.05), "progress": torch.tensor(0.1)}
    trained = siam(decay=0.8).train_client(payload, site, seeded(2))
    a = 0.8 * soft_ramp(0.1, 0.2)
    expected = a * (omega + 1) + (1 - a) * trained.reply["psi"]
    assert torch.allclose(trained.reply["target"], expected, atol=1e-6)
    assert torch.equal(payload["target"], omega + 1), "what was sent is not changed"
    assert trained.votes is None


def test_fedsiam_pi_sends_half_and_has_no_target() -> None:
    network = net()
    method = FEDSIAM_PI.build(server=SERVER, client=SGD, aggregator=AGGREGATORS["uniform"])
    assert list(method.reply_schema(network.layout)) == ["psi"]
    assert list(siam().reply_schema(network.layout)) == ["psi", "target"]
    state = method.warm_up(method.start(theta(network)), server(network), seeded(0))
    payload = method.broadcast(state, 0)
    assert sorted(payload) == ["lr", "omega", "progress"]
    trained = method.train_client(payload, client(network), seeded(1))
    assert list(trained.reply) == ["psi"]
    assert not torch.equal(trained.reply["psi"], payload["omega"])


def test_both_networks_are_averaged_and_the_server_trains_the_online_one() -> None:
    network = net()
    site, method = server(network), siam()
    state = method.warm_up(method.start(theta(network)), site, seeded(0))
    assert torch.equal(state.extra["target"], state.sigma), "the first target is the first trained model"
    replies = [{"psi": state.sigma + d, "target": state.sigma - d} for d in (1.0, 3.0)]
    updates = [ClientUpdate(k, reply, 5, {"steps": 1.0}) for k, reply in enumerate(replies)]
    after, outcome = method.after_clients(answered(state, 2), updates, site, seeded(1))
    assert outcome.clients is not None and torch.allclose(outcome.clients, state.sigma + 2, atol=1e-5)
    steps: list[Tensor] = []
    hooks = Hooks(after_step=lambda net: steps.append(net.snapshot()))
    trained = train_server(SERVER, outcome.clients, state, site, seeded(1), hooks=hooks)
    assert torch.equal(after.omega, trained) and len(steps) > 1
    target, decay = state.sigma - 2, method.decay * np.exp(-5)  # the ramp's first value
    for online in steps:  # the target follows every step of the server, as it does at a client
        target = decay * target + (1 - decay) * online
    assert torch.allclose(after.extra["target"], target, atol=1e-5)
    begun = method.before_clients(replace(after, round=1), site, seeded(2))
    assert torch.equal(begun.extra["target"], after.extra["target"])
    assert torch.equal(begun.sigma, after.omega), "the server has had its turn"


# DS-FL


def dsfl(**options: Any) -> DSFL:
    objective = PseudoLabel(threshold=0.4)
    return DSFL(SERVER, SGD, AGGREGATORS["uniform"], objective, **options)


def test_entropy_reduction_by_hand() -> None:
    q = torch.tensor([[0.5, 0.3, 0.2]])
    exp = np.exp([5.0, 3.0, 2.0])
    assert sharpened(q, 0.1)[0].tolist() == pytest.approx((exp / exp.sum()).tolist(), rel=1e-5)


def test_clients_are_heard_on_the_open_images_and_the_server_distils() -> None:
    network = net()
    site, method = server(network, 12), dsfl(subset=7, distill_epochs=2)
    state = method.warm_up(method.start(theta(network)), site, seeded(0))
    asked = state.extra["open"]
    assert asked.shape == (7, 1, 8, 8)
    assert site.open is not None
    open_rows = {tuple(row.flatten().tolist()) for row in site.open.data}
    assert all(tuple(row.flatten().tolist()) in open_rows for row in asked)

    payload = method.broadcast(state, 0)
    trained = method.train_client(payload, client(network), seeded(1))
    assert list(trained.reply) == ["probabilities"]
    assert trained.reply["probabilities"].shape == (7, 3)
    assert torch.allclose(trained.reply["probabilities"], network.probabilities(Images(asked)))
    network.load(payload["omega"])
    assert not torch.allclose(trained.reply["probabilities"], network.probabilities(Images(asked))), (
        "the client trained first"
    )

    p = torch.rand(2, 7, 3, generator=seeded(4)).softmax(2)
    updates = [ClientUpdate(k, {"probabilities": p[k]}, 5) for k in range(2)]
    after, _ = method.after_clients(answered(state, 2), updates, site, seeded(5))
    rng = seeded(5)
    targets = sharpened((p[0] + p[1]) / 2, 0.1)
    middle = method.distill(state, site.open.like(asked), targets, site, rng)
    assert torch.allclose(after.omega, train_server(SERVER, middle, state, site, rng), atol=1e-5)


def test_distillation_is_the_cross_entropy_with_the_soft_target() -> None:
    network = net()
    site, method = server(network, 4), dsfl(subset=4, distill_epochs=1)
    start = theta(network)
    state = ServerState(0, start, start)
    asked, targets = site.open, torch.tensor([[0.7, 0.2, 0.1]]).repeat(4, 1)
    assert asked is not None
    moved = method.distill(state, asked, targets, site, seeded(3))
    rng = seeded(3)
    order = torch.randperm(4, generator=rng)
    network.load(start)
    network.gradient.zero_()
    cross_entropy(network(asked.take(order).weak(rng)), targets).backward()
    assert torch.allclose(moved, start - 0.05 * network.gradient, atol=1e-6)
    assert float(network.gradient.norm()) > 1e-3


def test_a_client_that_shouts_is_not_heard_better() -> None:
    network = net()
    site, method = server(network, 3), dsfl(subset=3)
    state = method.warm_up(method.start(theta(network)), site, seeded(0))
    honest = torch.tensor([[0.2, 0.5, 0.3]]).repeat(3, 1)
    loud, plain = torch.tensor([[1e6, 0.0, -5.0]]).repeat(3, 1), torch.tensor([[1.0, 0.0, 0.0]]).repeat(3, 1)
    results = []
    for reply in (loud, plain):
        updates = [ClientUpdate(0, {"probabilities": honest}, 5), ClientUpdate(1, {"probabilities": reply}, 5)]
        results.append(method.after_clients(answered(state, 2), updates, site, seeded(5))[0].omega)
    assert torch.equal(*results)


def test_too_small_an_open_set_is_refused_with_the_remedy() -> None:
    network = net()
    with pytest.raises(FedfewError, match=r"E113 dataset.open: method.subset is 9, but the open set has 4 images"):
        dsfl(subset=9).warm_up(dsfl().start(theta(network)), server(network, 4), seeded(0))


def test_a_model_whose_classes_cannot_be_told_is_refused() -> None:
    odd = Network.of(nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()))
    with pytest.raises(FedfewError, match=r"E113 model.name"):
        dsfl(subset=2).warm_up(dsfl().start(odd.snapshot()), server(odd, 4), seeded(0))


# Grouping


def grouping(**options: Any) -> Grouping:
    return Grouping(SERVER, SGD, AGGREGATORS["uniform"], **options)


def test_gradient_diversity_by_hand() -> None:
    same = [torch.tensor([1.0, 2.0])] * 4
    assert gradient_diversity(same) == pytest.approx(1 / 4)
    assert gradient_diversity([torch.tensor([1.0, 0.0]), torch.tensor([0.0, 5.0])]) == pytest.approx(1)
    a, b = np.array([3.0, 1.0]), np.array([-2.0, 1.0])
    expected = (a @ a + b @ b) / ((a + b) @ (a + b))
    assert gradient_diversity([torch.tensor(a), torch.tensor(b)]) == pytest.approx(expected)
    assert gradient_diversity([torch.zeros(2)]) == 0


def test_deal_gives_everyone_a_group() -> None:
    groups = deal(7, 3, seeded(0))
    assert sorted(len(g) for g in groups) == [2, 2, 3]
    assert sorted(torch.cat(groups).tolist()) == list(range(7))
    assert len(deal(2, 5, seeded(0))) == 2


def test_groups_part_ways_and_their_models_go_out_again() -> None:
    network = net()
    site, method = server(network), grouping(groups=2)
    state = method.warm_up(method.start(theta(network)), site, seeded(0))
    updates = [ClientUpdate(k, {"psi": state.omega + k}, 5, {"steps": 1.0}) for k in range(4)]
    after, outcome = method.after_clients(answered(state, 4), updates, site, seeded(1))
    assert outcome.weights == pytest.approx(dict.fromkeys(range(4), 1 / 6)), "the server counts as one more client"
    models = after.extra["groups"]
    assert models.shape[0] == 2
    assert not torch.allclose(models[0], models[1])
    members = deal(4, 2, seeded(1))
    for model, group in zip(models, members, strict=True):
        assert torch.allclose(
            model, (state.sigma + sum(updates[i].reply["psi"] for i in group.tolist())) / 3, atol=1e-5
        )
    assert torch.allclose(after.omega, models.mean(0), atol=1e-6)
    after = method.before_clients(replace(after, round=1), site, seeded(2))
    sent = [method.broadcast(after, k)["omega"] for k in range(20)]
    which = [int(torch.equal(vector, models[1])) for vector in sent]
    assert all(torch.equal(vector, models[i]) for vector, i in zip(sent, which, strict=True))
    assert 0 < sum(which) < 20
    assert torch.equal(sent[3], method.broadcast(after, 3)["omega"]), "asked twice, the same model"
