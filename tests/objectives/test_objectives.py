"""Each client objective against its equation written out, and its gradient in the model it should train."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet
from fedfew.core.types import ClientSite, ServerSite, ServerState
from fedfew.data.samples import Images
from fedfew.objectives import OBJECTIVES
from fedfew.objectives.consistency import KLConsistency, MeanTeacher, PiModel, TemporalEnsembling
from fedfew.objectives.objective import Step, ramp, soft_ramp
from fedfew.objectives.pseudo_labels import UDA, FixMatch, MixMatch, PseudoLabel, beta_draw
from fedfew.training.label_shift import Voting, em_prior, shifted, tempered
from fedfew.training.sgd import LocalSGD, descend
from fedfew.training.supervised import Supervised, train_server, train_supervised

ALL = torch.arange(6)


def rng_of(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_site(seed: int = 0, scale: float = 1.2) -> ClientSite:
    """Six 8×8 images and a linear model that has opinions about them."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, scale / 8, generator=rng_of(seed))
    images = torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8, generator=rng_of(seed + 1))
    return ClientSite(0, Network.of(module), Images(images, flips=False), 3)


def probabilities(site: ClientSite, images: Tensor) -> Tensor:
    return site.network(Images(images)).softmax(1)


def value(step: Step) -> float:
    assert step.loss is not None
    return step.loss.item()


def listed(tensor: Tensor | None) -> list[float]:
    assert tensor is not None
    return list(tensor.tolist())


def test_ramps() -> None:
    assert [ramp(0, 0.2), ramp(0.1, 0.2), ramp(0.3, 0.2), ramp(0, 0)] == [0, 0.5, 1, 1]
    assert soft_ramp(0.1, 0.2) == pytest.approx(math.exp(-5 * 0.25))
    assert soft_ramp(0, 0) == 1


def test_pseudo_label_is_the_cross_entropy_of_the_confident() -> None:
    site = small_site()
    outcome = PseudoLabel(threshold=0.6, weight=2.0, ramp=0.5).begin(site, 0.25, rng_of())(ALL)
    p = probabilities(site, site.samples.data)
    keep = p.max(1).values >= 0.6
    assert 0 < int(keep.sum()) < 6
    views = site.samples.take(keep).weak(rng_of()).data
    expected = 2.0 * 0.5 * cross_entropy(site.network(Images(views)), p.argmax(1)[keep])
    assert value(outcome) == pytest.approx(expected.item())
    assert listed(outcome.keep) == keep.tolist()


def test_fixmatch_averages_over_the_whole_batch() -> None:
    site, rng = small_site(), rng_of(3)
    outcome = FixMatch(threshold=0.6, weight=1.5).begin(site, 0.0, rng_of(3))(ALL)
    confidence, labels = probabilities(site, site.samples.weak(rng).data).max(1)
    keep = confidence >= 0.6
    assert 0 < int(keep.sum()) < 6
    logits = site.network(site.samples.take(keep).strong(rng))
    expected = 1.5 * cross_entropy(logits, labels[keep], reduction="sum") / 6
    assert value(outcome) == pytest.approx(expected.item())


def test_uda_trains_on_a_sharpened_target() -> None:
    site, rng = small_site(), rng_of(3)
    outcome = UDA(threshold=0.6, temperature=0.4).begin(site, 0.0, rng_of(3))(ALL)
    p = probabilities(site, site.samples.weak(rng).data).detach()
    keep = p.max(1).values >= 0.6
    sharp = p[keep] ** (1 / 0.4)
    sharp = sharp / sharp.sum(1, keepdim=True)
    logits = site.network(site.samples.take(keep).strong(rng))
    expected = -(sharp * logits.log_softmax(1)).sum() / 6
    assert value(outcome) == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("objective", [PseudoLabel(threshold=1.0), FixMatch(threshold=1.0), UDA(threshold=1.0)])
def test_nothing_confident_is_nothing_to_learn(objective: PseudoLabel | FixMatch | UDA) -> None:
    outcome = objective.begin(small_site(), 1.0, rng_of())(ALL)
    assert outcome.loss is None and not any(listed(outcome.keep))


def test_pi_model_compares_two_views() -> None:
    site, rng = small_site(), rng_of(5)
    outcome = PiModel(weight=3.0, ramp=0.5).begin(site, 0.25, rng_of(5))(ALL)
    first, second = (probabilities(site, site.samples.weak(rng).data) for _ in range(2))
    squares = ((first - second) ** 2).sum(1).mean()
    assert value(outcome) == pytest.approx(3.0 * math.exp(-5 * 0.25) * squares.item(), rel=1e-5)
    assert outcome.labels is None


def test_kl_consistency_is_the_divergence_of_a_view_from_its_image() -> None:
    site, rng = small_site(), rng_of(5)
    outcome = KLConsistency(weight=3.0, ramp=0.0).begin(site, 0.25, rng_of(5))(ALL)
    image, view = (probabilities(site, part.data) for part in (site.samples, site.samples.weak(rng)))
    divergence = (image * (image / view).log()).sum(1).mean()
    assert value(outcome) == pytest.approx(3.0 * divergence.item(), rel=1e-4)
    assert divergence > 0 and outcome.labels is None


