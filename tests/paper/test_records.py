"""The published records make every published table and figure again, to the byte."""

import shutil
from pathlib import Path

import pytest
from paper.page import report
from paper.study import Study, published
from tests.docs.test_blocks import ROOT

RECORDS, PAGE = ROOT / "paper" / "records", ROOT / "docs" / "understand" / "results.md"


def assert_made_again(studies: list[Study], folder: Path) -> set[str]:
    page = folder / PAGE.name
    shutil.copy(PAGE, page)
    made = report(studies, page)
    assert page.read_bytes() == PAGE.read_bytes(), "run `make report`"
    files = {path.name: path.read_bytes() for path in (folder / PAGE.stem).iterdir()}
    old = {name for name, content in files.items() if content != (PAGE.parent / PAGE.stem / name).read_bytes()}
    assert not old, "run `make report`"
    assert {Path(name).suffix for name in files} == {".svg", ".csv"}
    return {*made, *files}


def test_the_smallest_study_makes_its_part_of_the_page(tmp_path: Path) -> None:
    made = assert_made_again([Study(RECORDS / "paper-full.jsonl.xz")], tmp_path)
    assert made == {"fig4-full", "fig4-full.svg", "fig4-full.csv"}


@pytest.mark.slow
def test_all_studies_make_the_whole_page(tmp_path: Path) -> None:
    made = assert_made_again(list(published(RECORDS)), tmp_path)
    published_files = {path.name for path in (PAGE.parent / PAGE.stem).iterdir()}
    assert published_files <= made, "a file that no record makes"


def test_the_records_are_small() -> None:
    assert sum(path.stat().st_size for path in RECORDS.iterdir()) < 2_000_000
