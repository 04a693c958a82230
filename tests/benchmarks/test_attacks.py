"""The attack bench: what the crafts send, cells that are run once, and the page that is made of them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.attack_crafts import SUMS as SUMS_OF
from benchmarks.attack_crafts import Scene, free_rider, little, mimic, patched, sign_flip

from benchmarks import attacks, attacks_page
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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"labels": 20, "dataset.unlabeled": 60, "dataset.test": 20, "dataset.validation": 10, "model.width": 4}
    monkeypatch.setattr(attacks, "SHARED", attacks.SHARED | few)
    monkeypatch.setattr(attacks, "_WARM", {})
    monkeypatch.setattr(attacks, "METHODS", {"fedmatch": ("fedmatch", {"server.epochs": 1, "client.epochs": 1})})
    for name, value in {"CLEAN": 1, "ATTACKED": 2, "SCORED": 1}.items():
        monkeypatch.setattr(attacks, name, value)
    attacks.world.cache_clear()
    attacks.unharmed.cache_clear()


def test_a_finished_cell_is_not_run_again(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "cells.csv"
    asked = ["--csv", str(table), "run", "--methods", "fedmatch", "--defences", "default", "--attacks", "−200·ω"]
    asked += ["--shares", "0.2", "--seeds", "1"]
    attacks.main(asked)
    rows = attacks.read(table)
    assert [row["attack"] for row in rows] == ["none", "−200·ω"]
    assert rows[1]["attackers_refused"] == rows[1]["attackers"] and rows[1]["honest_refused"] == "0"
    monkeypatch.setattr(attacks, "measure", lambda _: pytest.fail("it is there already"))
    attacks.main(asked)


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
    shares = type("All", (), {"of": lambda self, _: np.array([0, 1])})()


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


def test_the_page_says_what_was_lost(tmp_path: Path) -> None:
    row = dict.fromkeys(("backdoor", "honest_refused", "honest_scaled", "attackers_refused", "attackers_scaled"), "0")
    row |= {"method": "fedfew", "mu": "0.5", "seed": "0", "seconds": "1", "honest": "30", "attackers": "0"}
    clean = row | {"defence": "default", "attack": "none", "hostile": "0", "accuracy": "80.0"}
    held = row | {"defence": "default", "attack": "scaled", "hostile": "4", "accuracy": "79.0", "attackers": "6"}
    fell = held | {"defence": "none", "accuracy": "50.0"}
    page = tmp_path / "page.md"
    page.write_text(f"before\n{attacks_page.BEGIN}\nold\n{attacks_page.END}\nafter\n", "utf-8")
    attacks_page.write([clean, held, fell], page)
    text = page.read_text("utf-8")
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "| scaled | 1.0 |" in text and "30.0, 30.0 (scaled)" in text
    assert (
        "| 4 of 20 cost at most 3 | scaled 1.0 |" in text and "| honest clients refused: below 1 % | 0 of 60 |" in text
    )
    assert (tmp_path / "page" / "attacks.svg").stat().st_size > 1000
