"""fedmoments: what the spread of clients tells, EM on sums, and what few, small, odd or hostile clients do to it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from fedfew.aggregators import AGGREGATORS
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite, ClientUpdate, ServerSite, ServerState
from fedfew.data.samples import Vectors
from fedfew.methods.fedmoments.correction import logistic
from fedfew.methods.fedmoments.em import THINNEST, responsibilities, spread_of
from fedfew.methods.fedmoments.method import FedMoments
from fedfew.methods.fedmoments.method import features as features_of
from fedfew.methods.fedmoments.plausibility import implausible
from fedfew.methods.fedmoments.survey import Space, Survey, prior_of
from fedfew.methods.fedmoments.trust import class_weights, survey_weights
from fedfew.models.backbones.pretrained import LENGTH
from fedfew.models.layers import Head
from fedfew.runtime.gate import Gate
from fedfew.runtime.rounds import count, server_turn
from fedfew.runtime.wire import Wire
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised
from fedfew.transforms.privacy import Private

CLASSES, WIDTH = 4, 12
METHOD = FedMoments(Supervised(), LocalSGD(), AGGREGATORS["fedavg"], width=8, wide=12, survey=10_000)


def cloud(labels: Tensor, seed: int) -> Tensor:
    """Features of one length around class means of a quarter of the noise's length, as N×1×d."""
    means = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(7))
    noise = torch.randn(len(labels), WIDTH, generator=torch.Generator().manual_seed(seed))
    x = 2.0 + 0.6 * means[labels] + noise
    features: Tensor = (LENGTH * x / x.norm(dim=1, keepdim=True))[:, None].half()
    return features


@cache
def world(mu: float, clients: int = 60, images: int = 40) -> tuple[list[Tensor], list[Tensor], ServerSite, LabeledSet]:
    """Clients with class shares from Dir(μ), a server with three labels a class, and a test set."""
    rng = np.random.default_rng(3)
    shares = rng.dirichlet([mu] * CLASSES, clients)
    labels = [torch.from_numpy(rng.choice(CLASSES, images, p=share)) for share in shares]
    parts = [cloud(own, 100 + k) for k, own in enumerate(labels)]
    few = torch.arange(CLASSES).repeat(3)
    network = Network.of(Head(WIDTH, CLASSES))
    held = torch.arange(CLASSES).repeat(250)
    return (
        parts,
        labels,
        ServerSite(network, LabeledSet(Vectors(cloud(few, 1)), few), CLASSES),
        LabeledSet(Vectors(cloud(held, 2)), held),
    )


def accuracy(site: ServerSite, omega: Tensor, test: LabeledSet) -> float:
    site.network.load(omega)
    return float((site.network.probabilities(test.samples).argmax(1) == test.labels).float().mean())


def asked(method: FedMoments, state: ServerState, parts: Sequence[Tensor], who: Sequence[int], site: ServerSite
          ) -> list[ClientUpdate]:  # fmt: skip
    def update(k: int) -> ClientUpdate:
        client = ClientSite(k, site.network, Vectors(parts[k]), CLASSES)
        trained = method.train_client(method.broadcast(state, k), client, torch.Generator())
        return ClientUpdate(k, trained.reply, len(parts[k]), trained.metrics)

    return [update(k) for k in who]


def trained(method: FedMoments, parts: Sequence[Tensor], site: ServerSite, cohorts: Sequence[Sequence[int]]
            ) -> ServerState:  # fmt: skip
    state = method.start(site.network.snapshot())
    for cohort in cohorts:
        state = server_turn(method, state, site, torch.Generator())
        updates = asked(method, state, parts, cohort if method.asks(state) else [], site)
        state = replace(state, participation=count(state, updates), round=state.round + 1)
        state, _ = method.after_clients(state, updates, site, torch.Generator())
    return state


def survey_of(parts: Sequence[Tensor]) -> Survey:
    own = [features_of(Vectors(part)) for part in parts]
    total, x = [p.sum(0) for p in own], torch.cat(own)
    between = torch.stack([torch.outer(t, t) / len(p) for t, p in zip(total, own, strict=True)]).sum(0)
    sizes = torch.tensor([float(len(p)) for p in own])
    return Survey(len(x), float(sizes.square().sum()), len(own), x.sum(0), x.T @ x, between)


