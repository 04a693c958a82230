"""The parts of fedmoments, each with known answers: the spread of clients, EM, answers, the labels' last word."""

import numpy as np
import pytest
import torch
from tests.methods.fedmoments.scene import CLASSES, WIDTH, cloud, survey_of, world
from torch.nn.functional import cross_entropy

from fedfew.core.network import Network
from fedfew.data.samples import Vectors
from fedfew.methods.fedmoments.answers import Answer, answered, collect, keep, kept, online
from fedfew.methods.fedmoments.basis import REACH, Frame, basis_of
from fedfew.methods.fedmoments.basis import features as features_of
from fedfew.methods.fedmoments.em import responsibilities
from fedfew.methods.fedmoments.logistic import logistic
from fedfew.methods.fedmoments.path import Rule, paths_of
from fedfew.methods.fedmoments.prior import Known, prior_of
from fedfew.methods.fedmoments.share import NOTHING, UNKNOWN, factor_of, folds_of, judged_share, label_model
from fedfew.methods.fedmoments.survey import Space, Survey, Tally, matrix_of, moments_of
from fedfew.models.backbones.pretrained import LENGTH
from fedfew.models.layers import Head


def test_without_a_pull_the_mix_is_the_clients_own_and_with_an_endless_one_the_global() -> None:
    scores = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 0.5]]).double()
    even = torch.tensor([0.5, 0.5]).double()
    assert torch.allclose(responsibilities(scores, 1e12, even, 5), scores.softmax(1))
    own = responsibilities(scores, 0.0, even, 200)
    assert float(own[2, 0]) > float(scores.softmax(1)[2, 0]), "two images of class 0 make a third likelier"


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("alpha", [1.0, 4.0])
def test_the_skew_of_sites_is_found_for_any_number_of_classes(classes: int, alpha: float) -> None:
    """Sites with mixes from Dir(α m): B = Cov_c(M_c)/(α + 1)."""
    rng, width, n = np.random.default_rng(1), max(2 * classes, 8), 100
    means = rng.normal(size=(classes, width)) * 2
    shares = rng.dirichlet([alpha / classes] * classes, 1500)
    counts = np.stack([rng.multinomial(n, share) for share in shares])
    labels = np.concatenate([np.repeat(np.arange(classes), row) for row in counts])
    x = torch.from_numpy(means[labels] + rng.normal(size=(len(labels), width)))
    survey = Survey(len(x), 1500.0 * n * n, 1500, x.sum(0), x.T @ x, torch.zeros(width, width))
    sums = x.view(1500, n, width).sum(1)
    survey = Survey(len(x), survey.squares, 1500, survey.total, survey.second, sums.T @ sums / n)
    space, known = Space.of(survey), torch.arange(classes).repeat(60)
    labeled = torch.from_numpy(means[known.numpy()] + rng.normal(size=(len(known), width)))
    prior = prior_of(survey, space(labeled), known, classes, space, Known(), None)
    assert prior.alpha == pytest.approx(alpha, rel=0.25, abs=0.15)


@pytest.mark.parametrize(("mu", "low", "high"), [(0.1, 0.1, 1.2), (1.0, 2.0, 8.0)])
def test_the_spread_of_clients_tells_directions_and_skew(mu: float, low: float, high: float) -> None:
    parts, *_ = world(mu, clients=200)
    survey = survey_of(parts)
    space = Space.of(survey)
    many = torch.arange(CLASSES).repeat(200)
    prior = prior_of(survey, space(features_of(Vectors(cloud(many, 5))))[:, :8], many, CLASSES, space, Known(), None)
    assert prior.seen == CLASSES - 1
    assert low < prior.alpha < high, "α = μ·C"


def test_clients_that_are_alike_show_no_direction() -> None:
    parts, _, site, _ = world(1e6, clients=200)
    survey = survey_of(parts)
    prior = prior_of(survey, torch.randn(48, 8).double(), site.labeled.labels, 4, Space.of(survey), Known(), None)
    assert prior.seen == 0
    assert prior.alpha > 1000


