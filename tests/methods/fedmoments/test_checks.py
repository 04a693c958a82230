"""Sums that no images have are refused, and those unlike all others count less."""

from dataclasses import replace

import pytest
import torch
from tests.methods.fedmoments.scene import (
    CLASSES,
    METHOD,
    WIDTH,
    accuracy,
    alone,
    asked,
    cloud,
    survey_of,
    trained,
    world,
)
from torch import Tensor

from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite, ClientUpdate, ServerSite, ServerState
from fedfew.data.samples import Vectors
from fedfew.methods.fedmoments.basis import features as features_of
from fedfew.methods.fedmoments.em import ClassSums, without_few
from fedfew.methods.fedmoments.method import FEDMOMENTS
from fedfew.methods.fedmoments.plausibility import Implausible
from fedfew.methods.fedmoments.survey import Space, Tally
from fedfew.methods.fedmoments.trust import class_weights, survey_weights
from fedfew.models.backbones.pretrained import LENGTH
from fedfew.models.layers import Head
from fedfew.runtime.gate import Gate
from fedfew.runtime.wire import Wire

SHAPE = METHOD.shape(CLASSES, WIDTH)
RULE = Implausible(SHAPE)


def test_sums_that_so_few_images_cannot_give_are_refused() -> None:
    parts, _, site, _ = world(0.3)
    state = trained(METHOD, parts, site, [range(60)] * 2)
    update = asked(METHOD, state, parts, [0], site)[0]
    schema, payload = METHOD.reply_schema(site.network.layout), METHOD.broadcast(state, 0)
    assert Gate().check(update, payload, schema, 40) is None
    fault = Gate().check(replace(update, reply={"sums": 300 * update.reply["sums"]}), payload, schema, 40)
    assert fault is not None and fault.code == "E406"
    odd = replace(update, reply={"sums": update.reply["sums"][:-1]})
    after, _ = METHOD.after_clients(replace(state, participation={0: 2}), [odd], site, torch.Generator())
    assert torch.equal(after.omega, state.omega), "an answer to another question is left out"


def test_a_client_is_surveyed_once() -> None:
    parts, _, site, _ = world(0.3)
    state = METHOD.before_clients(trained(METHOD, parts[:30], site, [range(10)]), site, torch.Generator())
    assert "weight" not in state.extra, "the survey goes on: it wants more images"
    again, new = asked(METHOD, state, parts, [0, 20], site)
    assert again.reply["sums"].shape == (0,) and new.reply["sums"].shape == (Tally.length(WIDTH),)
    schema = METHOD.reply_schema(site.network.layout)
    assert Gate().check(again, METHOD.broadcast(state, 0), schema, 40, CLASSES) is None
    late = trained(METHOD, parts, site, [range(10)] * 3)
    assert asked(METHOD, late, parts, [20], site)[0].reply["sums"].shape == (SHAPE.length + Tally.length(WIDTH),)


def test_a_survey_that_no_images_give_is_refused() -> None:
    parts, _, site, _ = world(0.3)
    state = METHOD.warm_up(METHOD.start(site.network.snapshot()), site, torch.Generator())
    payload, (update,) = METHOD.broadcast(state, 0), asked(METHOD, state, parts, [0], site)
    sums = update.reply["sums"]
    assert RULE(sums, payload, 40) == ""
    turned, shifted = sums.clone(), sums.clone()
    turned[2 * WIDTH :] = 10 * sums[2 * WIDTH :].abs()  # products larger than their squares allow
    shifted[:WIDTH] += 100.0
    for lie in (-sums, 10 * sums, turned, shifted):
        assert RULE(lie, payload, 40)


@pytest.mark.parametrize("images", [1, 2, 40])
@pytest.mark.parametrize("copies", [1, 30])
def test_what_eight_bits_make_of_few_or_equal_images_is_accepted(images: int, copies: int) -> None:
    rng = torch.Generator().manual_seed(0)
    head = Head(64, CLASSES)
    network = Network.of(head)
    labels = torch.arange(CLASSES).repeat(5)
    x = torch.rand(20 + images, 1, 64, generator=rng) ** 4
    x = LENGTH * x / x.norm(dim=2, keepdim=True)
    site = ServerSite(network, LabeledSet(Vectors(x[:20]), labels), CLASSES)
    state = METHOD.warm_up(METHOD.start(network.snapshot()), site, torch.Generator())
    payload, wire = METHOD.broadcast(state, 0), Wire(METHOD, FEDMOMENTS.encoding)
    own = x[20:].repeat(copies, 1, 1)
    sent = wire.train_client(payload, ClientSite(0, network, Vectors(own), CLASSES), torch.Generator())
    decoded = wire.decode(ClientUpdate(0, sent.reply, len(own)), payload, network.layout)
    assert Gate().check(decoded, payload, METHOD.reply_schema(network.layout), len(own)) is None


