"""Virtual clients: their images follow from seed and number, and nothing is kept for each of them."""

import numpy as np
import pytest

from fedfew.core.errors import FedfewError
from fedfew.data.partitions import make_partition
from fedfew.data.shares import VirtualPartition

LABELS = np.repeat(np.arange(10), 50)


def virtual(clients: int = 1_000_000, **options: float) -> VirtualPartition:
    made = make_partition(LABELS, clients, "virtual", 3, options)
    assert isinstance(made, VirtualPartition)
    return made


def test_a_client_holds_the_asked_number_of_different_images() -> None:
    images = virtual(per_client=120).of(999_999)
    assert len(images) == 120
    assert len(set(images.tolist())) == 120


def test_the_same_client_holds_the_same_images_whoever_asked_before() -> None:
    first, second = virtual(), virtual()
    second.of(7)
    assert first.of(5).tolist() == second.of(5).tolist()
    assert first.of(5).tolist() != first.of(6).tolist()
    assert first.hash == second.hash != virtual(mu=1.0).hash


def test_a_class_that_runs_out_passes_its_turn() -> None:
    """μ near 0 asks for one class of 50 images, but 120 are wanted: the rest comes from the other classes."""
    counts = np.bincount(LABELS[virtual(per_client=120, mu=1e-3).of(0)], minlength=10)
    assert counts.max() == 50
    assert counts.sum() == 120


def test_small_mu_gives_few_classes_and_large_mu_all() -> None:
    few = [np.unique(LABELS[virtual(per_client=40, mu=0.05).of(k)]).size for k in range(30)]
    many = [np.unique(LABELS[virtual(per_client=40, mu=100.0).of(k)]).size for k in range(30)]
    assert np.mean(few) < 4
    assert np.mean(many) > 9


def test_sizes_need_no_list() -> None:
    sizes = virtual(per_client=120).sizes
    assert (len(sizes), sizes[999_999], sizes.strides) == (1_000_000, 120, (0,))


def test_a_client_that_does_not_exist_and_too_many_images_are_refused() -> None:
    with pytest.raises(IndexError):
        virtual(clients=2).of(2)
    with pytest.raises(FedfewError, match="E108"):
        virtual(per_client=501)


def test_histogram_counts_every_client() -> None:
    made = virtual(clients=4, per_client=20)
    assert made.histogram(LABELS, 10).sum(1).tolist() == [20] * 4