def test_what_only_clients_differ_in_is_not_taken_for_classes() -> None:
    """A camera of its own shifts all features of a client; where classes are alike everywhere, that is all it shows."""
    parts, _, site, _ = world(100.0)
    rng = torch.Generator().manual_seed(5)
    blind = torch.randn(1, 1, WIDTH, generator=rng)
    shifted = [part.float() + 2 * torch.randn(1, generator=rng) * blind for part in parts]
    survey = survey_of([(LENGTH * x / x.norm(dim=2, keepdim=True)).half() for x in shifted])
    space = Space.of(survey)
    mine = space(features_of(site.labeled.samples))
    assert prior_of(survey, mine, site.labeled.labels, CLASSES, space, Known(), None).seen == 0


def test_moments_are_read_as_they_were_written() -> None:
    y = torch.randn(30, 5, generator=torch.Generator().manual_seed(0)).double()
    sums = moments_of(y)
    assert len(sums) == Tally.length(5)
    assert torch.allclose(matrix_of(sums, 5), y.T @ y, atol=1e-5)
    scale = torch.arange(1.0, 6.0).double()
    survey = Tally.of({}, 5).add(sums, 30, 1.0).survey(scale)
    assert torch.allclose(survey.second, (y * scale).T @ (y * scale), atol=1e-3)
    assert torch.allclose(survey.between, torch.outer((y * scale).sum(0), (y * scale).sum(0)) / 30, atol=1e-3)


def test_the_basis_is_that_of_the_classifier_or_random_or_all_features() -> None:
    head = Head(20, 3)
    network = Network.of(head)
    assert torch.equal(basis_of(network, 0), torch.eye(20).double())
    drawn = basis_of(network, 6)
    assert torch.allclose(drawn.T @ drawn, torch.eye(6).double(), atol=1e-9)
    assert torch.equal(drawn, basis_of(Network.of(Head(20, 3)), 6)), "the same at every site"
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(0)) @ torch.eye(20)[:4]
    head.classifier = rows
    seen = basis_of(network, 3)
    assert torch.allclose(seen.T @ seen, torch.eye(3).double(), atol=1e-5)
    assert float(seen[4:].abs().max()) < 1e-5, "only what the classifier reads"


def test_no_image_reaches_further_than_the_bound() -> None:
    x = torch.randn(10, 4, generator=torch.Generator().manual_seed(0)).double()
    frame, eye = Frame.of(x), torch.eye(4).double()
    far = frame(torch.cat([x, 1e6 * x[:1]]), eye)
    assert float(far.norm(dim=1).max()) <= REACH * 2 * (1 + 1e-9)
    assert torch.allclose(far[:10] * frame.scale + frame.origin, x, atol=1e-5), "others keep their values"


def test_paths_without_a_fold_have_not_seen_it() -> None:
    parts, _, site, _ = world(0.3)
    survey, labels = survey_of(parts), site.labeled.labels
    v, fold = features_of(site.labeled.samples), folds_of(site.labeled.labels, CLASSES, 3)
    rule, even = Rule(8, 0.75, 20.0, 30.0), torch.full((CLASSES,), 0.25).double()
    other = torch.where((fold == 1)[:, None], v.flip(1), v)
    before, after = (paths_of(rule, survey, x, labels, CLASSES, fold, range(3), WIDTH) for x in (v, other))
    same = [torch.equal(a.start(even).weight, b.start(even).weight) for a, b in zip(before, after, strict=True)]
    assert same == [False, False, True, False], "all labels; without fold 0, 1, 2"


def test_every_fold_has_labels_of_each_class_but_never_the_only_one() -> None:
    labels = torch.tensor([0] * 6 + [1] * 3 + [2])
    fold = folds_of(labels, 4, 3)
    assert fold[:6].bincount().tolist() == [2, 2, 2]
    assert fold[6:9].bincount().tolist() == [1, 1, 1]
    assert int(fold[9]) == UNKNOWN