def test_temporal_ensembling_keeps_unbiased_means_in_the_clients_memory() -> None:
    site, rng = small_site(), rng_of(5)
    a = 0.6
    objective = TemporalEnsembling(ramp=0.0, decay=a)
    assert objective.begin(site, 0.0, rng_of(5))(ALL).loss is None  # nothing was said of these images before
    first = probabilities(site, site.samples.weak(rng).data).detach()
    kept = site.memory["ensemble"]
    assert torch.allclose(kept, (1 - a) * first)

    outcome = objective.begin(site, 0.0, rng)(ALL[:2])  # the next round, with the draws that follow
    assert site.memory["ensemble"] is not kept, "a checkpoint may still hold the tensor of the last round"
    state = rng_of(5)
    site.samples.weak(state).data
    second = probabilities(site, site.samples.like(site.samples.data[:2]).weak(state).data)
    expected = ((second - first[:2]) ** 2).sum(1).mean()  # Z/(1 − a) is the first output itself
    assert value(outcome) == pytest.approx(expected.item(), rel=1e-4)
    assert site.memory["visits"].tolist() == [2, 2, 1, 1, 1, 1]
    z = a * (1 - a) * first[:2] + (1 - a) * second.detach()
    assert torch.allclose(site.memory["ensemble"][:2], z)


def test_temporal_ensembling_starts_again_when_the_images_change() -> None:
    site = small_site()
    site.memory.update(ensemble=torch.ones(9, 3), visits=torch.ones(9, dtype=torch.int64))
    TemporalEnsembling().begin(site, 0.0, rng_of())
    assert site.memory["ensemble"].shape == (6, 3)
    assert site.memory["visits"].sum() == 0


def test_mean_teacher_follows_the_student_quicker_during_the_ramp() -> None:
    for progress, decay in ((0.1, 0.5), (0.2, 0.9)):
        site = small_site()
        start = site.network.snapshot()
        step = MeanTeacher(ramp=0.2, early=0.5, late=0.9).begin(site, progress, rng_of())
        step(ALL)
        site.network.load(start + 1)
        loss = value(step(ALL))
        rng = rng_of()
        for _ in range(2):
            site.samples.weak(rng).data
        target = site.network.outputs_of(start + (1 - decay), site.samples.weak(rng)).softmax(1)
        student = probabilities(site, site.samples.weak(rng).data)
        expected = soft_ramp(progress, 0.2) * ((student - target) ** 2).sum(1).mean()
        assert loss == pytest.approx(expected.item(), rel=1e-4)
        assert torch.equal(site.network.vector, start + 1), "the student is as it was"


def test_mixmatch_by_its_equations() -> None:
    site, rng = small_site(), rng_of(8)
    objective = MixMatch(views=2, temperature=0.5, beta=0.75, weight=4.0, ramp=0.5)
    outcome = objective.begin(site, 0.25, rng_of(8))(ALL)
    views = [site.samples.weak(rng).data for _ in range(2)]
    q = sum(probabilities(site, view).detach() for view in views) / 2
    assert isinstance(q, Tensor)
    q = q**2 / (q**2).sum(1, keepdim=True)  # sharpened with T = ½
    x, targets = torch.cat(views).float(), torch.cat([q, q])
    order = torch.randperm(12, generator=rng)
    share = beta_draw(0.75, 12, rng)
    share = torch.where(share > 0.5, share, 1 - share)
    mixed = share.view(-1, 1, 1, 1) * x + (1 - share).view(-1, 1, 1, 1) * x[order]
    goal = share[:, None] * targets + (1 - share)[:, None] * targets[order]
    expected = 4.0 * 0.5 * ((probabilities(site, mixed) - goal) ** 2).mean()
    assert value(outcome) == pytest.approx(expected.item(), rel=1e-4)
    assert listed(outcome.labels) == q.argmax(1).tolist()


