"""Sites with a scanner of their own: told apart from sites with a class mix of their own, and taken back."""

from dataclasses import replace

import pytest
import torch
from tests.methods.fedmoments.scene import METHOD, trained, world
from tests.methods.fedmoments.scene import WIDTH as SCENE_WIDTH
from torch import Tensor

from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientUpdate, ServerSite, ServerState
from fedfew.data.samples import Vectors
from fedfew.methods.fedmoments.shift import Shift, shift_of
from fedfew.methods.fedmoments.survey import Survey

WIDTH, CLASSES, IMAGES = 12, 3, 200
MEANS = torch.zeros(CLASSES, WIDTH, dtype=torch.float64)
MEANS[0, 0] = MEANS[1, 1] = MEANS[2, 2] = 2.0
MEANS -= MEANS.mean(0)
MOVED = torch.zeros(2, WIDTH, dtype=torch.float64)
MOVED[0, 5] = MOVED[1, 6] = 2.0
"""What two scanners do to the labeled images."""


def images(mix: Tensor, shift: Tensor, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    classes = torch.multinomial(mix, IMAGES, replacement=True, generator=rng)
    return MEANS[classes] + shift + torch.randn(IMAGES, WIDTH, generator=rng).double()


def survey_of(sites: list[Tensor]) -> Survey:
    sums = [v.sum(0) for v in sites]
    return Survey(
        float(len(sites) * IMAGES), float(len(sites) * IMAGES**2), float(len(sites)), torch.stack(sums).sum(0),
        torch.stack([v.T @ v for v in sites]).sum(0), torch.stack([torch.outer(s, s) / IMAGES for s in sums]).sum(0),
    )  # fmt: skip


def estimated(sites: list[Tensor]) -> Shift | None:
    labels = torch.arange(30) % CLASSES
    labeled = MEANS[labels] + torch.randn(30, WIDTH, generator=torch.Generator().manual_seed(99)).double()
    return shift_of(survey_of(sites), labeled - labeled.mean(0), labels, CLASSES, MOVED)


def test_sites_that_differ_in_their_classes_alone_have_no_shift() -> None:
    mixes = 0.1 + 0.9 * torch.eye(CLASSES)[torch.arange(6) % CLASSES]
    assert estimated([images(mix, torch.zeros(WIDTH), k) for k, mix in enumerate(mixes)]) is None
    assert estimated([images(torch.ones(CLASSES), torch.zeros(WIDTH), k) for k in range(6)]) is None


def test_a_scanner_s_shift_is_found_beside_the_class_mix_and_taken_back() -> None:
    mixes = 0.1 + 0.9 * torch.eye(CLASSES)[torch.arange(6) % CLASSES]
    true = torch.zeros(6, WIDTH, dtype=torch.float64)
    true[0, 5], true[1, 6] = 3.0, -3.0
    sites = [images(mix, b, k) for k, (mix, b) in enumerate(zip(mixes, true, strict=True))]
    shift = estimated(sites)
    assert shift is not None and shift.gain > 5
    # 200 images of variance 1, and 30 labels whose mean is the origin: an error of √(1/200 + 1/30) = 0.2
    for v, b in zip(sites, true, strict=True):
        assert shift.of_site(v).tolist() == pytest.approx(b.tolist(), abs=3 * 0.2)


def test_the_survey_of_aligned_images_is_that_of_images_without_their_shift() -> None:
    sites = [images(torch.ones(CLASSES), 3 * (k % 2) * MOVED[0], k) for k in range(4)]
    shift = estimated(sites)
    assert shift is not None
    expected, aligned = survey_of([v - shift.of_site(v) for v in sites]), shift.aligned(survey_of(sites))
    assert torch.allclose(aligned.total, expected.total)
    assert torch.allclose(aligned.second, expected.second)
    assert torch.allclose(aligned.between, expected.between)


def test_a_shift_travels_and_none_does_too() -> None:
    into, out = torch.rand(WIDTH, 2).double(), torch.rand(WIDTH, 2).double()
    sent = Shift.sent(Shift(into, out, 4.0, 9.0).tensors())
    assert sent is not None and sent.alpha == 4
    v = torch.ones(3, WIDTH).double()
    assert torch.allclose(sent.of_site(v), out @ into.sum(0), rtol=1e-6)
    assert Shift.sent({}) is None


def scanned_world() -> tuple[list[Tensor], ServerSite, LabeledSet]:
    """Ten clients, each of which has moved all its features in one of two directions, and a server that knows both."""
    parts, _, site, test = world(1.0, 10, 100)
    rng = torch.Generator().manual_seed(5)
    moved = torch.randn(2, SCENE_WIDTH, generator=rng)
    amount = 2 * torch.rand(10, generator=rng) - 1
    parts = [part + a * moved[k % 2] for k, (part, a) in enumerate(zip(parts, amount, strict=True))]
    server = Vectors(site.labeled.samples.data, moved=moved)
    return parts, replace(site, labeled=LabeledSet(server, site.labeled.labels)), test


def test_the_method_finds_the_sites_shift_and_every_answer_is_plausible() -> None:
    parts, site, _ = scanned_world()
    rule = METHOD.reply_schema(site.network.layout)["sums"].rule
    assert rule is not None

    def checked(update: ClientUpdate, state: ServerState) -> ClientUpdate:
        assert rule(update.reply["sums"], METHOD.broadcast(state, update.client), update.examples) == ""
        return update

    state = trained(METHOD, parts, site, [range(10)] * 8, checked)
    assert Shift.sent(state.extra) is not None
    assert Shift.sent(trained(replace(METHOD, scanners=False), parts, site, [range(10)] * 3).extra) is None


def test_without_a_shift_nothing_changes() -> None:
    parts, _, site, _ = world(1.0, 10, 100)
    moved = torch.randn(2, SCENE_WIDTH, generator=torch.Generator().manual_seed(5))
    known = replace(site, labeled=LabeledSet(Vectors(site.labeled.samples.data, moved=moved), site.labeled.labels))
    one, other = (trained(METHOD, parts, server, [range(10)] * 8) for server in (site, known))
    assert torch.equal(one.omega, other.omega)
