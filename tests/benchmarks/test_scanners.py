import numpy as np
import pytest
import torch
from benchmarks.scanners import KINDS, Scanner, scanned, scanners, sites


def scanner(kind: str, high: bool, gains: tuple[float, ...] = (1.0, 1.0, -1.0)) -> Scanner:
    return Scanner(kind, "strong", high, 1.0, gains, 0)


def test_each_of_ten_sites_has_a_scanner_of_its_own_and_the_seed_says_which() -> None:
    own = scanners(10, "strong", 3)
    assert len({(s.kind, s.high) for s in own if s is not None}) == 2 * len(KINDS) == 10
    assert own == scanners(10, "strong", 3) != scanners(10, "strong", 4)
    assert sum(s is not None for s in scanners(10, "mild", 3, odd=2)) == 2


@pytest.mark.parametrize(
    ("kind", "high", "expected"),
    [
        ("gamma", True, 255 * (51 / 255) ** 1.9),
        ("contrast", False, (51 - 127.5) * 0.5 + 127.5),
        ("blur", True, 51.0),  # a plane stays as it is
        ("cast", True, 51.0),  # grey stays grey
        ("cast", False, 51 * 1.35),
    ],
)
def test_a_grey_plane_of_level_51_becomes_what_the_table_says(kind: str, high: bool, expected: float) -> None:
    images = torch.full((2, 3, 8, 8), 51, dtype=torch.uint8)
    assert scanner(kind, high)(images)[0, 0, 4, 4] == round(expected)


def test_noise_has_the_deviation_it_claims() -> None:
    images = torch.full((4, 1, 48, 48), 127, dtype=torch.uint8)
    noisy = scanner("noise", True)(images).double()
    assert float(noisy.std()) == pytest.approx(25 * 48 / 96, rel=0.03)  # 9,216 draws: 0.7 %


def test_only_the_images_of_sites_with_a_scanner_change() -> None:
    images = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    seen = scanned(images, np.array([0, 1, 0, 1, 0, 1]), [None, scanner("gamma", True)])
    assert torch.equal(seen[::2], images[::2]) and not torch.equal(seen[1::2], images[1::2])


def test_as_a_dataset_labels_have_no_scanner_and_test_images_have_the_sites() -> None:
    made = sites(of="mini-cifar", images=200, tested=50, labels=20, sites=4, odd=4)
    plain = sites(of="mini-cifar", images=200, tested=50, labels=20, sites=4, odd=0)
    assert made.sites is not None and plain.sites is not None
    assert torch.equal(made.train.samples.data, plain.train.samples.data) and len(made.train.labels) == 20
    assert torch.equal(made.sites.truth, plain.sites.truth)  # type: ignore[arg-type]
    assert made.sites.offsets[-1] == 200
    assert all("no change" in name for name in plain.sites.names)
    assert not torch.equal(made.test.samples.data[:4], plain.test.samples.data[:4])