def test_without_a_pull_the_mix_is_the_clients_own_and_with_an_endless_one_the_global() -> None:
    scores = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 0.5]]).double()
    even = torch.tensor([0.5, 0.5]).double()
    assert torch.allclose(responsibilities(scores, 1e12, even, 5), scores.softmax(1))
    own = responsibilities(scores, 0.0, even, 200)
    assert float(own[2, 0]) > float(scores.softmax(1)[2, 0]), "two images of class 0 make a third likelier"


@pytest.mark.parametrize(("mu", "low", "high"), [(0.1, 0.1, 1.2), (1.0, 2.0, 8.0)])
def test_the_spread_of_clients_tells_directions_and_skew(mu: float, low: float, high: float) -> None:
    parts, *_ = world(mu, clients=200)
    survey = survey_of(parts)
    space = Space.of(survey, WIDTH)
    many = torch.arange(CLASSES).repeat(200)
    prior = prior_of(survey, space, 8, space(features_of(Vectors(cloud(many, 5)))), many, CLASSES)
    assert prior.seen == CLASSES - 1
    assert low < prior.alpha < high, "α = μ·C"


def test_clients_that_are_alike_show_no_direction() -> None:
    parts, _, site, _ = world(1e6, clients=200)
    survey = survey_of(parts)
    prior = prior_of(survey, Space.of(survey, WIDTH), 8, torch.randn(12, WIDTH).double(), site.labeled.labels, 4)
    assert prior.seen == 0
    assert prior.alpha > 1000


@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_skewed_clients_are_worth_more_than_the_labels(mu: float) -> None:
    parts, _, site, test = world(mu)
    everyone = [range(60)] * 12
    alone = METHOD.warm_up(METHOD.start(site.network.snapshot()), site, torch.Generator())
    found = trained(METHOD, parts, site, everyone)
    assert accuracy(site, found.omega, test) > accuracy(site, alone.omega, test) + 0.05
    assert not METHOD.asks(found), "it stops by itself, and leaves the clients alone from then on"


def test_the_sum_over_clients_is_all_that_is_needed() -> None:
    parts, _, site, _ = world(0.3)
    state = METHOD.before_clients(trained(METHOD, parts, site, [range(60)] * 2), site, torch.Generator())
    assert "weight" in state.extra, "the survey is done"
    updates = asked(METHOD, state, parts, range(60), site)
    everyone = replace(state, participation=count(state, updates))
    single, _ = METHOD.after_clients(everyone, updates, site, torch.Generator())
    whole = ClientUpdate(0, {"sums": torch.stack([u.reply["sums"] for u in updates]).sum(0)}, 60 * 40)
    summed, _ = METHOD.after_clients(everyone, [whole], site, torch.Generator())
    assert torch.allclose(single.omega, summed.omega, atol=2e-3)
    assert torch.allclose(single.extra["weight"], summed.extra["weight"], atol=1e-3)


def test_few_clients_a_round_come_to_the_same() -> None:
    parts, _, site, test = world(0.3)
    rng = np.random.default_rng(0)
    few = trained(METHOD, parts, site, [sorted(rng.choice(60, 12, replace=False)) for _ in range(60)])
    whole = trained(METHOD, parts, site, [range(60)] * 12)
    assert accuracy(site, few.omega, test) > accuracy(site, whole.omega, test) - 0.03


def test_small_and_empty_clients_do_no_harm() -> None:
    parts, _, site, test = world(0.3)
    pieces = [piece for part in parts for piece in (part[:3], part[3:4], part[:0])] + [part[4:] for part in parts]
    found = trained(METHOD, pieces, site, [range(len(pieces))] * 5)
    assert bool(torch.isfinite(found.omega).all())
    assert accuracy(site, found.omega, test) > 0.6


def test_one_client_and_one_label_a_class_do_no_harm() -> None:
    parts, _, site, _ = world(0.3)
    few = LabeledSet(site.labeled.samples.like(site.labeled.samples.data[:CLASSES]), site.labeled.labels[:CLASSES])
    found = trained(METHOD, parts[:1], replace(site, labeled=few), [range(1)] * 3)
    assert bool(torch.isfinite(found.omega).all())


