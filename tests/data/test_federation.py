"""Splits: sizes as stated, no image in two places, classes in balance, the same images for the same seed."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.data.dataset import Dataset
from fedfew.data.federation import Federation, Split, federate
from fedfew.data.samples import Images


def tagged(counts: list[int], first: int, channels: int = 3) -> LabeledSet:
    """Images whose pixels spell their own number, so that each can be recognised wherever it turns up."""
    labels = np.random.default_rng(first).permutation(np.repeat(np.arange(len(counts)), counts))
    number = np.arange(first, first + len(labels), dtype="<u4").view(np.uint8).reshape(-1, 1, 2, 2)
    return LabeledSet(Images(torch.from_numpy(np.repeat(number, channels, axis=1))), torch.from_numpy(labels))


def numbers(images: torch.Tensor) -> list[int]:
    """The tags of images, back as numbers."""
    return np.ascontiguousarray(images[:, 0].numpy()).reshape(-1, 4).view("<u4").ravel().tolist()


def like_cifar(scale: int = 1) -> Dataset:
    """As many images as CIFAR-10, or a fraction of them, without its pixels."""
    return Dataset("fake", tagged([5000 // scale] * 10, 0), tagged([1000 // scale] * 10, 50_000), tuple("abcdefghij"))


def classes_of(dataset: Dataset) -> dict[int, int]:
    pairs: dict[int, int] = {}
    for part in (dataset.train, dataset.test):
        pairs.update(zip(numbers(part.samples.data), part.labels.tolist(), strict=True))
    return pairs


def parts(federation: Federation) -> dict[str, LabeledSet]:
    clients = LabeledSet(federation.samples, federation.truth)
    sets = {"server": federation.server, "validation": federation.validation, "test": federation.test}
    return sets | {"clients": clients}


def made_from(data: Dataset, labels: int = 10, clients: int = 2, kind: str = "dirichlet", **split: Any) -> Federation:
    return federate(data, Split(**({"validation": 0} | split)), labels=labels, clients=clients, kind=kind)


def test_the_papers_split() -> None:
    made = made_from(
        like_cifar(), labels=1000, clients=100, split="paper", validation=2000, test=2000, unlabeled=55_000
    )
    sizes = {name: len(part) for name, part in parts(made).items()}
    assert sizes == {"server": 1000, "validation": 2000, "test": 2000, "clients": 55_000}
    assert made.server.labels.bincount().tolist() == [100] * 10
    assert made.validation.labels.bincount().tolist() == made.test.labels.bincount().tolist() == [200] * 10
    assert made.truth.bincount().tolist() == [5500] * 10
    assert made.partition.clients == 100
    assert sorted(chain(*(numbers(part.samples.data) for part in parts(made).values()))) == list(range(60_000))
    falls = (made.server.labels[1:] < made.server.labels[:-1]).float().mean()
    assert falls > 0.4  # 0.45 when labels are in random order, 0 when sorted by class
    assert len(made_from(like_cifar(10), split="paper").test) == 2000  # unless said otherwise


def test_the_standard_split() -> None:
    data = like_cifar()
    made = made_from(data, labels=4000, clients=10, kind="iid", validation=1000)
    assert made.test is data.test
    assert (len(made.server), len(made.validation), len(made.samples.data)) == (4000, 1000, 45_000)
    seen = (numbers(part.samples.data) for name, part in parts(made).items() if name != "test")
    assert sorted(chain(*seen)) == list(range(50_000))


@pytest.mark.parametrize("split", ["paper", "standard"])
def test_every_image_has_one_place_and_its_label_and_every_draw_is_stratified(split: str) -> None:
    data = like_cifar(50)
    made = made_from(data, labels=33, clients=7, split=split, seed=5, validation=41, test=57, unlabeled=600)
    truth, seen = classes_of(data), []
    for name, part in parts(made).items():
        assert [truth[number] for number in numbers(part.samples.data)] == part.labels.tolist()
        seen += numbers(part.samples.data)
        counts = part.labels.bincount(minlength=10)
        # What is left for the clients is no longer even (two draws did not divide), and their part follows it.
        assert counts.max() - counts.min() <= (2 if name == "clients" else 1), name
    assert len(seen) == len(set(seen)) == 33 + 41 + 57 + 600


def test_labels_are_balanced_where_classes_are_not() -> None:
    data = Dataset("skewed", tagged([800, 190, 8, 2], 0), tagged([80, 19, 1, 0], 1000), tuple("abcd"))
    made = made_from(data, labels=40, validation=100)
    # The validation set follows the data: 80, 19, 1, 0. Of 40 labels a class would give 10; two cannot.
    assert made.validation.labels.bincount(minlength=4).tolist() == [80, 19, 1, 0]
    assert made.server.labels.bincount(minlength=4).tolist()[2:] == [7, 2]
    assert sorted(made.server.labels.bincount(minlength=4).tolist()[:2]) == [15, 16]


def test_few_labels_reach_as_many_classes_as_possible_and_lot_gives_the_odd_ones() -> None:
    for labels in (1, 3, 9, 10):
        drawn = made_from(like_cifar(50), labels=labels).server.labels.tolist()
        assert (len(drawn), len(set(drawn))) == (labels, labels)
    odd = {tuple(made_from(like_cifar(50), labels=13, seed=s).server.labels.bincount().tolist()) for s in range(5)}
    assert len(odd) == 5 and {max(counts) for counts in odd} == {2}


def test_the_seed_decides() -> None:
    def made(seed: int) -> Federation:
        return made_from(like_cifar(50), labels=40, clients=5, split="paper", test=50, validation=50, seed=seed)

    def tags(federation: Federation) -> list[list[int]]:
        return [numbers(part.samples.data) for part in parts(federation).values()]

    assert tags(made(1)) == tags(made(1))
    assert made(1).partition.hash == made(1).partition.hash
    assert all(one != other for one, other in zip(tags(made(1)), tags(made(2)), strict=True))
    assert made(1).partition.hash != made(2).partition.hash


def test_test_and_validation_stay_when_labels_change_and_few_labels_are_among_the_many() -> None:
    few, many = (
        made_from(like_cifar(50), labels=n, clients=5, split="paper", test=50, validation=50) for n in (40, 100)
    )
    assert numbers(few.test.samples.data) == numbers(many.test.samples.data)
    assert numbers(few.validation.samples.data) == numbers(many.validation.samples.data)
    assert set(numbers(few.server.samples.data)) < set(numbers(many.server.samples.data))


@pytest.mark.parametrize(
    ("given", "place", "words"),
    [
        ({"labels": 900, "validation": 101}, "labels", "900 labels + 101 validation images are asked for, .* 1,000"),
        ({"labels": 900, "unlabeled": 101}, "labels", "900 labels \\+ 101 unlabeled"),
        ({"labels": 1, "test": 201}, "dataset.test", "201 test images .* 200"),
        ({"labels": 201, "split": "paper", "test": 1000}, "labels", "201 labels .* 1,000 test .* 1,200"),
    ],
)
def test_more_labels_than_images_is_refused(given: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(FedfewError, match=words.replace(" + ", " \\+ ")) as caught:
        made_from(like_cifar(50), **given)
    assert (caught.value.code, caught.value.where) == ("E109", place)


def test_a_dataset_of_ones_own_must_hold_together() -> None:
    good = tagged([5, 5], 0)
    faults = [
        LabeledSet(Images(good.samples.data.float()), good.labels),
        LabeledSet(good.samples.like(good.samples.data[:, 0]), good.labels),
        LabeledSet(good.samples, good.labels[:-1]),
        LabeledSet(good.samples, good.labels.int()),
        LabeledSet(good.samples, good.labels + 1),
        LabeledSet(good.samples, good.labels - 1),
    ]
    for fault in faults:
        with pytest.raises(FedfewError, match="E204 dataset own"):
            made_from(Dataset("own", good, fault, ("a", "b")), labels=2)


def test_pixels_are_plain_or_measured_on_server_and_client_images() -> None:
    data = like_cifar(50)
    plain = made_from(data).about
    assert (plain["mean"], plain["std"]) == ([0.0] * 3, [1.0] * 3)
    made = made_from(data, validation=90, normalize="standard")
    used = torch.cat([made.server.samples.data, made.samples.data]).double() / 255
    assert made.about["mean"] == pytest.approx(used.mean(dim=(0, 2, 3)).tolist())
    assert made.about["std"] == pytest.approx(used.std(dim=(0, 2, 3), correction=0).tolist())


def test_a_channel_of_one_value_does_not_divide_by_zero() -> None:
    plain = LabeledSet(Images(torch.full((8, 1, 2, 2), 51, dtype=torch.uint8)), torch.arange(8) % 2)
    made = made_from(Dataset("plain", plain, plain, ("a", "b")), labels=2, normalize="standard")
    assert made.about["mean"] == pytest.approx((0.2,))
    assert made.about["std"] == [1 / 255]


def opened(made: Federation) -> list[int]:
    assert made.open is not None
    return numbers(made.open.data)


def test_no_client_has_an_open_image_and_every_image_has_one_place() -> None:
    data = like_cifar(50)
    plain, some = made_from(data, labels=50), made_from(data, labels=50, validation=100, open=150)
    assert opened(plain) == [] and len(opened(some)) == 150
    places = [numbers(part.samples.data) for name, part in parts(some).items() if name != "test"]
    assert sorted(chain(opened(some), *places)) == list(range(1000))
    assert numbers(made_from(data, labels=50, open=100).server.samples.data) == numbers(plain.server.samples.data)
    with pytest.raises(FedfewError, match="E109"):
        made_from(data, labels=500, open=501)
