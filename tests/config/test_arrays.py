"""``fedfew.from_arrays``: from arrays of any library to a finished run, and the arrays it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from numpy.typing import NDArray

import fedfew
from fedfew.core.errors import FedfewError

MEANS = 3 * np.eye(4, 6)


def drawn(count: int, seed: int, classes: tuple[int, ...] = (0, 1, 2, 3)) -> tuple[NDArray[Any], NDArray[Any]]:
    """Vectors of four classes that lie apart, each column with a unit of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, count)
    x = MEANS[labels] + rng.normal(size=(count, 6))
    return (x * 10.0 ** np.arange(6)).astype(np.float32), labels


def test_a_run_in_three_lines_and_its_predictions(tmp_path: Path) -> None:
    clients = [drawn(80, 10 + k, (k, (k + 1) % 4))[0] for k in range(4)]
    x, y = drawn(300, 2)
    config = fedfew.from_arrays(drawn(24, 1), clients, (torch.from_numpy(x), torch.from_numpy(y)), path=tmp_path / "x")
    run = fedfew.run(config, {"rounds": 6, "fleet.kind": "inline"}, out=tmp_path / "run", progress=False)
    accuracy = run.accuracy()
    assert accuracy is not None and accuracy > 0.85
    x.flags.writeable = False  # as the columns of a data frame are
    probabilities = fedfew.predict(run, x)
    assert probabilities.shape == (300, 4)
    assert float((probabilities.argmax(1).numpy() == y).mean()) == pytest.approx(accuracy, abs=0.03)
    assert run.config.method.population == run.document["method"]["population"] == 4  # type: ignore[attr-defined]
    assert run.document["dataset"]["validation"] == 0 and run.evaluation["images"] == 300


def test_frames_names_of_clients_and_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path))
    x, y = drawn(24, 1)
    frame, names = pandas.DataFrame(x), pandas.Series([f"class {c}" for c in y])
    first, second = (fedfew.from_arrays((frame, names), {"north": frame, "south": frame}) for _ in range(2))
    assert first == second, "the same content is saved in the same place"
    parts = fedfew.Experiment.load(first).start(tmp_path / "run").parts
    assert parts.federation.sites == ("north", "south")
    assert parts.federation.classes == ("class 0", "class 1", "class 2", "class 3")


@pytest.mark.parametrize(
    ("server", "client", "message"),
    [
        ((np.eye(4), [0, 1, 0]), np.eye(4), "server: 4 samples have 3 labels"),
        ((np.eye(4), [0, 1, 0, 1]), np.ones((2, 5)), r"client 0: has vectors of shape \(5,\), the server of \(4,\)"),
        ((np.array([["a"], ["b"]]), [0, 1]), np.eye(1), "server: holds <U1 of shape"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(server: Any, client: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(FedfewError, match=message):
        fedfew.from_arrays(server, [client], path=tmp_path / "x")
    assert not list(tmp_path.iterdir()), "nothing is written"