def test_beta_draws_have_the_betas_moments() -> None:
    draws = beta_draw(0.75, 50_000, rng_of(0))
    assert float(draws.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(draws.var()) == pytest.approx(1 / (4 * (2 * 0.75 + 1)), abs=0.005)
    assert torch.equal(beta_draw(0.75, 5, rng_of(1)), beta_draw(0.75, 5, rng_of(1)))


# Every term trains what it should


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_moves_the_model_and_its_loss_has_a_gradient(name: str) -> None:
    site = small_site()
    options = {"threshold": 0.4} if name in ("pseudo-label", "uda", "fixmatch") else {}
    step = OBJECTIVES[name](**options).begin(site, 1.0, rng_of())
    start = site.network.snapshot()
    step(ALL)  # temporal ensembling and mean teacher compare with what was before
    loss = step(ALL).loss
    assert loss is not None
    site.network.gradient.zero_()
    loss.backward()
    assert float(site.network.gradient.norm()) > 1e-4
    assert torch.isfinite(site.network.gradient).all()
    steps = descend(site.network, LocalSGD(batch=3, lr=0.1), 0.1, 6, lambda indices: step(indices).loss, rng_of())
    assert steps == 2
    assert not torch.equal(site.network.vector, start)


# The EM vote, offered to those that label


@pytest.mark.parametrize("name", [name for name, made in OBJECTIVES.items() if made().labels])
def test_the_clients_own_prior_changes_the_labels(name: str) -> None:
    site = small_site(scale=1.0)
    only = torch.tensor([1e-6, 1e-6, 1.0])
    start = torch.ones(3) / 3
    outcome = OBJECTIVES[name]().begin(site, 1.0, rng_of(), lambda p: shifted(p, only, start))(ALL)
    assert listed(outcome.labels) == [2] * 6


def test_voting_reads_with_the_estimated_prior() -> None:
    site = small_site()
    how = Voting(prior="em", views=2, temperature=1.5, steps=10, concentration=1.0)
    prior = torch.tensor([0.2, 0.3, 0.5])
    adjust = how.adjust({"prior": prior}, site, rng_of(4))
    rng = rng_of(4)
    views = [site.network.probabilities(site.samples.weak(rng)) for _ in range(2)]
    estimated = em_prior((views[0] + views[1]) / 2, prior, 1.5, 10, 1.0)[1]
    p = site.network.probabilities(site.samples)
    by_hand = tempered(p, 1.5) * estimated / prior
    assert torch.allclose(adjust(p), by_hand / by_hand.sum(1, keepdim=True), atol=1e-5)


def test_voting_is_off_by_default_and_waits_for_its_warm_up() -> None:
    site = small_site()
    labeled = LabeledSet(site.samples.like(site.samples.data[:4]), torch.tensor([0, 0, 0, 2]))
    server = ServerSite(site.network, labeled, 3)
    assert Voting().learn(server) == {}
    p = site.network.probabilities(site.samples)
    assert Voting().adjust({}, site, rng_of())(p) is p
    how = Voting(prior="em", warmup=0.2, rounds=10)
    kept = how.learn(server)
    assert kept["prior"].tolist() == [0.75, 0, 0.25]
    state = ServerState(1, p[0], p[0], extra=kept)
    assert how.message(state) == {}
    assert torch.equal(how.message(replace(state, round=2))["prior"], kept["prior"])


# Training signal annealing


@pytest.mark.parametrize(
    ("schedule", "bounds"),
    [
        ("none", [1, 1, 1]),
        ("linear", [0.1, 0.55, 1.0]),
        ("log", [0.1, 0.1 + 0.9 * (1 - math.exp(-2.5)), 0.1 + 0.9 * (1 - math.exp(-5))]),
        ("exp", [0.1 + 0.9 * math.exp(-5), 0.1 + 0.9 * math.exp(-2.5), 1.0]),
    ],
)
def test_annealing_follows_its_schedule(schedule: str, bounds: list[float]) -> None:
    how = Supervised(annealing=schedule)  # type: ignore[arg-type]
    assert [how.signal_bound(t, 10) for t in (0, 0.5, 1)] == pytest.approx(bounds)


def test_annealing_leaves_out_what_is_known_already() -> None:
    site = small_site()
    network, start = site.network, site.network.snapshot()
    p = network.probabilities(site.samples)
    labels = p.argmax(1)
    sure = p.max(1).values
    bound = float(sure.median())  # half of the examples are surer of their label than this
    progress = (bound - 1 / 3) / (1 - 1 / 3)
    how = Supervised(LocalSGD(batch=6, lr=0.5), annealing="linear")
    moved, steps = train_supervised(
        network, start, LabeledSet(site.samples, labels), how, 0.5, rng_of(), progress=progress
    )
    unsure = sure <= bound
    plain = Supervised(LocalSGD(batch=6, lr=0.5))
    expected, _ = train_supervised(
        network, start, LabeledSet(site.samples.take(unsure), labels[unsure]), plain, 0.5, rng_of()
    )
    assert steps == 1
    assert torch.allclose(moved, expected, atol=1e-6)
    everything_known, steps = train_supervised(
        network, 20 * start, LabeledSet(site.samples, labels), how, 0.5, rng_of(), progress=0.0
    )
    assert steps == 0
    assert torch.equal(everything_known, 20 * start)


def test_a_warm_up_trains_on_all_labels_whatever_annealing_says() -> None:
    site = small_site()
    labeled = LabeledSet(site.samples, torch.arange(6) % 3)
    server, start = ServerSite(site.network, labeled, 3), site.network.snapshot()
    sgd = LocalSGD(batch=6, lr=0.5)
    state = ServerState(0, start, start)
    warm = train_server(Supervised(sgd, annealing="linear"), start, state, server, rng_of(), epochs=1)
    plain = train_server(Supervised(sgd), start, state, server, rng_of())
    held_back = train_server(Supervised(sgd, annealing="linear"), start, state, server, rng_of())
    assert torch.equal(warm, plain)
    assert not torch.equal(held_back, plain), "in round 0 only labels below 1/C would train"
