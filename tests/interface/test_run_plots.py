"""fedfew.plots: matplotlib figures that show the numbers of the run folder, for one run and for several."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from tests.interface.small_runs import record, written_run

import fedfew
from fedfew import plots


@pytest.fixture
def run(tmp_path: Path) -> fedfew.Run:
    """Two rounds of three clients and two classes, with a rejected update."""
    missing = {"client": 2, "code": "E404", "reason": "psi holds NaN or infinity"}
    update = {"client": 0, "norm": 2.0, "cosine": 0.25}
    records = [
        record(1, accuracy=0.4, validation=0.5, cohort=[0, 1], weights={"0": 0.25, "1": 0.75}, coverage=0.5,
               correct=0.9, pseudo_classes=[3, 1], bytes_up=1000, bytes_down=2000, updates=[update]),
        record(2, accuracy=0.6, validation=0.4, cohort=[0, 2], weights={"0": 1.0}, coverage=0.75, correct=0.8,
               pseudo_classes=[6, 2], bytes_up=500, bytes_down=2000, rejected=[missing], updates=[update]),
    ]  # fmt: skip
    folder = written_run(tmp_path / "mine", records, rounds=2, clients=3)
    held = {"classes": ["cat", "dog"], "server": [1, 1], "clients": [[4, 0], [1, 2], [0, 3]]}
    (folder / "classes.json").write_text(json.dumps(held))
    return fedfew.Run.open(folder)


def axis(figure: Figure) -> Axes:
    return figure.axes[0]


def curves(figure: Figure) -> dict[str, list[float]]:
    return {str(line.get_label()): list(map(float, np.asarray(line.get_ydata()))) for line in axis(figure).lines}


def test_curves_are_those_of_the_records(run: fedfew.Run) -> None:
    assert curves(plots.accuracy(run)) == {"test": [0.4, 0.6], "validation": [0.5, 0.4]}
    assert curves(plots.pseudo_labels(run)) == {"coverage": [0.5, 0.75], "correct": [0.9, 0.8]}
    assert curves(plots.traffic(run)) == {"to clients": [2000, 4000], "from clients": [1000, 1500]}
    assert curves(plots.loss(run.path)) == {"loss": [2.3, 2.3]}
    assert curves(plots.norms(run))["clients ‖ψ − ω‖, mean"] == [2.0, 2.0]
    points = axis(plots.cosines(run)).collections[0].get_offsets()
    assert np.asarray(points).tolist() == [[1, 0.25], [2, 0.25]]


def test_several_runs_stand_in_one_figure_with_the_bound_as_a_level(run: fedfew.Run, tmp_path: Path) -> None:
    other = written_run(tmp_path / "other", [record(1, accuracy=0.3)], rounds=2, clients=3, method__name="fedavg")
    bound = written_run(
        tmp_path / "bound", [record(1, accuracy=0.2), record(2, accuracy=0.3)], rounds=2, clients=3,
        method__name="server-only",
    )  # fmt: skip
    shown = curves(plots.accuracy(run, other, bound))
    assert shown["mine"] == [0.4, 0.6] and shown["other"] == [0.3]
    assert shown["server-only"] == pytest.approx([0.3, 0.3])  # after its last round, from side to side
    assert set(shown) == {"mine", "other", "server-only"}


def test_participation_has_a_cell_for_each_update_and_a_mark_for_the_one_left_out(run: fedfew.Run) -> None:
    figure = plots.participation(run)
    cells: NDArray[np.float64] = np.ma.filled(np.ma.asarray(axis(figure).images[0].get_array()), np.nan)
    assert np.array_equal(cells, [[0.25, 1.0], [0.75, np.nan], [np.nan, np.nan]], equal_nan=True)
    (mark,) = axis(figure).collections
    assert np.asarray(mark.get_offsets()).tolist() == [[1, 2]] and "E404" in str(mark.get_label())


def test_bars_and_bubbles_are_shares_and_counts(run: fedfew.Run) -> None:
    heights = [[bar.get_height() for bar in group] for group in axis(plots.pseudo_classes(run)).containers]
    assert heights == [[0.75, 0.25], [1.0, 0.0]]  # client 0 alone answered, and holds cats only
    bubbles = axis(plots.partition(run)).collections[0]
    assert np.asarray(bubbles.get_offsets()).tolist() == [[0, 0], [1, 0], [1, 1], [2, 1]]
    sizes = np.asarray(bubbles.get_sizes())  # type: ignore[attr-defined]
    assert (sizes / sizes.max()).tolist() == pytest.approx([1, 0.25, 0.5, 0.75])
    stacked = axis(plots.times(run)).containers[0]
    assert [bar.get_height() for bar in stacked] == [0.1, 0.1]


def test_what_a_run_does_not_have_is_told(tmp_path: Path) -> None:
    bare = written_run(tmp_path / "bare", [record(1)], rounds=2, method__name="server-only")
    for draw in (plots.pseudo_labels, plots.pseudo_classes, plots.participation, plots.partition):
        with pytest.raises(fedfew.FedfewError, match="no data for this chart") as caught:
            draw(bare)
        assert caught.value.code == "E310"
    with pytest.raises(fedfew.FedfewError, match="has no round yet"):
        plots.accuracy(written_run(tmp_path / "new", [], rounds=2))
    with pytest.raises(fedfew.FedfewError, match="E302"):
        plots.accuracy(tmp_path / "nowhere")


def test_the_module_comes_with_the_package_but_not_before_it_is_asked_for() -> None:
    code = "import fedfew, sys; assert 'matplotlib' not in sys.modules; assert fedfew.plots.accuracy; print('drawn')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "drawn\n"
