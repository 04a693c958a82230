"""The attack bench: what the crafts send, cells that are run once, and the page that is made of them."""

import numpy as np
import pytest
import torch
from benchmarks.attack_crafts import SUMS as SUMS_OF
from benchmarks.attack_crafts import Scene, free_rider, little, mimic, patched, sign_flip

from fedfew.aggregators import AGGREGATORS
from fedfew.core.network import Network
from fedfew.data.samples import Vectors
from fedfew.methods.fedmoments.method import FedMoments
from fedfew.models.layers import Head
from fedfew.training.sgd import LocalSGD
from fedfew.training.supervised import Supervised

SENT = torch.zeros(4)


def scene(honest: torch.Tensor, own: torch.Tensor | None = None) -> Scene:
    own = honest[0] if own is None else own
    return Scene(SENT, own, list(honest), 5, 1, None, 0, torch.Generator().manual_seed(0))  # type: ignore[arg-type]


def test_what_the_others_send() -> None:
    honest = torch.tensor([[1.0, 0, 0, 0], [3.0, 0, 0, 0]])
    assert little(scene(honest))[0] < 2
    assert torch.equal(mimic(scene(honest)), honest[0])
    assert torch.equal(sign_flip(scene(honest)), -honest[0])
    assert free_rider(scene(honest)).norm() <= 1e-3
    assert int((patched(torch.zeros(1, 1, 14, 14, dtype=torch.uint8)) == 255).sum()) == 4


METHOD = FedMoments(Supervised(), LocalSGD(), AGGREGATORS["fedavg"], folds=2)
SHAPE = METHOD.shape(2, 2)
SUMS = torch.full((SHAPE.length,), 9.0)
SHAPE.read(SUMS)[0].counts[:] = 2.0
SHAPE.read(SUMS)[0].moments[:] = torch.tensor([[4.0, 0], [0, 4]])
PAYLOAD = {"weight": torch.eye(2), "origin": torch.zeros(2), "scale": torch.ones(2)}


class TwoImages:
    """Sites with two images of two features, one of each class, and true labels."""

    classes, seed, algorithm, network = 2, 0, METHOD, Network.of(Head(2, 2))
    samples, truth = Vectors(torch.tensor([[[4.0, 0]], [[0, 4.0]]])), torch.tensor([0, 1])
    share = staticmethod(lambda _: np.array([0, 1]))


@pytest.mark.parametrize(
    ("name", "counts", "moments"),
    [
        ("long moments", [1, 1], [[0, 4], [4, 0]]),
        ("turned sums", [1, 1], [[0, 4], [4, 0]]),
        ("one class", [4, 0], [[4, 4], [0, 0]]),
        ("free rider", [1, 1], [[0, 0], [0, 0]]),
        ("hidden sums", [2, 2], [[0, 0], [0, 0]]),
    ],
)
def test_sums_that_lie(name: str, counts: list[float], moments: list[list[float]]) -> None:
    rng = torch.Generator().manual_seed(0)
    crafted = SUMS_OF[name](Scene(SUMS * 0, SUMS, [], 5, 1, TwoImages(), 0, rng, PAYLOAD))  # type: ignore[arg-type]
    assert crafted is not None
    lies, *rest = SHAPE.read(crafted)
    assert all(bool((part.moments == 9).all()) for part in rest), "nothing else is touched"
    assert lies.counts.tolist() == counts
    if name != "hidden sums":  # scores that see every direction leave nowhere to hide
        assert lies.moments.tolist() == moments


def test_a_poisoned_survey_is_that_of_copies_of_one_image() -> None:
    rng = torch.Generator().manual_seed(0)
    built = SUMS_OF["survey"](Scene(SUMS * 0, SUMS, [], 5, 1, TwoImages(), 0, rng, PAYLOAD))  # type: ignore[arg-type]
    assert built is not None and len(built) == 2 + 3
    assert torch.allclose(built[2:], torch.stack([built[0] ** 2, built[1] ** 2, built[0] * built[1]]) / 2)