def test_sums_that_so_few_images_cannot_give_are_refused() -> None:
    parts, _, site, _ = world(0.3)
    state = trained(METHOD, parts, site, [range(60)] * 2)
    update = asked(METHOD, state, parts, [0], site)[0]
    schema, payload = METHOD.reply_schema(site.network.layout), METHOD.broadcast(state, 0)
    assert Gate().check(update, payload, schema, 40) is None
    large = replace(update, reply={"sums": 30 * update.reply["sums"]})
    fault = Gate().check(large, payload, schema, 40)
    assert fault is not None
    assert fault.code == "E406"
    odd = replace(update, reply={"sums": update.reply["sums"][:-1]})
    after, _ = METHOD.after_clients(replace(state, participation={0: 2}), [odd], site, torch.Generator())
    assert torch.equal(after.omega, state.omega), "an answer to another question is left out"


def test_sums_can_be_private() -> None:
    parts, _, site, _ = world(0.3)
    state = trained(METHOD, parts, site, [range(60)] * 2)
    client = ClientSite(0, site.network, Vectors(parts[0]), CLASSES)
    wire = Wire(METHOD, [Private(1.0, 0.0)])
    sent = wire.train_client(METHOD.broadcast(state, 0), client, torch.Generator())
    assert float(sent.reply["sums"].norm()) == pytest.approx(1.0, abs=1e-4)
    assert sent.examples == 1


def test_sums_that_no_images_give_are_refused() -> None:
    parts, _, site, _ = world(0.3)
    state = METHOD.start(site.network.snapshot())
    step = METHOD.before_clients(trained(METHOD, parts, site, [range(60)] * 2), site, torch.Generator())
    for now in (state, step):
        payload, (update,) = METHOD.broadcast(now, 0), asked(METHOD, now, parts, [0], site)
        sums, n = update.reply["sums"], update.examples
        assert implausible(sums, payload, n) == ""
        claimed = sums.clone()
        claimed[:2] += 100.0
        for lie in (-sums, 10 * sums, claimed):
            assert implausible(lie, payload, n)


@pytest.mark.parametrize("penalty", [0.1, 3.0])
def test_logistic_regression_ends_where_its_gradient_is_zero(penalty: float) -> None:
    rng = torch.Generator().manual_seed(0)
    x, labels = torch.randn(40, 12, generator=rng).double(), torch.arange(40) % 4
    offset = torch.randn(40, 4, generator=rng).double()
    weight, bias = (found.requires_grad_() for found in logistic(x, labels, offset, penalty))
    size = weight.square().sum() + bias.square().sum()
    (torch.nn.functional.cross_entropy(offset + x @ weight + bias, labels) + penalty / 2 * size).backward()
    assert weight.grad is not None and bias.grad is not None
    assert float(weight.grad.abs().max()) < 1e-4 and float(bias.grad.abs().max()) < 1e-4


