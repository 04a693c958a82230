"""Every shell and Python block of the README and the docs is run, page by page, in an empty folder."""

import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from paper.__main__ import main as paper
from tests.docs.blocks import Block, blocks_of, shrink

from fedfew.interface.cli import main

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
            r"page.md:7: fedfew run quik .*\n *ended with 2",
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


ELSEWHERE = {
    r"^make (demo|test|docs|check|format)": "these make targets install and test, this test included",
    r"^(pip|python3? -m (pip|venv)|\. )": "installing is what came before this test",
    r"cifar10|few-labels|paper-(tuned|literal)|reference-code": "CIFAR-10 is a download, and its runs take hours",
    r"…": "a place for the reader's own name",
}
"""Lines that a page shows and this test leaves out, each with the reason."""
if importlib.util.find_spec("onnxruntime") is None:
    ELSEWHERE["--format onnx"] = "the extra export is not installed"
REFUSED = re.compile(r"refused: (E\d\d\d)")


def run_block(block: Block) -> None:
    """Run every line; raises AssertionError with place and output where a line does not do what the page says."""
    for number, line in _lines(block.code):
        position = f"{block.page}:{block.line + number}: {line}"
        command = shlex.join(shlex.split(line, comments=True)) if not _needs_shell(line) else line
        if not command or any(re.search(pattern, line) for pattern in ELSEWHERE):
            continue
        refused = REFUSED.search(line)
        status, output = _run(line)
        if refused:
            assert status == 2 and refused[1] in output, f"{position}\nexpected {refused[1]}, got {status}:\n{output}"
        else:
            assert status == 0, f"{position}\nended with {status}:\n{output}"


def _lines(code: str) -> Iterator[tuple[int, str]]:
    """Lines with continuations joined, each with its number in the block."""
    pending, first = "", 0
    for number, line in enumerate(code.splitlines(), 1):
        first = first if pending else number
        pending += line.rstrip("\\") if line.endswith("\\") else line
        if line.endswith("\\"):
            continue
        if pending.strip() and not pending.lstrip().startswith("#"):
            yield first, pending.strip()
        pending = ""


def _needs_shell(line: str) -> bool:
    code = line.partition("  #")[0]
    return any(sign in code for sign in ("|", "&", ";", "$", "`", "<", "*"))


def _run(line: str) -> tuple[int, str]:
    words = shlex.split(line, comments=True) if not _needs_shell(line) else []
    surroundings = {}
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        key, _, value = words.pop(0).partition("=")
        surroundings[key] = value
    study = words[:3] == ["python", "-m", "paper"]
    if not words or (words[0] != "fedfew" and not study):
        done = subprocess.run(["bash", "-euc", line], capture_output=True, text=True, env=_environment())
        return done.returncode, done.stdout + done.stderr
    target = None
    if ">" in words:
        target = Path(words[words.index(">") + 1])
        words = words[: words.index(">")]
    if words[:2] == ["fedfew", "watch"]:
        return _watch(words)
    status, out, err = in_process(words, surroundings)
    if target:
        target.write_text(out)
    return status, out + err


def _environment() -> dict[str, str]:
    scripts = str(Path(sys.executable).parent)
    return os.environ | {"PATH": scripts + os.pathsep + os.environ["PATH"]}


def in_process(words: list[str], surroundings: dict[str, str]) -> tuple[int, str, str]:
    """One command as a person meets it, without the seconds that a new process takes to load torch."""
    out, err, argv, path = io.StringIO(), io.StringIO(), sys.argv, list(sys.path)
    sys.argv = words
    program = main if words[0] == "fedfew" else lambda: paper(words[3:])
    if "PYTHONPATH" in surroundings:
        sys.path.insert(0, str(Path(surroundings["PYTHONPATH"]).resolve()))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            program()
    except SystemExit as end:
        return int(end.code or 0), out.getvalue(), err.getvalue()
    finally:
        sys.argv, sys.path = argv, path
        forget(Path.cwd())
    return 0, out.getvalue(), err.getvalue()


def forget(folder: Path) -> None:
    """Unload modules that stand in a folder, as the end of a process does."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "") or "").startswith(str(folder)):
            del sys.modules[name]


def _watch(words: list[str]) -> tuple[int, str]:
    """The page is served, answers, and is ended."""
    command = [sys.executable, "-m", "fedfew", *words[1:], "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            line = process.stdout.readline()
            if not line:
                return process.wait(), process.stderr.read()
            with urllib.request.urlopen(json.loads(line)["url"], timeout=30) as page:
                return (0 if page.status == 200 else 1), page.read().decode()
        finally:
            process.terminate()
