"""fedmoments as a whole: what skewed sites add, and what few, small, odd or absent sites do to it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.methods.fedmoments.scene import CLASSES, METHOD, SERVER, WIDTH, accuracy, alone, asked, cloud, trained, world

from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite, ClientUpdate, ServerState
from fedfew.data.samples import Vectors
from fedfew.methods.fedmoments.method import FEDMOMENTS
from fedfew.methods.fedmoments.share import Share
from fedfew.methods.fedmoments.survey import Tally
from fedfew.methods.server_only import ServerOnly
from fedfew.models.backbones.pretrained import LENGTH
from fedfew.runtime.rounds import count, server_turn
from fedfew.runtime.wire import Wire
from fedfew.training.sgd import LocalSGD


@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_skewed_clients_are_worth_more_than_the_labels(mu: float) -> None:
    parts, _, site, test = world(mu)
    found = trained(METHOD, parts, site, [range(60)] * 12)
    assert accuracy(site, found.omega, test) > accuracy(site, alone(METHOD, site), test) + 0.05
    assert not METHOD.asks(found), "it stops by itself, and leaves the clients alone from then on"


def test_the_sum_over_clients_is_all_that_a_step_needs() -> None:
    parts, _, site, _ = world(0.3)
    state = trained(METHOD, parts, site, [range(60)] * 2)
    assert "weight" in state.extra, "the survey is done"
    updates = asked(METHOD, state, parts, range(60), site)
    single, _ = METHOD.after_clients(
        replace(state, participation=count(state, updates)), updates, site, torch.Generator()
    )
    total = torch.stack([u.reply["sums"] for u in updates]).sum(0)
    total[0] = updates[0].reply["sums"][0]  # the step
    whole = [ClientUpdate(0, {"sums": total}, 60 * 40)]
    summed, _ = METHOD.after_clients(replace(state, participation=count(state, whole)), whole, site, torch.Generator())
    assert torch.allclose(single.omega, summed.omega, atol=2e-3)
    assert torch.allclose(single.extra["weight"], summed.extra["weight"], atol=1e-3)


def test_two_of_three_sites_leave_in_the_middle() -> None:
    """With each site counted once, the one that is left does not take the place of the others."""
    parts, _, site, test = world(0.3, clients=3, images=500)
    slow = replace(METHOD, settled=0.0)
    undisturbed = trained(slow, parts, site, [range(3)] * 14)
    left = trained(slow, parts, site, [range(3)] * 3 + [range(1)] * 11)
    assert accuracy(site, left.omega, test) > accuracy(site, undisturbed.omega, test) - 0.01
    assert METHOD.asks(left), "one site is not most images: nothing has settled"
    early = trained(slow, parts, site, [range(3)] * 2 + [range(1)] * 12)
    assert accuracy(site, early.omega, test) > accuracy(site, alone(METHOD, site), test) - 0.01
    back = trained(slow, parts, site, [range(3)] * 3 + [range(1)] * 5 + [range(3)] * 12)
    assert accuracy(site, back.omega, test) > accuracy(site, undisturbed.omega, test) - 0.01


def test_any_order_of_answers_gives_the_same_model() -> None:
    """Where a step waits for all, clients may come in any groups: each step adds up the same sums."""
    parts, _, site, _ = world(0.3)
    patient = replace(METHOD, hear=1.0, patience=100, settled=0.0)
    together = trained(patient, parts, site, [range(60)] * 4)
    groups = [range(30, 60), range(20), range(10, 30)]
    apart = trained(patient, parts, site, [range(60)] * 2 + groups * 2)
    assert int(together.extra["step"]) == int(apart.extra["step"]) == 2
    assert torch.allclose(together.extra["sites"], apart.extra["sites"], atol=1e-4)


def test_who_has_answered_a_step_is_not_asked_again_and_counts_once() -> None:
    parts, _, site, _ = world(0.3)
    patient = replace(METHOD, hear=1.0, patience=100)
    state = trained(patient, parts, site, [range(60)] * 2 + [range(10)])
    (again,) = asked(patient, state, parts, [0], site)
    assert again.reply["sums"].shape == (0,)
    assert "weight" in patient.broadcast(state, 20)
    before = state.extra["answers/0"]
    repeated = [ClientUpdate(0, {"sums": before[1:]}, 40)] * 3
    after, _ = patient.after_clients(
        replace(state, participation=count(state, repeated)), repeated, site, torch.Generator()
    )
    assert torch.equal(after.extra["answers/0"], before)
    assert torch.equal(after.omega, state.omega)


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_few_clients_a_round_come_near_all(share: float) -> None:
    parts, _, site, test = world(0.3)
    rng = np.random.default_rng(0)
    few = trained(METHOD, parts, site, [sorted(rng.choice(60, int(60 * share), replace=False)) for _ in range(60)])
    whole = trained(METHOD, parts, site, [range(60)] * 12)
    assert accuracy(site, few.omega, test) > accuracy(site, whole.omega, test) - 0.05


def test_many_clients_answer_once_each() -> None:
    """A hundred thousand clients, of which each round asks others: online EM, and nothing is kept for each."""
    parts, _, site, test = world(0.3)
    many = replace(METHOD, population=100_000, survey=800)
    rng = np.random.default_rng(1)
    state = trained(many, parts * 20, site, [sorted(rng.choice(1200, 20, replace=False)) for _ in range(14)])
    assert accuracy(site, state.omega, test) > accuracy(site, alone(METHOD, site), test) + 0.05
    assert not any(name.startswith("answers/") for name in state.extra)


def zero(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.zeros_like(part) for part in parts]


def identical(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    return [parts[0][:1].expand_as(part).clone() for part in parts]


def one_image(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    return [part[:1] for part in parts]


def one_class(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    return [cloud(torch.zeros(40, dtype=torch.int64), 900 + k) for k in range(len(parts))]


def wrong_domain(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    noise = torch.randn(len(parts), 40, 1, WIDTH, generator=torch.Generator().manual_seed(4))
    return list((LENGTH * noise / noise.norm(dim=3, keepdim=True)).half())


def empty(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    return [part[:0] for part in parts[:-1]] + parts[-1:]


def of_no_class(parts: list[torch.Tensor], images: int = 8) -> list[torch.Tensor]:
    """With so many of 40 images a site that are alike and of none of the classes."""
    rng = torch.Generator().manual_seed(5)
    mean, noise = torch.randn(WIDTH, generator=rng), torch.randn(60, images, 1, WIDTH, generator=rng)
    odd = 2.0 + 0.9 * mean + noise
    odd = (LENGTH * odd / odd.norm(dim=3, keepdim=True)).half()
    return [torch.cat([part[images:], odd[k]]) for k, part in enumerate(parts)]


def mostly_of_no_class(parts: list[torch.Tensor]) -> list[torch.Tensor]:
    return of_no_class(parts, 28)


@pytest.mark.parametrize(
    "made", [of_no_class, mostly_of_no_class, zero, identical, one_image, one_class, wrong_domain, empty]
)
def test_useless_sites_do_no_harm(made) -> None:  # type: ignore[no-untyped-def]
    parts, _, site, test = world(0.3)
    found = trained(METHOD, made(parts), site, [range(60)] * 8)
    assert bool(torch.isfinite(found.omega).all())
    assert accuracy(site, found.omega, test) > accuracy(site, alone(METHOD, site), test) - 0.01


def test_where_sites_do_not_count_the_model_is_that_of_server_only_training_to_the_bit() -> None:
    parts, _, site, _ = world(0.3)
    start, method = torch.zeros_like(site.network.snapshot()), ServerOnly(SERVER, LocalSGD(), METHOD.aggregator)
    state = method.start(start)
    for t in range(8):
        state = replace(state, round=t, participation={0: t} if t else {})
        state, _ = method.after_clients(
            server_turn(method, state, site, torch.Generator()), [], site, torch.Generator()
        )
    found = trained(METHOD, wrong_domain(parts), site, [range(60)] * 8)
    assert float(found.extra["step"]) > 0, "sites were judged"
    assert torch.equal(found.omega, state.omega)


@pytest.mark.parametrize("liars", [5, 60])
def test_sums_of_the_wrong_classes_do_no_harm(liars: int) -> None:
    """All sites shift the classes of what they send: the gate would refuse it, but the labels see it too."""
    parts, _, site, test = world(0.3)
    shape = METHOD.shape(CLASSES, WIDTH)

    def shifted(update: ClientUpdate, state: ServerState) -> ClientUpdate:
        sums = update.reply["sums"].clone()
        if update.client < liars and "weight" in state.extra and len(sums):
            for part in shape.read(sums[: shape.length]):
                part.counts[:], part.moments[:] = part.counts.roll(1), part.moments.roll(1, 0)
        return replace(update, reply={"sums": sums})

    found = trained(METHOD, parts, site, [range(60)] * 8, shifted)
    assert accuracy(site, found.omega, test) > accuracy(site, alone(METHOD, site), test) - 0.01


@pytest.mark.parametrize("noise", [1.0, 100.0, 1e4])
def test_noise_never_ends_a_run(noise: float) -> None:
    parts, _, site, test = world(0.3)
    rng = torch.Generator().manual_seed(0)

    def noisy(update: ClientUpdate, state: ServerState) -> ClientUpdate:
        sums = update.reply["sums"]
        changed = sums + noise * torch.randn(sums.shape, generator=rng)
        if "weight" in state.extra and len(sums):
            changed[0] = sums[0]
        return replace(update, reply={"sums": changed}, examples=1 if noise > 10 else update.examples)

    found = trained(METHOD, parts, site, [range(60)] * 6, noisy)
    assert bool(torch.isfinite(found.omega).all())
    assert accuracy(site, found.omega, test) > accuracy(site, alone(METHOD, site), test) - 0.01


@pytest.mark.parametrize("labels", [1, 4])
def test_so_few_labels_that_nothing_can_be_judged_do_no_harm(labels: int) -> None:
    parts, _, site, _ = world(0.3)
    few = LabeledSet(site.labeled.samples.like(site.labeled.samples.data[:labels]), site.labeled.labels[:labels])
    found = trained(METHOD, parts[:1], replace(site, labeled=few), [range(1)] * 4)
    assert bool(torch.isfinite(found.omega).all())


def test_a_class_without_labels_and_an_uneven_server_do_no_harm() -> None:
    parts, _, site, test = world(0.3)
    some = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    uneven = replace(site, labeled=LabeledSet(Vectors(cloud(some, 1)), some))
    for mix in ("sites", "even", "labels"):
        found = trained(replace(METHOD, mix=mix), parts, uneven, [range(60)] * 5)
        assert accuracy(site, found.omega, test) > accuracy(site, alone(METHOD, uneven), test) - 0.01


def test_clients_of_other_classes_than_were_surveyed_do_no_harm() -> None:
    parts, labels, site, test = world(0.1, clients=90)
    mostly = [int(own.bincount(minlength=CLASSES).argmax()) for own in labels]
    surveyed = [k for k in range(90) if mostly[k] < 2] + [k for k in range(90) if mostly[k] >= 2][:4]
    others = [k for k in range(90) if k not in surveyed]
    found = trained(METHOD, parts, site, [surveyed] * 2 + [others] * 4)
    assert accuracy(site, found.omega, test) > accuracy(site, alone(METHOD, site), test) - 0.01


def test_sums_travel_in_eight_bits() -> None:
    parts, _, site, _ = world(0.3)
    wire = Wire(METHOD, FEDMOMENTS.encoding)
    state = trained(METHOD, parts, site, [range(60)] * 2)
    payload = METHOD.broadcast(replace(state, participation={}), 0)
    sent = wire.train_client(payload, ClientSite(0, site.network, Vectors(parts[0]), CLASSES), torch.Generator())
    exact = METHOD.train_client(payload, ClientSite(0, site.network, Vectors(parts[0]), CLASSES), torch.Generator())
    assert sent.reply["sums.code"].dtype == torch.int8
    assert sent.reply["sums.code"].numel() + sent.reply["sums.exact"].numel() == exact.reply["sums"].numel()
    decoded = wire.decode(ClientUpdate(0, sent.reply, 40), payload, site.network.layout).reply["sums"]
    header = METHOD.shape(CLASSES, WIDTH).header
    assert torch.equal(decoded[:header], exact.reply["sums"][:header])
    step = exact.reply["sums"][header:].abs().max() / 127
    assert float((decoded - exact.reply["sums"]).abs().max()) <= float(step) / 2 + 1e-6


def test_a_client_sends_at_most_150_kilobytes_in_a_run_of_seven_steps() -> None:
    """The defaults, ten classes on 1,280 features: a byte for each number, four for those that are exact."""
    method = FEDMOMENTS.method(SERVER, LocalSGD(), METHOD.aggregator)
    shape = method.shape(10, 1280)
    survey, step = Tally.length(shape.width), shape.length + 3 * shape.header
    assert survey == 384 + 384 * 385 // 2 == 74_304
    assert step == 10 * (384 + 4 * 128) + 4 * (2 + 5 * (10 + 19)) == 9_548
    assert survey + 7 * step <= 150_000


def test_a_client_that_is_forgotten_leaves_nothing_in_survey_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfew.methods.fedmoments.server.judged_share", lambda *_: Share(1.0, 1.0, 1.0))
    parts, _, site, _ = world(0.3, clients=3, images=500)
    method = METHOD
    surveyed = [trained(method, parts, site, [clients]).extra for clients in (range(3), range(2))]
    state = trained(method, parts, site, [range(3)] * 5)
    left, two = method.forget(state, 2, site), method.forget(trained(method, parts, site, [range(3)]), 2, site)
    assert left is not None and two is not None
    for name in ("survey_counts", "survey_sums", "survey_between"):
        assert torch.allclose(two.extra[name], surveyed[1][name], rtol=1e-12)
        assert not torch.allclose(surveyed[0][name], surveyed[1][name], rtol=1e-2)
    assert not any(name.endswith("/2") for name in left.extra) and sorted(left.participation) == [0, 1]
    assert not torch.equal(left.omega, state.omega)
    other = {name: t if not name.endswith("/2") else 7 * t for name, t in state.extra.items()}
    again = method.forget(replace(state, extra=other), 2, site)
    assert again is not None and torch.equal(again.omega, left.omega), "whatever it had sent"
    alone_again = method.forget(method.forget(left, 0, site) or left, 1, site)
    assert alone_again is not None and torch.equal(alone_again.omega, alone(method, site, 5)), "the labels are left"
    many, _, server, _ = world(0.3)
    assert method.forget(trained(METHOD, many, server, [range(20), range(33)]), 2, server) is None, "kept for few only"
