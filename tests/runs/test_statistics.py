"""Measures of a model on labeled images, against values by hand or by counting."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedfew.core.errors import FedfewError
from fedfew.runs.statistics import (
    Judged,
    auroc,
    calibration,
    evaluate,
    evenness,
    expected_calibration_error,
    read_predictions,
)

# six images of three classes; right: 0, 1, 2, 4
LABELS = [0, 0, 1, 1, 2, 2]
SAID = [
    [0.7, 0.2, 0.1],
    [0.5, 0.4, 0.1],
    [0.1, 0.8, 0.1],
    [0.6, 0.3, 0.1],
    [0.05, 0.05, 0.9],
    [0.2, 0.45, 0.35],
]


def judged(labels: list[int] = LABELS, said: list[list[float]] = SAID) -> Judged:
    return Judged(np.array(labels), np.array(said, float))


def test_confusion_precision_and_recall_by_hand() -> None:
    found = evaluate(judged(), ["a", "b", "c"])
    assert found["confusion"] == [[2, 0, 0], [1, 1, 0], [0, 1, 1]]
    assert found["classes"] == [
        {"class": "a", "images": 2, "precision": pytest.approx(2 / 3), "recall": 1.0},
        {"class": "b", "images": 2, "precision": 0.5, "recall": 0.5},
        {"class": "c", "images": 2, "precision": 1.0, "recall": 0.5},
    ]
    assert found["accuracy"] == pytest.approx(4 / 6)
    assert found["balanced_accuracy"] == pytest.approx((1 + 0.5 + 0.5) / 3)


def test_balanced_accuracy_is_not_fooled_by_a_large_class_nor_by_one_without_images() -> None:
    found = evaluate(judged([0] * 9 + [1], [[0.9, 0.1, 0.0]] * 10), ["a", "b", "c"])
    assert found["accuracy"] == 0.9
    assert found["balanced_accuracy"] == 0.5
    assert found["classes"][2] == {"class": "c", "images": 0, "precision": None, "recall": None}


def test_auroc_counts_pairs_and_ties_count_half() -> None:
    rng = np.random.default_rng(1)
    scores, labels = rng.integers(0, 5, 40) / 5, rng.integers(0, 2, 40)
    pairs = list(product(scores[labels == 1], scores[labels == 0]))
    expected = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
    assert auroc(Judged(labels, np.stack([1 - scores, scores], 1))) == pytest.approx(expected)
    # of three classes: each against the others. a: 7 of 8 pairs, b: 6 of 8, c: 8 of 8
    assert auroc(judged()) == pytest.approx((7 / 8 + 6 / 8 + 8 / 8) / 3)
    assert auroc(judged([1, 1], [[0.5, 0.5]] * 2)) is None  # one class alone


def test_calibration_by_hand() -> None:
    curve = calibration(judged())
    assert [b["images"] for b in curve] == [1, 1, 1, 1, 1, 1]  # 0.45, 0.5, 0.6, 0.7, 0.8, 0.9
    gaps = [0.45, 1 - 0.5, 0.6, 1 - 0.7, 1 - 0.8, 1 - 0.9]
    assert expected_calibration_error(curve, 6) == pytest.approx(sum(gaps) / 6)
    sure = judged([0, 1, 1, 1], [[1.0, 0.0]] * 4)  # certain, and right once in four
    assert expected_calibration_error(calibration(sure), 4) == pytest.approx(0.75)


def test_predictions_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "predictions.safetensors"
    assert read_predictions(place) is None
    said = np.full((2, 2), 0.5, np.float32)
    for labels in (np.array([0, 2]), np.array([0]), np.array([-1, 0])):
        save_file({"labels": labels, "probabilities": said}, place)
        with pytest.raises(FedfewError, match="E309"):
            read_predictions(place)
    place.write_bytes(b"\x08\0\0\0\0\0\0\0{broken}")
    with pytest.raises(FedfewError, match="E309"):
        read_predictions(place)


def test_how_even_clients_are_by_hand() -> None:
    values = [0.5] * 9 + [0.9] * 10 + [0.1]  # the worst two of twenty: 0.1 and 0.5
    pairs = sum(abs(a - b) for a in values for b in values)
    even = evenness(values)
    assert even["worst_clients"] == pytest.approx(0.3)
    assert even["sd_clients"] == pytest.approx(np.std(values, ddof=1))
    assert even["gini_clients"] == pytest.approx(pairs / (2 * len(values) * sum(values)))
    assert evenness([0.0]) == {"worst_clients": 0.0, "sd_clients": 0.0, "gini_clients": 0.0}
