"""Partitions: every image exactly once, sizes and class shares as stated, repeatable, for any number of clients."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfew.core.errors import FedfewError
from fedfew.data import PARTITIONS
from fedfew.data.partitions import _fill, partition
from fedfew.data.partitions import make_partition as make_any_partition
from fedfew.data.shares import Partition, VirtualPartition, heterogeneity

PAPER = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5_500))
KINDS = [kind for kind in PARTITIONS if kind not in ("virtual", "users", "flower")]  # these need more than labels
"""Those that give every image out exactly once."""


def make_partition(*arguments: Any) -> Partition:
    made = make_any_partition(*arguments)
    assert isinstance(made, Partition)
    return made


@st.composite
def deals(draw: st.DrawFn) -> tuple[np.ndarray, int, str, int, dict[str, Any]]:
    """Labels, clients, kind, seed and options of any partition that is possible."""
    labels = np.array(draw(st.lists(st.integers(0, 6), max_size=120)), np.int64)
    empty = draw(st.booleans()) or len(labels) == 0
    clients = draw(st.integers(1, 150 if empty else len(labels)))
    kind = draw(st.sampled_from(KINDS))
    options: dict[str, Any] = {"empty": empty, "skew": draw(st.sampled_from([0.0, 0.3, 2.0, 1e4]))}
    if kind.startswith("dirichlet"):
        options["mu"] = draw(st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 1e300]))
    if kind == "shards":
        options["per_client"] = draw(st.integers(1, 5))
    return labels, clients, kind, draw(st.integers(0, 2**32)), options


@given(deals())
@settings(max_examples=300, deadline=None)
def test_every_image_is_given_out_once_and_nobody_is_left_out(deal: tuple[np.ndarray, int, str, int, Any]) -> None:
    labels, clients, kind, seed, options = deal
    dealt = make_partition(labels, clients, kind, seed, options)
    assert dealt.clients == clients
    assert sorted(dealt.order) == list(range(len(labels)))
    assert [len(dealt.of(k)) for k in range(clients)] == dealt.sizes.tolist()
    assert np.concatenate([dealt.of(k) for k in range(clients)]).tolist() == dealt.order.tolist()
    assert options["empty"] or dealt.sizes.min() >= 1
    if options["skew"] == 0 and kind != "dirichlet-by-class":
        assert dealt.sizes.max() - dealt.sizes.min() <= 1
    assert make_partition(labels, clients, kind, seed, options).hash == dealt.hash


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_deals_otherwise(kind: str) -> None:
    hashes = {make_partition(PAPER, 100, kind, seed).hash for seed in range(4)}
    assert len(hashes) == 4


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(1, 80))
@settings(max_examples=100, deadline=None)
def test_iid_classes_differ_by_at_most_one(labels: list[int], clients: int) -> None:
    histogram = make_partition(labels, clients, "iid", 0, {"empty": True}).histogram(np.array(labels), 5)
    assert (histogram.max(axis=0) - histogram.min(axis=0) <= 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_skew_is_the_sigma_of_log_sizes(kind: str) -> None:
    alike = {"mu": 1e6} if kind == "dirichlet-by-class" else {}  # otherwise its sizes vary without skew too
    spread = [np.log(make_partition(PAPER, 500, kind, 0, {"skew": s} | alike).sizes).std() for s in (0, 0.5)]
    # 500 draws: the standard error of a standard deviation is σ/√(2·500) ≈ 0.016.
    assert spread[0] < 0.05 and spread[1] == pytest.approx(0.5, abs=0.06)


def test_sizes_are_rounded_by_largest_remainder() -> None:
    weights = np.exp(0.7 * np.random.default_rng(5).standard_normal(40))
    exact = weights / weights.sum() * (1000 - 40) + 1  # one image for everyone, the others in proportion
    sizes = PARTITIONS["iid"](np.zeros(1000, np.int64), 40, np.random.default_rng(5), skew=0.7).sizes
    up = sizes > exact
    assert (np.abs(sizes - exact) < 1).all()
    assert (exact % 1)[up].min() > (exact % 1)[~up].max()


@pytest.mark.parametrize("seed", range(5))
def test_client_sizes_of_the_paper(seed: int) -> None:
    """ "Some customers have 580 samples, while some customers have less than 50": 55,000 images of 100 clients."""
    options = {"mu": 0.1, "skew": 3.0, "largest": 1.0545}
    sizes = make_partition(np.arange(55_000) % 10, 100, "dirichlet", seed, options).sizes
    assert sizes.sum() == 55_000 and sizes.max() == 580 and 0 < (sizes < 50).sum() < 10
    with pytest.raises(FedfewError, match=r"partition\.largest"):
        make_partition(np.arange(100) % 10, 10, "dirichlet", seed, {"largest": 0.5})


@pytest.mark.parametrize("kind", ["dirichlet", "dirichlet-by-class"])
def test_heterogeneity_falls_with_mu(kind: str) -> None:
    measured = [
        heterogeneity(make_partition(PAPER, 100, kind, 3, {"mu": mu}).histogram(PAPER, 10))
        for mu in (0.01, 0.1, 1.0, 10.0, 1000.0)
    ]
    assert measured == sorted(measured, reverse=True)
    assert measured[0] > 0.85
    assert measured[-1] < 0.1


def test_dirichlet_class_shares_have_the_spread_of_dir_mu() -> None:
    # With 10 classes Dir(1) has Var = (1/10)(9/10)/(10 + 1); sampling 550 images adds p(1−p)/550 on average.
    shares = make_partition(PAPER, 100, "dirichlet", 0, {"mu": 1.0}).histogram(PAPER, 10) / 550
    expected = 0.09 / 11 + (0.1 - (0.09 / 11 + 0.01)) / 550
    assert shares.var() == pytest.approx(expected, rel=0.15)


def test_who_goes_without_is_chosen_by_lot_and_not_by_number() -> None:
    # Two clients of 100 places both want class 0 alone, of which there are 100: about 50 for each, ± 3.5 by chance.
    places, shares = np.repeat([0, 1], 100), np.array([[1.0, 0.0], [1.0, 0.0]])
    filled = _fill(places, shares, np.array([100, 100]), np.random.default_rng(0))
    assert np.bincount(filled).tolist() == [100, 100]
    assert (filled[:100] == 0).sum() == pytest.approx(50, abs=14)


def test_shards_give_few_classes() -> None:
    histogram = make_partition(PAPER, 100, "shards", 0, {"per_client": 2}).histogram(PAPER, 10)
    # 200 shards of 275 images: 20 fill a class exactly, so a shard is pure.
    assert set((histogram > 0).sum(axis=1)) <= {1, 2}
    assert set(histogram.ravel()) <= {0, 275, 550}
    # The second shard is of another class with probability 180/199, so about 90 of 100 clients hold two.
    assert 75 <= ((histogram > 0).sum(axis=1) == 2).sum() <= 100
    labels = np.arange(60)  # every image its own class: shards are runs of the sorted images
    dealt = make_partition(labels, 10, "shards", 0, {"per_client": 3})
    assert all((np.diff(np.sort(dealt.of(client))) > 1).sum() <= 2 for client in range(10))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_a_million_clients(kind: str, skew: float) -> None:
    dealt = make_partition(PAPER, 1_000_000, kind, 0, {"empty": True, "skew": skew})
    assert dealt.clients == 1_000_000
    assert (np.bincount(dealt.order, minlength=55_000) == 1).all()
    assert dealt.sizes.sum() == 55_000
    if skew == 0 and kind != "dirichlet-by-class":
        assert dealt.sizes.max() == 1
    assert 0.8 < heterogeneity(dealt.histogram(PAPER, 10)) <= 1


@pytest.mark.parametrize(
    ("kind", "options", "clients", "code", "place"),
    [
        ("dirichlet", {"mu": 0.0}, 2, "E103", "partition.mu"),
        ("dirichlet-by-class", {"mu": -1.0}, 2, "E103", "partition.mu"),
        ("dirichlet", {"mu": float("nan")}, 2, "E103", "partition.mu"),
        ("iid", {"skew": -0.1}, 2, "E103", "partition.skew"),
        ("shards", {"per_client": 0}, 2, "E103", "partition.per_client"),
        ("iid", {}, 0, "E103", "clients"),
        *((kind, {}, 10, "E108", "clients") for kind in KINDS),
        ("iid", {"mu": 0.1}, 2, "E104", "partition.mu"),
        ("dirichlett", {}, 2, "E105", "partition.kind"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: str, options: Any, clients: int, code: str, place: str) -> None:
    with pytest.raises(FedfewError) as caught:
        make_partition(np.zeros(9, int), clients, kind, 0, options)
    assert (caught.value.code, caught.value.where) == (code, place)


def test_labels_must_be_classes_and_only_clients_that_exist_hold_images() -> None:
    for labels in ([0.5, 1.0], [[0], [1]], [-1, 0]):
        with pytest.raises(FedfewError, match="E103 labels"):
            make_partition(labels, 1, "iid", 0)
    dealt = make_partition([0, 1, 0, 1, 2], 3, "dirichlet", 7, {"mu": 0.5})
    listed = partition([0, 1, 0, 1, 2], 3, "dirichlet", 7, mu=0.5)
    assert [part.tolist() for part in listed] == [dealt.of(k).tolist() for k in range(3)]
    for client in (-1, 3):
        with pytest.raises(IndexError):
            dealt.of(client)


def test_heterogeneity_is_the_mean_total_variation() -> None:
    # Pairs: (1,0)/(0,1) → 1, (1,0)/(½,½) → ½, (0,1)/(½,½) → ½; the empty client does not count.
    assert heterogeneity(np.array([[4, 0], [0, 2], [3, 3], [0, 0]])) == pytest.approx(2 / 3)
    assert heterogeneity(np.array([[4, 0], [0, 0]])) == 0.0


def test_hash_tells_orders_and_offsets_apart() -> None:
    def of(order: list[int], offsets: list[int]) -> str:
        return Partition(np.array(order, np.int64), np.array(offsets, np.int64)).hash

    assert len({of([0, 1, 2], [0, 1, 3]), of([0, 2, 1], [0, 1, 3]), of([0, 1, 2], [0, 2, 3]), of([0], [1, 2, 0])}) == 4


# virtual clients: their images follow from seed and number, and nothing is kept for each of them

LABELS = np.repeat(np.arange(10), 50)


def virtual(clients: int = 1_000_000, **options: float) -> VirtualPartition:
    made = make_any_partition(LABELS, clients, "virtual", 3, options)
    assert isinstance(made, VirtualPartition)
    return made


def test_a_virtual_client_holds_the_asked_number_of_different_images_whoever_asked_before() -> None:
    first, second = virtual(per_client=120), virtual(per_client=120)
    assert len(set(first.of(999_999).tolist())) == len(first.of(999_999)) == 120
    second.of(7)
    assert first.of(5).tolist() == second.of(5).tolist() != first.of(6).tolist()
    assert first.hash == second.hash != virtual(mu=1.0).hash
    assert (len(first.sizes), first.sizes[999_999], first.sizes.strides) == (1_000_000, 120, (0,))
    assert virtual(clients=4, per_client=20).histogram(LABELS, 10).sum(1).tolist() == [20] * 4
    with pytest.raises(IndexError):
        virtual(clients=2).of(2)
    with pytest.raises(FedfewError, match="E108"):
        virtual(per_client=501)


def test_small_mu_gives_virtual_clients_few_classes_and_large_mu_all() -> None:
    few, many = (
        np.mean([np.unique(LABELS[virtual(per_client=40, mu=mu).of(k)]).size for k in range(30)]) for mu in (0.05, 100)
    )
    assert few < 4 and many > 9
    # μ near 0 asks for one class of 50 images, but 120 are wanted: the rest comes from the other classes
    counts = np.bincount(LABELS[virtual(per_client=120, mu=1e-3).of(0)], minlength=10)
    assert (counts.max(), counts.sum()) == (50, 120)
