"""What a distribution of the sources holds: everything that its tests and its Makefile use."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_source_distribution_holds_all_that_it_is_tested_with() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    included = set(project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    assert included >= {"src", "tests", "benchmarks", "examples", "docs", "mkdocs.yml", "Makefile", "constraints.txt"}
    assert included >= {path.name for path in ROOT.glob("*.md")} | set(project["project"]["license-files"])
