"""What a backbone knows of the classes' names, from the list of names to the labels' model and the start of EM."""

from dataclasses import replace

import pytest
import torch
from tests.methods.fedmoments.scene import CLASSES, METHOD, WIDTH, accuracy, alone, cloud, survey_of, trained, world
from torch import Tensor

from fedfew.core.samples import LabeledSet
from fedfew.core.types import ServerSite
from fedfew.data.samples import Vectors
from fedfew.methods.fedmoments.basis import features
from fedfew.methods.fedmoments.prior import Known, noise_edge, prior_of
from fedfew.methods.fedmoments.share import Share
from fedfew.methods.fedmoments.survey import Space
from fedfew.methods.labels_names import LabelsNames
from fedfew.models.backbones.imagenet import classes_named, named_weights


@pytest.mark.parametrize(
    ("name", "count", "first"),
    [("bird", 59, 7), ("Dogs", 118, 151), ("sports_car", 1, 817), ("horse", 1, 339), ("pneumonia", 0, None)],
)
def test_a_name_stands_for_all_classes_that_are_kinds_of_it(name: str, count: int, first: int | None) -> None:
    classes = classes_named(name)
    assert (len(classes), classes[0] if classes else None) == (count, first)


def test_names_are_the_mean_weights_of_their_classes() -> None:
    classifier = torch.zeros(1000, 2)
    classifier[7:25], classifier[151:269] = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    weights = named_weights(classifier, ("dog", "deer", "robin"))
    assert weights is not None
    assert torch.allclose(weights, torch.tensor([[-0.5, 0.5], [0.0, 0.0], [0.5, -0.5]]))
    assert named_weights(classifier, ("dog", "pneumonia")) is None, "one name tells nothing apart"


def with_names(site: ServerSite, names: Tensor, labels: int) -> ServerSite:
    """The site with so many labels a class, and names."""
    few = site.labeled.take(torch.arange(CLASSES * labels))
    samples = few.samples
    assert isinstance(samples, Vectors)
    return replace(site, labeled=LabeledSet(replace(samples, names=names), few.labels))


def true_names() -> Tensor:
    many = torch.arange(CLASSES).repeat(500)
    x = features(Vectors(cloud(many, 9)))
    means = torch.stack([x[many == c].mean(0) for c in range(CLASSES)])
    return (means - means.mean(0)).float()


def test_right_names_help_few_labels_and_wrong_ones_do_not_count() -> None:
    _, _, site, test = world(1e6)
    method = LabelsNames(METHOD.server, METHOD.client, METHOD.aggregator)

    def score(names: Tensor) -> float:
        own = with_names(site, names, 3)
        return accuracy(own, method.warm_up(method.start(own.network.snapshot()), own, torch.Generator()).sigma, test)

    nothing = torch.zeros(CLASSES, WIDTH)
    assert score(true_names()) > score(nothing) + 0.03
    assert score(true_names().roll(1, 0)) > score(nothing) - 0.03


def test_alike_sites_start_from_names_unless_they_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfew.methods.fedmoments.server.judged_share", lambda *_: Share(1.0, 1.0, 1.0))
    parts, _, site, test = world(1e6)
    named, plain = with_names(site, true_names(), 3), with_names(site, torch.zeros(CLASSES, WIDTH), 3)
    rounds = [range(60)] * 4
    told = trained(METHOD, parts, named, rounds)
    assert float(told.extra["own_names"]) > 0
    assert accuracy(site, told.omega, test) > accuracy(site, trained(METHOD, parts, plain, rounds).omega, test)
    silent = trained(replace(METHOD, names=False), parts, named, rounds)
    assert float(silent.extra["own_names"]) == 0
    assert torch.equal(alone(replace(METHOD, names=False), named), alone(METHOD, plain))


def test_the_prior_of_names_is_about_the_true_means() -> None:
    parts, _, site, _ = world(1e6)
    survey = survey_of(parts)
    space = Space.of(survey)
    known = Known(names=true_names().double())
    labeled, labels = space(features(site.labeled.samples)), site.labeled.labels
    prior = prior_of(survey, labeled, labels, CLASSES, space, known, None)
    named = prior.named(labeled, labels, known.means(space, CLASSES, labeled.shape[1]))
    assert torch.as_tensor(named.centre).norm() > 0 and named.gamma.trace() <= prior.gamma.trace()
    assert prior.named(labeled, labels, torch.zeros(CLASSES, labeled.shape[1])) is prior


@pytest.mark.parametrize(("samples", "width"), [(4, 128), (20, 64), (99, 128)])
def test_noise_is_above_the_edge_once_in_a_hundred_times(samples: int, width: int) -> None:
    rng = torch.Generator().manual_seed(0)
    draws = torch.randn(300, samples, width, generator=rng)
    small = draws if samples < width else draws.transpose(1, 2)
    largest = torch.linalg.eigvalsh(small @ small.transpose(1, 2) / samples)[:, -1]
    assert float((largest > noise_edge(samples, width)).float().mean()) <= 0.03
    assert float((largest > 0.9 * noise_edge(samples, width)).float().mean()) >= 0.1


@pytest.mark.parametrize(("variance", "directions"), [(1.8, 0), (7.0, 1)])
def test_a_direction_counts_from_where_noise_would_not_show_it(variance: float, directions: int) -> None:
    """A spike of less than 1 + √(d/K) leaves the eigenvalues of the covariance as noise has them (Baik et al. 2005)."""
    rng = torch.Generator().manual_seed(2)
    counts = []
    for _ in range(20):
        x = torch.randn(99, 128, generator=rng)
        x[:, 0] *= variance**0.5
        counts.append(int((torch.linalg.eigvalsh(x.T @ x / 99) > noise_edge(99, 128)).sum()))
    assert sum(count == directions for count in counts) >= 19