def test_a_client_is_surveyed_once() -> None:
    parts, _, site, _ = world(0.3)
    state = METHOD.before_clients(trained(METHOD, parts[:30], site, [range(10)]), site, torch.Generator())
    assert "weight" not in state.extra, "the survey goes on: it wants more images"
    again, new = asked(METHOD, state, parts, [0, 20], site)
    assert again.reply["sums"].shape == (0,) and new.reply["sums"].shape == (WIDTH + WIDTH * (WIDTH + 1) // 2,)
    schema = METHOD.reply_schema(site.network.layout)
    assert Gate().check(again, METHOD.broadcast(state, 0), schema, 40, CLASSES) is None
    assert implausible(again.reply["sums"], METHOD.broadcast(state, 0), 40) == ""


def test_clients_of_other_classes_than_were_surveyed_do_no_harm() -> None:
    parts, labels, site, test = world(0.1, clients=90)
    mostly = [int(own.bincount(minlength=CLASSES).argmax()) for own in labels]
    surveyed = [k for k in range(90) if mostly[k] < 2] + [k for k in range(90) if mostly[k] >= 2][:4]
    others = [k for k in range(90) if k not in surveyed]
    alone = METHOD.warm_up(METHOD.start(site.network.snapshot()), site, torch.Generator())
    found = trained(METHOD, parts, site, [surveyed] * 2 + [others] * 4)
    assert accuracy(site, found.omega, test) > accuracy(site, alone.omega, test) - 0.05


def test_no_direction_is_thinner_than_it_can_be() -> None:
    sound, odd = torch.diag(torch.tensor([0.3, 1.0])).double(), torch.diag(torch.tensor([-0.05, 1.0])).double()
    assert spread_of(sound) is sound
    assert torch.allclose(spread_of(odd), torch.diag(torch.tensor([THINNEST, 1.0])).double())


def test_a_class_without_labels_and_an_uneven_server_do_no_harm() -> None:
    parts, _, site, test = world(0.3)
    some = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    labeled = LabeledSet(Vectors(cloud(some, 1)), some)
    for method in (METHOD, replace(METHOD, mix="labels")):
        found = trained(method, parts, replace(site, labeled=labeled), [range(60)] * 5)
        assert bool(torch.isfinite(found.omega).all())
        assert accuracy(site, found.omega, test) > 0.3


def class_parts(sums: Tensor, width: int) -> tuple[Tensor, Tensor]:
    return sums[:CLASSES], sums[CLASSES : CLASSES * (width + 1)].view(CLASSES, width)


@pytest.mark.parametrize("mu", [0.05, 0.3])
def test_sums_for_the_wrong_classes_are_refused_and_skewed_clients_are_not(mu: float) -> None:
    """What is claimed for a class scores at least as high in it as what is claimed for another."""
    parts, _, site, _ = world(mu)
    state = trained(METHOD, parts, site, [range(60)] * 2)
    payload, updates = METHOD.broadcast(state, 0), asked(METHOD, state, parts, range(60), site)
    refused = []
    for update in updates:
        sums = update.reply["sums"]
        assert implausible(sums, payload, update.examples) == ""
        lie = sums.clone()
        for part in class_parts(lie, WIDTH):
            part[:] = part.roll(1, 0)
        refused.append("another class" in implausible(lie, payload, update.examples))
    assert sum(refused) > 50


@pytest.mark.parametrize("mu", [0.05, 0.3])
def test_what_scores_do_not_see_is_held_back_and_honest_sums_keep_their_bits(mu: float) -> None:
    parts, _, site, _ = world(mu)
    for rounds in (2, 4):
        state = trained(METHOD, parts, site, [range(60)] * rounds)
        space = Space(state.extra["centre"], state.extra["basis"], state.extra["values"])
        replies = [u.reply["sums"].clone() for u in asked(METHOD, state, parts, range(60), site)]
        assert class_weights(replies, space, CLASSES) == [1.0] * 60
    seen = torch.linalg.qr(state.extra["weight"]).Q
    for lie in replies[:10]:
        counts, moments = class_parts(lie, WIDTH)
        blind = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1))
        blind = blind - blind @ seen @ seen.T
        moments += LENGTH * counts[:, None] * blind / blind.norm(dim=1, keepdim=True)
    weights = class_weights(replies, space, CLASSES)
    assert max(weights[:10]) < 0.5 and weights[10:] == [1.0] * 50
    assert class_weights(replies[:2], space, CLASSES) == [1.0] * 2, "two cannot be compared"
    copied = class_weights([replies[20]] * 4 + replies[21:], space, CLASSES)
    assert copied == [0.25] * 4 + [1.0] * 39, "who sends what another sends makes it no heavier"


def test_a_survey_further_off_than_any_class_counts_less() -> None:
    parts, _, site, _ = world(0.05)
    labeled, labels = features_of(site.labeled.samples), site.labeled.labels
    means = [features_of(Vectors(part)).mean(0) for part in parts]
    assert survey_weights(means, labeled, labels) == [1.0] * 60
    assert survey_weights([-means[0], *means[1:]], labeled, labels) == [0.0] + [1.0] * 59
    shifted = [mean + 100 for mean in means]
    assert survey_weights(shifted, labeled, labels) == [1.0] * 60, "all from another camera"
    assert survey_weights([], labeled, labels) == []


def test_what_only_clients_differ_in_is_not_taken_for_classes() -> None:
    """A camera of its own shifts all features of a client; where classes are alike everywhere, that is all it shows."""
    parts, _, site, _ = world(100.0)
    rng = torch.Generator().manual_seed(5)
    blind = torch.randn(1, 1, WIDTH, generator=rng)
    shifted = [part.float() + 2 * torch.randn(1, generator=rng) * blind for part in parts]
    survey = survey_of([(LENGTH * x / x.norm(dim=2, keepdim=True)).half() for x in shifted])
    space = Space.of(survey, WIDTH)
    mine = space(features_of(site.labeled.samples))
    assert prior_of(survey, space, WIDTH, mine, site.labeled.labels, CLASSES).seen == 0