def test_a_header_that_no_images_give_is_refused() -> None:
    parts, _, site, _ = world(0.3)
    state = trained(METHOD, parts, site, [range(60)] * 2)
    payload, (update,) = METHOD.broadcast(state, 0), asked(METHOD, state, parts, [0], site)
    honest = update.reply["sums"]
    assert RULE(honest, payload, 40) == ""
    curve = SHAPE.read(torch.arange(float(SHAPE.length)))[0].confidence.long()
    for index, value in ((1, 41.0), (1, -1.0), (int(curve[3]), 41.0), (int(curve[-1]), 40.0), (int(curve[-1]), 1.0)):
        lie = honest.clone()
        lie[index] = value
        assert RULE(lie, payload, 40), (index, value)


@pytest.mark.parametrize("mu", [0.05, 0.3])
def test_sums_for_the_wrong_classes_are_refused_and_skewed_clients_are_not(mu: float) -> None:
    """What is claimed for a class scores at least as high in it as what is claimed for another."""
    parts, _, site, _ = world(mu)
    state = trained(METHOD, parts, site, [range(60)] * 2)
    payload, updates = METHOD.broadcast(state, 0), asked(METHOD, state, parts, range(60), site)
    refused = []
    for update in updates:
        assert RULE(update.reply["sums"], payload, update.examples) == ""
        lie = update.reply["sums"].clone()
        for part in SHAPE.read(lie):
            part.counts[:], part.moments[:] = part.counts.roll(1), part.moments.roll(1, 0)
        refused.append("another class" in RULE(lie, payload, update.examples))
    assert sum(refused) > (50 if mu > 0.1 else 35), "a site with images of one class has no other to be compared with"


@pytest.mark.parametrize("mu", [0.05, 0.3])
def test_what_scores_do_not_see_is_held_back_and_honest_sums_keep_their_bits(mu: float) -> None:
    parts, _, site, _ = world(mu)
    state = trained(METHOD, parts, site, [range(60)] * 2)
    space, scale = Space.of(survey_of(parts)), state.extra["scale"].double()
    origin = state.extra["origin"].double()

    def read(sums: Tensor) -> ClassSums:
        part = SHAPE.read(sums.double())[0]
        return replace(part, moments=part.moments * scale + part.counts[:, None] * origin)

    clients = [read(u.reply["sums"]) for u in asked(METHOD, state, parts, range(60), site)]
    assert class_weights(clients, space) == [1.0] * 60
    copied = class_weights([clients[20]] * 4 + clients[21:], space)
    assert copied == [0.25] * 4 + [1.0] * 39, "who sends what another sends makes it no heavier"
    blind = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    seen = torch.linalg.qr(state.extra["weight"].double()).Q
    blind = blind - blind @ seen @ seen.T
    for k in range(10):
        push = LENGTH * clients[k].counts[:, None] * blind / blind.norm(dim=1, keepdim=True)
        clients[k] = replace(clients[k], moments=clients[k].moments + push)
    weights = class_weights(clients, space)
    assert max(weights[:10]) < 0.5 and weights[10:] == [1.0] * 50
    assert class_weights(clients[:2], space) == [1.0] * 2, "two cannot be compared"


def test_a_survey_further_off_than_any_class_counts_less() -> None:
    parts, _, site, _ = world(0.05)
    labeled, labels = features_of(site.labeled.samples), site.labeled.labels
    means, squares = [features_of(Vectors(part)).mean(0) for part in parts], [1.0] * 60
    assert survey_weights(means, squares, labeled, labels) == [1.0] * 60
    assert survey_weights([-means[0], *means[1:]], squares, labeled, labels) == [0.0] + [1.0] * 59
    assert survey_weights(means, [9.0, *squares[1:]], labeled, labels) == [0.0] + [1.0] * 59, "wider than all others"
    shifted = [mean + 100 for mean in means]
    assert survey_weights(shifted, squares, labeled, labels) == [1.0] * 60, "all from another camera"
    assert survey_weights([], [], labeled, labels) == []


def answer_of(labels: Tensor, fewest: int) -> tuple[list[ClassSums], bool]:
    """The sums of a client with images of these classes, and whether the gate accepts them."""
    parts, _, site, _ = world(0.3)
    payload = METHOD.broadcast(trained(METHOD, parts, site, [range(60)] * 2), 0)
    client = ClientSite(0, site.network, Vectors(cloud(labels, 9)), CLASSES, fewest=fewest)
    reply = METHOD.train_client(payload, client, torch.Generator()).reply
    update = ClientUpdate(0, reply, len(labels))
    refused = Gate().check(update, payload, METHOD.reply_schema(site.network.layout), len(labels))
    return SHAPE.read(reply["sums"][: SHAPE.length].double()), refused is None