def test_the_labels_decide_how_much_the_sites_count() -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 4
    truth = torch.nn.functional.one_hot(labels, 4).double()[None]
    weak = 0.5 * truth + torch.randn(1, 40, 4, generator=rng).double()
    strong = 4 * truth + torch.randn(1, 40, 4, generator=rng).double()
    assert judged_share(strong, weak, weak, labels).sites == 1.0
    assert judged_share(truth.roll(1, 2), weak, weak, labels) == NOTHING, "wrong classes"
    assert judged_share(0 * truth, 2 * truth + weak, 2 * truth + weak, labels) == NOTHING, "nothing"
    assert judged_share(truth[:, :2], weak[:, :2], weak[:, :2], labels[:2]) == NOTHING, "nothing to judge by"
    lost, both = torch.cat([strong, truth.roll(1, 2)]), torch.cat([weak, weak])
    assert judged_share(lost, both, both, labels).sites < 1.0, "as a scanner would show it, it is wrong"


@pytest.mark.parametrize(("factor", "most"), [(1.0, 3), (factor_of(0, False, 4, 4), 1)])
def test_chance_is_seldom_taken_for_help(factor: float, most: int) -> None:
    rng, labels = torch.Generator().manual_seed(0), torch.arange(40) % 4
    truth = torch.nn.functional.one_hot(labels, 4).double()[None]
    helped = 0
    for _ in range(60):
        own = 1.5 * truth + torch.randn(1, 40, 4, generator=rng).double()
        helped += judged_share(torch.randn(1, 40, 4, generator=rng).double(), own, own, labels, factor) != NOTHING
    assert helped <= most


def test_held_out_scores_have_not_seen_their_label() -> None:
    """Labels at random: a model that has seen them does well on them, one that has not does not."""
    rng = torch.Generator().manual_seed(2)
    x, labels = torch.randn(80, 200, generator=rng).double(), torch.arange(80) % 4
    moved = torch.randn(1, 200, generator=rng)
    model = label_model(x, labels, 4, folds_of(labels, 4, 4), moved=moved)
    seen = x @ model.weight + model.bias
    assert float(cross_entropy(seen, labels)) < float(cross_entropy(model.held_out[0], labels))
    assert float((model.held_out[0].argmax(1) == labels).double().mean()) < 0.45
    there = label_model(x + moved, labels, 4, folds_of(labels, 4, 4)).held_out[0]
    assert not torch.allclose(model.held_out[1], model.held_out[0]) and not torch.allclose(model.held_out[1], there)


@pytest.mark.parametrize("penalty", [0.1, 3.0])
def test_logistic_regression_ends_where_its_gradient_is_zero(penalty: float) -> None:
    rng = torch.Generator().manual_seed(0)
    x, labels = torch.randn(40, 12, generator=rng).double(), torch.arange(40) % 4
    weight, bias = (found.requires_grad_() for found in logistic(x, labels, 4, penalty))
    size = weight.square().sum() + bias.square().sum()
    (cross_entropy(x @ weight + bias, labels) + penalty / 2 * size).backward()
    assert weight.grad is not None and bias.grad is not None
    assert float(weight.grad.abs().max()) < 1e-4 and float(bias.grad.abs().max()) < 1e-4


def answer(client: int, step: float, value: float) -> Answer:
    return Answer(client, 10, torch.tensor([step, 0.0, value]))


def test_the_latest_answer_of_each_client_is_kept() -> None:
    state = keep({}, [answer(3, 0, 1.0), answer(1, 0, 2.0)])
    state = keep(state, [answer(3, 1, 5.0)])
    state = keep(state, [answer(3, 0, 9.0)])
    assert [(a.client, a.step, float(a.sums[2])) for a in kept(state)] == [(1, 0, 2.0), (3, 1, 5.0)], (
        "a late one is old"
    )
    assert (answered(state, 3), answered(state, 2)) == (1, -1)


def test_online_em_weights_collections_by_cappe_and_moulines() -> None:
    state: dict[str, torch.Tensor] = {}
    for step, value in enumerate([1.0, 3.0]):
        state = collect(state, [answer(7, step, 10 * value), answer(7, step, 1e9)], [1.0, 1.0])
        state = collect(state, [answer(7, step, 1e9), answer(8, step, 10 * value)], [1.0, 1.0])
        assert float(state["collected_images"]) == 20, "a client counts once in a collection"
        state = online(state, step)
    rho = 2**-0.6
    assert float(state["sums"][2]) == pytest.approx((1 - rho) * 1.0 + rho * 3.0)
    assert "heard" not in state
