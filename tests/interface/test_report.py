"""The report: one file without network, whose numbers are those of the run folder."""

import json
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from statistics import mean, stdev

import pytest
from tests.interface.fedfew_command import Capture, fedfew, record, small_run, written_run

from fedfew.core.errors import FedfewError
from fedfew.core.text import duration
from fedfew.interface.charts import Lines
from fedfew.interface.charts.evaluation_charts import confusion, evaluation_figures
from fedfew.interface.charts.run_charts import participation
from fedfew.interface.report import write_report
from fedfew.interface.report.comparison import tables
from fedfew.interface.report.words import events_of
from fedfew.runs.collection import read_all
from fedfew.runs.folder import find_runs
from fedfew.runs.run import Run
from fedfew.runtime.record import left_out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    small_run(folder / "mix", availability__dropout=0.5)
    small_run(folder / "lower", method__name="server-only")
    small_run(folder / "upper", method__name="all-labels")
    return folder


class Page(HTMLParser):
    """What a browser would find in a page."""

    VOID = frozenset({"meta", "link", "br", "input", "path", "rect", "circle", "hr", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def all(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]


def page_of(path: Path) -> Page:
    return Page(path.read_text("utf-8"))


def records_of(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def shown(value: float) -> str:
    return f"{100 * value:.1f} %"


def test_a_runs_report_has_its_numbers_command_versions_and_hash(runs: Path) -> None:
    written = write_report(runs / "mix")
    assert written == runs / "mix" / "report" / "index.html"
    text = page_of(written).text
    accuracy = [float(str(r["accuracy"])) for r in records_of(runs / "mix")]
    best = max(records_of(runs / "mix"), key=lambda r: float(str(r["validation"])))
    assert f"Accuracy after round {len(accuracy)} of {len(accuracy)} {shown(accuracy[-1])}" in text
    assert shown(float(str(best["accuracy"]))) in text
    environment = json.loads((runs / "mix" / "environment.json").read_text())
    summary = json.loads((runs / "mix" / "summary.json").read_text())
    assert "fedfew run quick --out mix" in text
    assert environment["fingerprint"]["torch"] in text and environment["python"] in text
    assert summary["model_sha256"] in text
    assert "dropout = 0.5" in text  # the whole config
    for bound in ("lower", "upper"):
        reached = float(str(records_of(runs / bound)[-1]["accuracy"]))
        assert shown(reached) in text
    assert "server-only (lower bound)" in text and "FedAvg with true labels" in text
    assert "FedAvg with true labels (" not in text  # it bounds nothing


def test_a_report_is_one_file_that_asks_for_nothing(runs: Path, tmp_path: Path) -> None:
    for source in (runs / "mix", runs):
        written = write_report(source, tmp_path / f"{source.name}.html")
        text = written.read_text("utf-8")
        page = page_of(written)
        assert written.stat().st_size < 2_000_000
        assert page.open == []
        assert not page.all("src") and "<script" not in text and "@import" not in text and "url(" not in text
        assert all(link.startswith(("data:", "#")) for link in page.all("href"))
        assert "http" not in text.replace("http-equiv", "")
        assert len(page.all("id")) == len(set(page.all("id")))
        assert "width=device-width" in text and "@media print" in text and "prefers-color-scheme: dark" in text
        assert all(set(names.split()) <= set(page.all("id")) for names in page.all("aria-labelledby"))


def test_a_folders_report_has_mean_and_interval_over_seeds(tmp_path: Path) -> None:
    reached = {0: 0.41, 1: 0.44, 2: 0.5}
    for seed, value in reached.items():
        written_run(tmp_path / f"mix-{seed}", [record(1, accuracy=value)], seed=seed, dataset__seed=seed)
    written_run(tmp_path / "low", [record(1, accuracy=0.2)], method__name="server-only")
    text = page_of(write_report(tmp_path)).text
    half = 4.302653 * stdev(reached.values()) / 3**0.5  # Student's t with two degrees of freedom
    assert text.count(f"{100 * mean(reached.values()):.1f} ± {100 * half:.1f}") == 2  # last, and best by validation
    assert "Fewer than three seeds give no interval, only the values: server-only" in text
    (table,) = tables(read_all(tmp_path)[0])
    curve = next(figure for figure in table.figures if isinstance(figure, Lines)).series[0]
    assert list(curve.y) == pytest.approx([mean(reached.values())])
    assert list(curve.spread) == pytest.approx([half])


def test_the_comparison_is_that_of_fedfew_compare(tmp_path: Path, capsys: Capture) -> None:
    for seed, value in enumerate((0.41, 0.44, 0.5)):
        written_run(tmp_path / f"mix-{seed}", [record(1, accuracy=value)], seed=seed, rounds=1)
        low = [record(1, accuracy=value - 0.1 - 0.01 * seed)]
        written_run(tmp_path / f"low-{seed}", low, method__name="server-only", seed=seed, rounds=1)
    for run in find_runs(tmp_path):
        (run / "summary.json").write_text("{}")
    said = fedfew(capsys, "compare", tmp_path, "--json").json
    (table,) = tables(read_all(tmp_path)[0])
    assert (
        [row[0].removesuffix("*") for row in table.rows]
        == [row["key"]["method.name"] for row in said["rows"]]
        == ["fedmix", "server-only"]
    )
    for shown_row, row in zip(table.rows, said["rows"], strict=True):
        half = row["accuracy"]["high"] - row["accuracy"]["mean"]
        assert shown_row[1] == f"{100 * row['accuracy']['mean']:.1f} ± {100 * half:.1f}" and shown_row[4] == "3"
    assert table.rows[0][2].startswith(f"{100 * (0.1 + 0.11 + 0.12) / 3:+.1f} [")
    text = page_of(write_report(tmp_path)).text
    assert all(cell in text for row in table.rows for cell in row)


def test_runs_on_other_test_images_are_compared_apart(tmp_path: Path) -> None:
    written_run(tmp_path / "a", [record(1)], dataset__test=100)
    written_run(tmp_path / "b", [record(1)], dataset__test=200)
    assert [len(table.rows) for table in tables(read_all(tmp_path)[0])] == [1, 1]


def test_rows_are_told_apart_by_what_differs_and_scenarios_never_share_a_chart(tmp_path: Path) -> None:
    for mu in (0.1, 10.0):
        written_run(tmp_path / f"mu{mu}", [record(1)], partition__mu=mu)
    written_run(tmp_path / "labels", [record(1)], partition__mu=10.0, labels=80)
    (table,) = tables(read_all(tmp_path)[0])
    settings = {"partition.mu 0.1", "partition.mu 10.0"}
    assert {part for text in table.settings for part in text.split(", ") if "mu" in part} == settings
    curves = {f.title: len(f.series) for f in table.figures if isinstance(f, Lines) and f.key.endswith("accuracy")}
    rounds = Run.open(tmp_path / "labels").planned
    assert curves == {
        f"Accuracy (mini-mnist, {labels} labels, {rounds} rounds)": count for labels, count in ((50, 2), (80, 1))
    }


def test_left_out_clients_are_marked_with_their_reason(runs: Path) -> None:
    opened = Run.open(runs / "mix")
    lost = [(r["round"], f["client"], f["code"]) for r in opened.records for f in left_out(r)]
    assert lost  # half of the clients drop out
    grid = participation(opened)
    marked = [(int(grid.columns[m.column]), int(grid.rows[m.row]), m.kind[:4]) for m in grid.marks]
    assert sorted(marked) == sorted(lost)
    weights = {(r["round"], int(k)): w for r in opened.records for k, w in r["weights"].items()}
    assert {(int(grid.columns[p.column]), int(grid.rows[p.row])): p.value for p in grid.points} == weights
    assert [(e.round, e.client, e.code) for e in events_of(opened) if e.client is not None] == lost
    assert "E411 client dropped out" in page_of(write_report(runs / "mix")).text


def test_hundreds_of_rounds_with_many_clients_stay_below_two_megabytes(tmp_path: Path) -> None:
    rng = random.Random(0)
    records = []
    for n in range(1, 401):
        cohort = sorted(rng.sample(range(2000), 60))
        lost = [{"client": k, "code": "E411", "reason": "dropped out"} for k in cohort[:20]]
        updates = [{"client": k, "norm": 1.0, "cosine": rng.random()} for k in cohort[20:]]
        weights = {str(k): rng.random() for k in cohort[20:]}
        records.append(record(n, cohort=cohort, rejected=lost, updates=updates, weights=weights))
    run = written_run(tmp_path / "large", records, clients=2000, rounds=400)
    held = [[rng.randint(0, 9) for _ in range(10)] for _ in range(2000)]
    classes = {"classes": [f"class {i}" for i in range(10)], "server": [1] * 10, "clients": held}
    (run / "classes.json").write_text(json.dumps(classes))
    assert write_report(run).stat().st_size < 2_000_000


def test_names_are_text_never_markup(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>"
    fault = {"client": 0, "code": "E408", "reason": nasty}
    run = written_run(tmp_path / "<img src=x onerror=y>", [record(1, cohort=[0], rejected=[fault])])
    (run / "environment.json").write_text(json.dumps({"fingerprint": {}, "command": nasty}))
    for source in (run, tmp_path):
        written = write_report(source)
        assert "<script" not in written.read_text() and "<img" not in written.read_text()
    assert nasty in page_of(write_report(run)).text


def test_an_unfinished_and_an_empty_run_can_be_reported(tmp_path: Path) -> None:
    stopped = written_run(tmp_path / "stopped", [record(1), record(2)], rounds=5)
    empty = written_run(tmp_path / "empty", [], rounds=5)
    assert Run.open(stopped).state == "stopped"
    text = page_of(write_report(stopped)).text
    assert "stopped" in text and "round 2 of 5" in text and "the run has not finished" in text
    assert "<figure" not in write_report(empty).read_text()  # a chart without a value is left out


def test_what_is_not_a_run_is_refused_with_a_code(tmp_path: Path, capsys: Capture) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        said = fedfew(capsys, "report", path)
        assert said.status == 2 and said.err.startswith("E302") and "Traceback" not in said.err


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rounds.jsonl", "[1]\n"),
        ("rounds.jsonl", "not json\n"),
        ("run.toml", "seed = "),
        ("environment.json", "[]"),
        ("summary.json", "{"),
        ("classes.json", '{"classes": [1]}'),
        ("rounds.jsonl", json.dumps(record(1, loss=float("nan"))) + "\n"),
        ("rounds.jsonl", json.dumps(record(1, seconds=3)) + "\n"),
        ("rounds.jsonl", json.dumps(record(1, rejected=[{"client": "a"}])) + "\n"),
    ],
)
def test_a_damaged_run_is_named_and_the_others_are_shown(tmp_path: Path, name: str, content: str) -> None:
    written_run(tmp_path / "sound", [record(1)])
    damaged = written_run(tmp_path / "damaged", [record(1)])
    (damaged / name).write_text(content)
    with pytest.raises(FedfewError, match="E309"):
        write_report(damaged)
    text = page_of(write_report(tmp_path)).text
    assert "Left out, cannot be read: E309" in text and "sound" in text


def test_what_clients_gave_away_is_told(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    for name, noise in (("noisy", 1.0), ("clipped", 0.0)):
        small_run(tmp_path / name, privacy__clip=1.0, privacy__noise=noise)
        told = json.loads((tmp_path / name / "summary.json").read_text())["privacy"]
        text = write_report(tmp_path / name).read_text("utf-8")
        assert "ε of a client at δ = 1e-05" in text
        assert (f"<td>{told['epsilon']:.4g}</td>" if noise else "no noise, no guarantee") in text
        assert f"C = 1, z = {noise:g}" in text
    assert "no noise, no guarantee" in write_report(tmp_path, tmp_path / "all.html").read_text("utf-8")
    open_ = written_run(tmp_path / "open", [record(1)], privacy__clip=1.0)
    assert "<h2>Privacy</h2>" not in write_report(open_).read_text("utf-8")


@pytest.mark.parametrize(
    ("seconds", "words"), [(3.21, "3.2 s"), (42.0, "42 s"), (600.0, "10 min"), (9000.0, "2 h 30 min")]
)
def test_durations_for_people(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_confusions_calibration_and_measures_are_shown(runs: Path, tmp_path: Path) -> None:
    page = page_of(write_report(runs / "mix", tmp_path / "mix.html"))
    found = json.loads((runs / "mix" / "evaluation.json").read_text())
    assert {"confusion", "by-class", "calibration"} <= set(page.all("id"))
    assert f"{found['auroc']:.3f}" in page.text and shown(found["balanced_accuracy"]) in page.text
    assert f"Expected calibration error {shown(found['ece'])}" in page.text
    summary = json.loads((runs / "mix" / "summary.json").read_text())
    assert [summary[key] for key in ("balanced_accuracy", "auroc", "ece")] == [
        found[key] for key in ("balanced_accuracy", "auroc", "ece")
    ]
    grid = confusion(Run.open(runs / "mix"))
    counts = found["confusion"]
    assert {(p.row, p.column): p.value for p in grid.points} == {
        (t, s): pytest.approx(n / sum(row)) for t, row in enumerate(counts) for s, n in enumerate(row) if n
    }


def test_the_sites_estimated_class_mix_is_drawn_with_their_names(tmp_path: Path) -> None:
    run = written_run(tmp_path / "run", [record(1)], rounds=1)
    sites = [{"site": "north", "images": 30, "mix": [0.75, 0.25]}, {"site": "empty", "images": 0}]
    rows = [{"class": name, "images": 2, "precision": 0.5, "recall": None} for name in ("cat", "dog")]
    evaluation = {"sites": sites, "classes": rows, "confusion": [[1, 0], [1, 0]], "calibration": [], "ece": None}
    shown_sites = evaluation_figures(Run.open(run).with_(evaluation=evaluation))[-1]
    assert shown_sites.key == "site-mix" and "north cat" in shown_sites.about
    assert "dog taken for cat, 1 images" in evaluation_figures(Run.open(run).with_(evaluation=evaluation))[0].about
