"""paper/README.md is complete, and every function, preset and test that it names exists."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import fedfew
from fedfew.methods.entry import Entry

ROOT = Path(__file__).parents[2]
PACKAGE = Path(fedfew.__file__).parent
MAP = (ROOT / "paper" / "README.md").read_text("utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in MAP.splitlines() if line.startswith("| ")]
NAMED = sorted(set(re.findall(r"`([\w/-]+\.py):([\w.]+)`", MAP)))
FUNCTIONS = [(file, name) for file, name in NAMED if not file.startswith("tests/")]
TESTS = [(file, name) for file, name in NAMED if file.startswith("tests/")]


def numbers(title: str) -> list[int]:
    """The numbers in the first column of the section's table, ranges and lists included."""
    section = MAP.split(f"## {title}", 1)[1].split("\n## ", 1)[0]
    cells = [line.strip("|").split("|")[0] for line in section.splitlines() if line.startswith("| ")]
    return sorted({int(n) for cell in cells for n in re.findall(r"\bR?(\d+)(?!\w)", cell)})


@pytest.mark.parametrize(("file", "name"), FUNCTIONS)
def test_every_function_named_in_the_map_exists(file: str, name: str) -> None:
    of_the_study = file.startswith("paper/")
    assert ((ROOT if of_the_study else PACKAGE) / file).is_file()
    module = file.removesuffix(".py").replace("/", ".")
    named: object = importlib.import_module(module if of_the_study else f"fedfew.{module}")
    for part in name.split("."):
        named = getattr(named, part)
    assert callable(named) or isinstance(named, Entry)


@pytest.mark.parametrize("file", sorted({file for file, _ in TESTS}))
def test_every_test_named_in_the_map_exists(file: str) -> None:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert {name for of, name in TESTS if of == file} <= there


def test_every_preset_and_file_named_in_the_map_exists() -> None:
    for path in re.findall(r"`(config/presets/[\w-]+\.toml)`", MAP):
        assert (PACKAGE / path).is_file(), path
    for path in re.findall(r"`(tests/[\w/]+\.py)`", MAP):
        assert (ROOT / path).is_file(), path


def test_the_map_covers_the_paper() -> None:
    assert numbers("Equations")[:12] == list(range(1, 13))
    assert numbers("Algorithm 1, line by line") == list(range(1, 26))
    assert numbers("What the paper leaves open, and how it is read here") == list(range(1, 18))
    assert set(map(int, re.findall(r"\(R(\d+)", MAP))) <= set(range(1, 18))


def test_every_row_names_code_and_a_test() -> None:
    tables = [row for row in ROWS if "---" not in row[0] and row[0] not in ("Eq.", "line", "section", "#")]
    assert len(tables) > 60
    for row in tables:
        assert re.search(r"`tests/[\w/]+\.py:test_", " ".join(row)), f"{row[0]}: no test"
        if not re.match(r"R\d", row[0]):
            assert re.search(r"`[\w/-]+\.(py:\w|toml)", row[2]), f"{row[0]}: no function"
            assert len(row) == 5, row[0]
