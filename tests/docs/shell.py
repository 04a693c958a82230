"""A page's shell blocks, run line by line: fedfew's and the paper's commands in this process, anything else by bash."""

import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from paper.__main__ import main as paper
from tests.docs.blocks import Block

from fedfew.interface.cli import main

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
