"""The container file: what it copies is there, what it installs and runs exists."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from tests.docs.blocks import blocks_of
from tests.interface.fedfew_command import fedfew

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "Containerfile").read_text("utf-8").splitlines()


def steps() -> list[tuple[str, str]]:
    """Instructions and their arguments."""
    lines = [line for line in LINES if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_it_does_not_run_as_root() -> None:
    words = [word for word, _ in steps()]
    assert words.index("USER") < words.index("ENTRYPOINT")


def test_what_is_copied_and_installed_exists() -> None:
    for word, rest in steps():
        if word == "COPY":
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [install] = [rest for word, rest in steps() if word == "RUN" and "pip install" in rest]
    extras = re.search(r"\.\[([\w,]+)\]", install)
    assert extras and set(extras[1].split(",")) <= set(project["optional-dependencies"])
    assert "constraints.txt" in install
    [base] = [rest for word, rest in steps() if word == "FROM"]
    version = re.search(r"python:(\d+\.\d+)", base)
    assert version and version[1] == re.search(r"\d+\.\d+", project["requires-python"])[0]  # type: ignore[index]


def test_what_it_runs_exists(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    commands = {word: json.loads(rest) for word, rest in steps() if word in ("ENTRYPOINT", "CMD")}
    assert commands["ENTRYPOINT"][0] in project["scripts"]
    assert fedfew(capsys, *commands["CMD"]).status == 0
    [block] = [b.code for b in blocks_of(ROOT / "docs/how-to/deploy.md", "deployment.md") if "podman build" in b.code]
    for kind in re.findall(r"\bdeploy (server|client)\b", block):
        assert fedfew(capsys, "deploy", kind, "--help").status == 0
    assert "--data" in fedfew(capsys, "deploy", "client", "--help").out
    port = next(rest for word, rest in steps() if word == "EXPOSE")
    assert f"-p {port}:{port}" in block
