import torch
from benchmarks.odd_sites import long_tailed
from benchmarks.scanners import seen_by, sites
from benchmarks.study_methods import ABLATED, OUTAGE, Ablated, propagated

from fedfew.data import DATASETS


def test_labels_spread_over_neighbors_and_not_over_gaps() -> None:
    """Two rings, one label each: the nearest label is often the wrong one, the ring's own never."""
    rng = torch.Generator().manual_seed(0)
    angle = torch.rand(400, generator=rng) * 6.2832
    ring = torch.arange(400) % 2
    x = torch.stack([angle.cos(), angle.sin()], 1).repeat(1, 1) * (1 + 2 * ring[:, None])
    x = torch.cat([x, 6 * ring[:, None] - 3.0], 1)  # as directions, rings lie apart
    result = propagated(x.double(), ring[:2], 2, neighbors=10)
    assert torch.equal(result, ring)


def test_a_long_tail_falls_by_its_ratio_and_the_test_set_stays() -> None:
    made, whole = long_tailed(ratio=4.0, of="mini-cifar"), DATASETS["mini-cifar"]()
    counts = torch.bincount(made.train.labels)
    assert counts[0] == 4 * counts[-1] and (counts.diff() <= 0).all()
    assert torch.equal(made.test.labels, whole.test.labels)


def test_labels_are_seen_under_so_many_changes() -> None:
    plain = sites(of="mini-cifar", images=100, tested=20, labels=20, sites=4)
    seen = sites(of="mini-cifar", images=100, tested=20, labels=20, sites=4, views=21)
    assert len(seen.train.labels) == 22 * 20
    assert torch.equal(seen.train.samples.data[:20], plain.train.samples.data)
    assert len(seen_by(plain.train, 7).labels) == 8 * 20


def test_the_variants_of_fedmoments_are_fedmoments_but_for_their_own_settings() -> None:
    assert OUTAGE.encoding == ABLATED.encoding and OUTAGE.settle is ABLATED.settle
    assert {"class_mix", "client_spread"} <= ABLATED.settings.keys()
    assert Ablated.after_clients is OUTAGE.method.after_clients  # type: ignore[attr-defined]
