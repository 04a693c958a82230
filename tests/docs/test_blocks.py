"""Every shell and Python block of the README and the docs is run, page by page, in an empty folder."""

import importlib
import sys
import tomllib
from pathlib import Path

import pytest
from tests.docs.blocks import Block, blocks_of, shrink
from tests.docs.shell import ELSEWHERE, forget, run_block

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
]
RUNNABLE = ("bash", "python")
SHOWN = ("", "text", "json", "toml", "bibtex", "ini", "nginx", "eq")
NOT_RUN = 12
"""At most this many blocks of all pages may be excused; more would be pages that nobody has tried."""


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a cache of its own, and presets that take a second."""
    folder = tmp_path / "place"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)  # as in a script or notebook that stands beside the files
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    shrink(monkeypatch)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_do_what_it_says(page: str, workplace: Path) -> None:
    names = {"__name__": "page"}
    try:
        for block in blocks_of(ROOT / page, page):
            perform(block, names)
    finally:
        forget(workplace)


def perform(block: Block, names: dict[str, str]) -> None:
    """Write a titled block to its file, run another; failures name the page and line."""
    if block.excuse:
        return
    if block.title:
        Path(block.title).parent.mkdir(parents=True, exist_ok=True)
        Path(block.title).write_text(block.code)
        importlib.invalidate_caches()
    elif block.language == "bash":
        sys.path.remove(str(Path.cwd()))  # the command line does not look beside itself
        try:
            run_block(block)
        finally:
            sys.path.insert(0, str(Path.cwd()))
    elif block.language == "python":
        code = "\n" * block.line + block.code  # so that a traceback has the page's line
        exec(compile(code, str(ROOT / block.page), "exec"), names)
    elif block.language == "toml":
        tomllib.loads(block.code)


@pytest.mark.parametrize("page", PAGES)
def test_blocks_say_what_they_are(page: str) -> None:
    for block in blocks_of(ROOT / page, page):
        assert block.language in (*RUNNABLE, *SHOWN), f"{block.position}: language {block.language!r}"
        if block.language == "":
            commands = [line for line in block.code.splitlines() if line.startswith(("fedfew ", "pip ", "make ", "$ "))]
            assert not commands, f"{block.position}: shows commands without being a bash block"
        if block.excuse:
            assert len(block.excuse.split()) > 2, f"{block.position}: why is it not run?"


def test_few_blocks_are_excused() -> None:
    blocks = [block for page in PAGES for block in blocks_of(ROOT / page, page)]
    excused = [block.position for block in blocks if block.excuse]
    assert len(excused) <= NOT_RUN, excused
    assert sum(block.language in RUNNABLE for block in blocks) > 3 * len(excused)
    assert all(len(reason.split()) > 2 for reason in ELSEWHERE.values())


@pytest.mark.parametrize(
    ("language", "code", "words"),
    [
        (
            "bash",
            "fedfew run quick\nfedfew run quik   # not a preset\n",
            r"page.md:7: fedfew run quik .*\nended with 2",
        ),
        ("bash", "fedfew run quik   # refused: E104\n", "expected E104"),
        ("bash", "fedfew explain E104   # refused: E104\n", "expected E104, got 0"),
        ("bash", "ls nothing | cat\nfalse\n", "page.md:7: false"),
        ("python", "one = 1\nassert one == 2\n", "^$"),
    ],
)
def test_a_block_that_does_not_do_what_it_says_is_noticed(language: str, code: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        perform(Block("page.md", 5, language, code), {"__name__": "page"})


def test_lines_are_joined_excused_and_redirected(workplace: Path) -> None:
    code = "# a comment\nfedfew explain \\\n  E104 > told.txt\nfedfew resume runs/…\nmake test\n"
    perform(Block("page.md", 1, "bash", code), {})
    assert "unknown key" in (workplace / "told.txt").read_text()
    perform(Block("page.md", 1, "bash", "false\n", excuse="needs three machines"), {})
    perform(Block("page.md", 1, "python", "x = 1\n", title="kept/x.py"), {})
    assert (workplace / "kept" / "x.py").read_text() == "x = 1\n"
