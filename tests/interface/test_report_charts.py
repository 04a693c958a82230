"""Charts: places follow values, and SVG, CSV, the browser's data and fedfew.plots show a run folder's numbers."""

import csv
import io
import itertools
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from numpy.typing import NDArray
from tests.interface.fedfew_command import record, written_run

import fedfew
from fedfew import plots
from fedfew.interface.charts import Bars, Figure, Grid, Level, Lines, Mark, Point, Series, to_csv
from fedfew.interface.charts.scale import amount, extent, labelled, thinned, ticks, writer
from fedfew.interface.charts.svg import MOST_POINTS, spark, svg

FINITE = st.floats(-1e9, 1e9, allow_nan=False)


@given(FINITE, st.floats(1e-6, 1e9))
def test_ticks_are_evenly_spaced_round_and_within_the_range(low: float, span: float) -> None:
    found = ticks(low, low + span)
    tolerance = 1e-6 * max(abs(low), span)
    assert all(low - tolerance <= t <= low + span + tolerance for t in found)
    steps = [b - a for a, b in itertools.pairwise(found)]
    assert not steps or max(steps) - min(steps) <= tolerance
    if span > 1e-4 * abs(low):
        assert 3 <= len(found) <= 8


@given(st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=30))
def test_a_percent_axis_holds_the_data_and_stays_between_0_and_1(values: list[float | None]) -> None:
    low, high = extent(values, "percent")
    assert 0 <= low < high <= 1 or (low, high) == (0.0, 1.0)
    assert all(low <= v <= high for v in values if v is not None)


@given(st.integers(1, 500), st.integers(1, 40))
def test_no_more_labels_than_there_is_room_for(count: int, room: int) -> None:
    numbers = [str(n) for n in range(1, count + 1)]
    places = labelled(numbers, room)
    assert 1 <= len(places) <= room + 1
    assert places == sorted(set(places)) and places[-1] < count


def test_of_many_numbered_columns_the_round_ones_are_labelled() -> None:
    assert [n + 1 for n in labelled([str(n) for n in range(1, 151)], 15)] == list(range(10, 151, 10))


@given(st.integers(1, 5000), st.integers(2, 300))
def test_thinning_keeps_the_first_and_the_last(count: int, most: int) -> None:
    kept = thinned(count, most)
    assert len(kept) <= max(most, 1) and kept[0] == 0 and kept[-1] == count - 1


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (0.4753, "percent", "47.5 %"),
        (None, "percent", "–"),
        (999, "bytes", "999 B"),
        (15_400_000, "bytes", "15.4 MB"),
        (210_900_000, "bytes", "211 MB"),
        (12345, "number", "12 345"),
        (0.5, "seconds", "0.50 s"),
    ],
)
def test_amounts_as_people_write_them(value: float | None, unit: str, words: str) -> None:
    assert amount(value, unit) == words  # type: ignore[arg-type]


def test_axis_values_have_the_digits_their_steps_need() -> None:
    assert [writer("number", [0.0, 2.5, 5.0])(v) for v in (0.0, 2.5, 5.0)] == ["0.0", "2.5", "5.0"]
    assert [writer("percent", [0.0, 0.2, 0.4])(v) for v in (0.0, 0.2)] == ["0 %", "20 %"]
    assert [writer("percent", [0.5, 0.505, 0.51])(v) for v in (0.5, 0.505)] == ["50.0 %", "50.5 %"]


def lines() -> Lines:
    series = [
        Series("a <b>", [1.0, 2.0, 3.0, 4.0], [0.1, 0.3, None, 0.2]),
        Series("c", [1.0, 2.0, 3.0, 4.0], [0.4, 0.4, 0.4, 0.4], 1, "dashed", spread=[0.0, 0.1, None, 0.05]),
    ]
    return Lines("two", "Two & more", "round", "share", series, "percent", [Level("bound", 0.5)], "about <it>")


def bars(stacked: bool = False) -> Bars:
    return Bars("bar", "Bars", "class", "n", ["x", "y"], [("p", [10.0, 20.0]), ("q", [30.0, 40.0])], stacked=stacked)


def grid(shape: str) -> Grid:
    points = [Point(0, 0, 25.0, "here"), Point(1, 1, 100.0)]
    marks = [Mark(1, 0, "E411 gone", 'said "no"')]
    return Grid("g", "G", "round", "client", ["1", "2"], ["0", "7"], points, "w", marks, shape, "grid")  # type: ignore[arg-type]


EMPTY = Lines("e", "E", "x", "y", [])
FIGURES: list[Figure] = [lines(), bars(), bars(stacked=True), grid("cells"), grid("bubbles"), EMPTY]


def parsed(figure: Figure) -> ElementTree.Element:
    return ElementTree.fromstring(svg(figure))


@pytest.mark.parametrize("figure", FIGURES, ids=lambda f: f.key)
def test_every_svg_is_well_formed_and_says_what_it_shows(figure: Figure) -> None:
    root = parsed(figure)
    title, about = root.find("title"), root.find("desc")
    assert title is not None and title.text == figure.title
    assert about is not None and (about.text or "") == figure.about
    assert root.get("aria-labelledby") == f"{title.get('id')} {about.get('id')}"
    assert not re.search(r"nan|inf", svg(figure), re.IGNORECASE)


