"""The published records make every published table and figure again, to the byte."""

import shutil
from pathlib import Path

from paper.page import report
from paper.study import published
from tests.docs.test_blocks import ROOT

RECORDS, PAGE = ROOT / "paper" / "records", ROOT / "docs" / "understand" / "results.md"


def test_the_records_make_the_whole_page(tmp_path: Path) -> None:
    page = tmp_path / PAGE.name
    shutil.copy(PAGE, page)
    report(published(RECORDS), page)
    assert page.read_bytes() == PAGE.read_bytes(), "run `make report`"
    made, kept = ({path.name: path.read_bytes() for path in (p.parent / p.stem).iterdir()} for p in (page, PAGE))
    assert made.keys() == kept.keys(), "a file that no record makes, or one that is not published"
    assert [name for name in made if made[name] != kept[name]] == [], "run `make report`"
    assert {Path(name).suffix for name in made} == {".svg", ".csv"}


def test_the_records_are_small() -> None:
    assert sum(path.stat().st_size for path in RECORDS.iterdir()) < 2_000_000
