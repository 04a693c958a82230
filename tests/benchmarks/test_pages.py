"""The pages and tables of the benchmarks: figures read from what a command prints, with misses and limits reported."""

from pathlib import Path

import pytest
import torch
from benchmarks.leaks import BEGIN, END, KNOWN, PAGE, Moments, measured, of_head, printed, record
from benchmarks.performance.page import kept
from benchmarks.performance.text import page_text
from benchmarks.reliability import faults
from benchmarks.reliability.targets import TARGETS
from benchmarks.scanners import Scanner, sites
from benchmarks.secure_sums import EXCHANGES, open_round, secure_round

from benchmarks import scanners
from fedfew.interface.deploy.dossier import MEASURED

ROOT = Path(__file__).parents[2]


def test_every_target_names_something_that_exists() -> None:
    for name, target in TARGETS.items():
        module, *words = target.command
        if module == "pytest":
            places = [word for word in words if word.startswith("tests/")]
            assert places and all((ROOT / page).exists() for page in places), name
        else:
            assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), name


def test_the_leak_card_is_what_was_recorded_and_a_row_replaces_its_own(tmp_path: Path) -> None:
    page, table = tmp_path / "page.md", tmp_path / "leaks.csv"
    text = (ROOT / PAGE).read_text("utf-8")
    page.write_text(text, "utf-8")
    table.write_bytes(MEASURED.read_bytes())
    record({}, table, page)
    assert page.read_text("utf-8") == text and table.read_bytes() == MEASURED.read_bytes()
    record({"fedmix, small network": ["0.50 / 1 % / –"] * 5 + ["3"]}, table, page)
    changed = page.read_text("utf-8")
    assert changed.count("\n") == text.count("\n") and "| fedmix, small network | 0.50 / 1 % / – | 0.50" in changed
    assert printed(["answer", "1 image", "seeds"], [["a", "0.50", "3"]]).splitlines()[-1] == "| a | 0.50 |"
    assert "| linear head | 1.00" in changed.partition(BEGIN)[2].partition(END)[0]


@pytest.mark.parametrize(
    ("output", "figure"),
    [
        ('noise\n{"kills": 50, "same_hash": true}\n', "kills: 50; same hash: true"),
        ('{"sweep": {"kills": 2}, "x": [1]}', "sweep: kills: 2; x: [1]"),
        ("....\n4 passed, 1 skipped in 3.2s\n", "4 passed, 1 skipped"),
        ("1 failed, 2 passed in 1s\n", "1 failed, 2 passed"),
        ("", "nothing was printed"),
        ("Traceback\nValueError: no", "ValueError: no"),
    ],
)
def test_the_figure_is_what_the_command_said_last(output: str, figure: str) -> None:
    assert faults.figure(output) == figure


def test_misses_and_time_limits_are_told_from_success() -> None:
    assert faults.run(["this"], 60).state == "met"
    assert faults.run(["no_such_module_here"], 60).state == "missed"
    late = faults.run(["http.server", "--bind", "127.0.0.1", "0"], 0.5)
    assert (late.state, late.figure) == ("out of time", "not done within 0 s")


FEATURES = torch.randn(KNOWN + 600, 80, generator=torch.Generator().manual_seed(0)).double()
CLASSES = torch.arange(len(FEATURES)) % 10


@pytest.mark.parametrize("noise", [0.0, 50.0])
def test_few_images_are_named_by_a_survey_and_by_a_malicious_step_and_noise_hides_them(noise: float) -> None:
    torch.manual_seed(0)
    moments = Moments.of(FEATURES, CLASSES, noise)
    survey, slabs = (measured(attack, len(FEATURES), 20, 0) for attack in (moments.survey, moments.slabs))
    assert (survey[0] > 0.99, slabs[0] > 0.95) == (not noise, not noise)
    assert noise == 0 or max(survey[0], slabs[0]) < 0.65


def test_a_step_withholds_what_fewer_than_five_images_would_say() -> None:
    torch.manual_seed(0)
    open_, held = (Moments.of(FEATURES, CLASSES, fewest=fewest) for fewest in (0, 5))
    assert measured(open_.step, len(FEATURES), 1, 0)[0] > 0.9
    assert measured(held.step, len(FEATURES), 1, 0)[0] == 0.5


def test_a_linear_head_that_saw_one_image_is_that_image() -> None:
    auc, _, nearest = measured(of_head(torch.nn.Linear(80, 10).double(), FEATURES), len(FEATURES), 1, 0)
    assert auc > 0.9 and nearest > 0.99


VECTORS = torch.randn(10, 500, generator=torch.Generator().manual_seed(0))


def test_an_open_round_sends_every_site_the_model_and_gets_one_back() -> None:
    assert open_round(VECTORS)["bytes"] == 10 * 500 * 4 * 2


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_sites_that_leave_before_the_third_answer_are_not_in_the_sum_and_later_ones_are(exchange: int) -> None:
    assert secure_round(VECTORS, exchange)["in_the_sum"] == (7 if exchange <= 3 else 10)


ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_kept_results_say() -> None:
    page = (ROOT / "docs" / "understand" / "performance.md").read_text("utf-8")
    assert page == page_text(kept()), "run `python -m benchmarks.performance.page docs/understand/performance.md`"
    assert "Not measured yet" not in page
    assert page.index("## Against the targets") < page.index("## Against plain PyTorch")


def scanner(kind: str, high: bool, gains: tuple[float, ...] = (1.0, 1.0, -1.0)) -> Scanner:
    return Scanner(kind, "strong", high, 1.0, gains, 0)


def test_each_of_ten_sites_has_a_scanner_of_its_own_and_the_seed_says_which() -> None:
    own = scanners.scanners(10, "strong", 3)
    assert len({(s.kind, s.high) for s in own if s is not None}) == 2 * len(scanners.KINDS) == 10
    assert own == scanners.scanners(10, "strong", 3) != scanners.scanners(10, "strong", 4)
    assert sum(s is not None for s in scanners.scanners(10, "mild", 3, odd=2)) == 2


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


def test_as_a_dataset_labels_have_no_scanner_and_test_images_have_the_sites() -> None:
    made = sites(of="mini-cifar", images=200, tested=50, labels=20, sites=4, odd=4)
    plain = sites(of="mini-cifar", images=200, tested=50, labels=20, sites=4, odd=0)
    assert made.sites is not None and plain.sites is not None
    assert torch.equal(made.train.samples.data, plain.train.samples.data) and len(made.train.labels) == 20
    assert torch.equal(made.sites.truth, plain.sites.truth)  # type: ignore[arg-type]
    assert made.sites.offsets[-1] == 200
    assert all("no change" in name for name in plain.sites.names)
    assert not torch.equal(made.test.samples.data[:4], plain.test.samples.data[:4])