@pytest.mark.parametrize("fewest", [1, 2, 3, 5, 8, 12, 20, 40])
def test_what_is_left_out_is_many_images_or_none_and_the_gate_accepts_the_rest(fewest: int) -> None:
    """The survey holds Σ y of all images: three that are left out would be known as a difference."""
    for last in (3, 10):
        labels = torch.tensor([0] * 30 + [CLASSES - 1] * last)
        (every, _), (kept, accepted) = answer_of(labels, 0), answer_of(labels, fewest)
        assert accepted
        for before, after in zip(every, kept, strict=True):
            few = before.counts < fewest
            assert not after.counts[few].any() and not after.moments[few].any()
            if float(before.counts[few].sum()) >= fewest or few.all():
                assert torch.equal(after.counts[~few], before.counts[~few])
                assert torch.equal(after.moments[~few], before.moments[~few])
            else:
                assert float(after.counts.sum()) == pytest.approx(len(labels), abs=1e-3)
                assert torch.allclose(after.moments.sum(0), before.moments.sum(0), atol=1e-3)


@pytest.mark.parametrize(("shares", "counts"), [
    ([0.5, 0.4, 0.1], [10 + 10 / 9, 8 + 8 / 9, 0]),
    ([0.4, 0.2, 0.2, 0.2], [8, 0, 0, 0]),
    ([0.24, 0.24, 0.24, 0.24, 0.04], [0, 0, 0, 0, 0]),
    ([0.25, 0.75, 0.0], [5, 15, 0]),
])  # fmt: skip
def test_nothing_that_a_client_sends_is_a_sum_of_fewer_than_five(shares: list[float], counts: list[float]) -> None:
    """Twenty images with the same responsibilities: 2 of 20 are shared out as 10 to 8; 12 of 20 are left out."""
    r = torch.tensor(shares, dtype=torch.float64).expand(20, -1)
    sums = without_few(r, 5).sum(0)
    assert torch.allclose(sums, torch.tensor(counts, dtype=torch.float64))
    rest = 20 - float(sums.sum())
    assert abs(rest) < 1e-9 or rest >= 5


def test_em_works_with_sites_that_leave_out_small_classes() -> None:
    """Forty images at each client, of few classes each: most are still heard."""
    parts, _, site, test = world(0.3)

    def leave_out(update: ClientUpdate, state: ServerState) -> ClientUpdate:
        client = ClientSite(update.client, site.network, Vectors(parts[update.client]), CLASSES, fewest=5)
        reply = METHOD.train_client(METHOD.broadcast(state, update.client), client, torch.Generator()).reply
        return replace(update, reply=reply)

    state = trained(METHOD, parts, site, [range(60)] * 8, leave_out)
    assert accuracy(site, state.omega, test) > accuracy(site, alone(METHOD, site), test) + 0.02


def test_a_site_refuses_sharp_scores_and_models_beyond_the_configs() -> None:
    parts, _, site, _ = world(0.3)
    layout = site.network.layout
    state = trained(METHOD, parts, site, [range(60)] * 3)
    payload = METHOD.broadcast(state, 61)
    survey = {name: payload[name] for name in ("survey", "origin", "scale")}
    assert METHOD.refused(payload, layout) == METHOD.refused(survey, layout) == ""
    assert "sharpness" in METHOD.refused(payload | {"weight": 1e4 * payload["weight"]}, layout)
    assert "sharpness" in METHOD.refused(payload | {"fold_weight": 1e4 * payload["fold_weight"]}, layout)
    more = payload | {"fold_weight": payload["fold_weight"].repeat(9, 1, 1)}
    assert "form" in METHOD.refused(more, layout), "every model is one more sum over the same images"
    for name in payload:
        lacking = {key: value for key, value in payload.items() if key != name}
        assert bool(METHOD.refused(lacking, layout)) == (name != "weight"), name


def test_a_site_refuses_units_and_mixes_that_single_out_an_image() -> None:
    """A row of ``scale`` for each image weighs them one by one; a negative mix makes r, of which ε depends, unbounded;
    an origin that is an image's u, with a scale of 0, makes that image's y, and all sums, not a number."""
    parts, _, site, _ = world(0.3)
    layout = site.network.layout
    payload = METHOD.broadcast(trained(METHOD, parts, site, [range(60)] * 3), 61)
    survey = {name: payload[name] for name in ("survey", "origin", "scale")}
    own = len(parts[0])
    for name in ("origin", "scale"):
        assert "form" in METHOD.refused(survey | {name: survey[name].expand(own, -1)}, layout)
    assert "scale" in METHOD.refused(survey | {"scale": 0 * survey["scale"]}, layout)
    for name in ("mix", "alpha"):
        assert "negative" in METHOD.refused(payload | {name: payload[name] - 2 * payload[name].max()}, layout)
    width = len(payload["scale"])
    shift = {"shift_into": torch.ones(width, 3), "shift_out": torch.ones(width, 3), "shift_alpha": torch.ones(())}
    assert METHOD.refused(payload | shift, layout) == ""
    assert "shift" in METHOD.refused(payload | shift | {"shift_out": torch.ones(width, 3, own)}, layout)