def moves(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]


def test_a_line_breaks_where_nothing_is_known_and_higher_is_further_up() -> None:
    drawn = [p.get("d", "") for p in parsed(lines()).iter("path") if p.get("class") == "line k0"]
    curve = max(drawn, key=len)
    (x1, y1), (x2, y2), (x4, y4) = moves(curve)
    assert curve.count("M") == 2
    assert y2 < y4 < y1  # 0.3 above 0.2 above 0.1
    assert math.isclose((y1 - y4) / (y1 - y2), 0.5, abs_tol=0.01)
    assert math.isclose((x4 - x1) / (x2 - x1), 3, abs_tol=0.01)


def test_a_band_reaches_one_deviation_up_and_down() -> None:
    root = parsed(lines())
    band = next(p.get("d", "") for p in root.iter("path") if p.get("class") == "band k1")
    points = moves(band)
    upper, lower = points[:4], points[:3:-1]
    middle = upper[0][1]
    assert [round(middle - y, 1) for _, y in upper] == [round(y - middle, 1) for _, y in lower]
    assert math.isclose((middle - upper[1][1]) / (middle - upper[3][1]), 2, abs_tol=0.02)  # 0.1 and 0.05


@pytest.mark.parametrize("stacked", [False, True])
def test_bars_are_as_tall_as_their_values(stacked: bool) -> None:
    root = parsed(bars(stacked))
    paths = [p.get("d", "") for p in root.iter("path") if (p.get("class") or "").startswith("fill")][-2:]
    tall = [[float(h) for h in re.findall(r"v-([\d.]+)", path)] for path in paths]
    unit = tall[0][0] / 10
    assert [[round(h / unit) for h in row] for row in tall] == [[10, 20], [30, 40]]
    feet = [float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)h", paths[1])]
    first_feet = [float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)h", paths[0])]
    gap = [round((a - b) / unit) for a, b in zip(first_feet, feet, strict=True)]
    assert gap == ([10, 20] if stacked else [0, 0])


def test_a_bubbles_area_is_its_amount() -> None:
    small, large = [float(c.get("r", "0")) for c in parsed(grid("bubbles")).iter("circle") if c.get("r") != "5"]
    assert math.isclose((large / small) ** 2, 4, rel_tol=0.03)


def test_a_file_of_its_own_brings_its_colours_along() -> None:
    text = svg(lines(), alone=True)
    assert 'xmlns="http://www.w3.org/2000/svg"' in text and "--k0" in text and "prefers-color-scheme: dark" in text


def test_csv_holds_the_numbers_of_the_chart() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(lines()))))
    assert rows[0] == ["series", "round", "share", "±"]
    assert rows[1:5] == [
        ["a <b>", "1.0", "0.1", ""],
        ["a <b>", "2.0", "0.3", ""],
        ["a <b>", "3.0", "", ""],
        ["a <b>", "4.0", "0.2", ""],
    ]
    assert rows[-1] == ["bound", "", "0.5", ""]
    assert list(csv.reader(io.StringIO(to_csv(bars()))))[1:] == [["x", "10.0", "30.0"], ["y", "20.0", "40.0"]]
    assert list(csv.reader(io.StringIO(to_csv(grid("cells")))))[3] == ["2", "0", "", 'said "no"']


def test_csv_gives_a_spreadsheet_no_formula() -> None:
    figure = Lines("f", "F", "x", "y", [Series("=HYPERLINK(1)", [1.0], [-2.0])])
    assert list(csv.reader(io.StringIO(to_csv(figure))))[1] == ["'=HYPERLINK(1)", "1.0", "-2.0", ""]


@pytest.mark.parametrize(
    ("figure", "kind", "numbers"), [(lines(), "lines", 4), (bars(), "bars", 2), (grid("cells"), "grid", 4)]
)
def test_the_browser_can_tell_where_values_are(figure: Figure, kind: str, numbers: int) -> None:
    found, *axes = ElementTree.fromstring(svg(figure)).attrib["data-axes"].split()
    assert found == kind and len([float(number) for number in axes]) == numbers


def test_a_long_curve_is_drawn_by_its_outline() -> None:
    rounds = [float(n) for n in range(1, 5001)]
    figure = Lines("f", "F", "x", "y", [Series("a", rounds, [0.9 if n == 4321 else 0.5 for n in rounds])])
    points = moves(re.findall(r'class="line k0" d="([^"]+)"', svg(figure))[-1])
    assert len(points) <= MOST_POINTS
    assert min(y for _, y in points) < max(y for _, y in points), "a peak of one round is kept"


def test_a_curve_the_size_of_a_word() -> None:
    root = ElementTree.fromstring(spark([0.1, None, 0.5], "from 10 %"))
    assert root.get("aria-label") == "from 10 %"
    path = root.find("path")
    assert path is not None
    (_, low), (_, high) = moves(path.get("d", ""))
    assert (low, high) == (22, 2)
    assert spark([], "nothing")


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


def axis(figure: Sheet) -> Axes:
    return figure.axes[0]


def curves(figure: Sheet) -> dict[str, list[float]]:
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
