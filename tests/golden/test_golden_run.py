"""A two-round run recorded once: a change that moves a number is noticed, on this kind of machine to the last bit.

After a change that is meant to move them: ``python -m tests.golden.test_golden_run`` writes the numbers again.
"""

import json
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.tiny_run import model_hash, records, tiny_run

from fedfew.core.environment import fingerprint

GOLDEN = Path(__file__).with_name("rounds.json")
EASY: dict[str, dict[str, Any]] = {
    "fedmix": {"method__threshold": 0.15},
    "fedavg": {"objective__threshold": 0.3},
    "fedmatch": {"method__threshold": 0.12, "method__interval": 1, "method__lambda_s": 10.0},
}
"""Thresholds low enough that a model of two rounds votes with some images; FedMatch's own weight of the labels."""
METHODS = tuple(EASY)
TOLERANCE = 1e-4
COARSE = {"accuracy", "validation", "coverage", "correct", "pseudo_classes"}
"""Counts of images: another processor may move one image across a border."""


def observe(method: str, out: Path) -> dict[str, Any]:
    """What a run leaves that does not depend on its speed."""
    run = tiny_run(out, method__name=method, server__epochs=10, server__momentum=0.9, **EASY[method])
    return {"rounds": records(run), "model_sha256": model_hash(run)}


def close(found: Any, golden: Any, key: str = "") -> bool:
    """Equal, or equal but for rounding where numbers are real."""
    if isinstance(golden, dict):
        return found.keys() == golden.keys() and all(close(found[k], golden[k], k) for k in golden)
    if isinstance(golden, list):
        return len(found) == len(golden) and all(close(f, g, key) for f, g in zip(found, golden, strict=True))
    if isinstance(golden, float) or (key in COARSE and golden is not None):
        slack = {"pseudo_classes": 1.0}.get(key, 0.02 if key in COARSE else TOLERANCE * max(1.0, abs(golden)))
        return isinstance(found, float | int) and abs(found - golden) <= slack
    return bool(found == golden)


@pytest.mark.parametrize("method", METHODS)
def test_the_recorded_numbers(method: str, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))
    found = observe(method, tmp_path / "run")
    assert close(found["rounds"], golden["runs"][method]["rounds"])
    if fingerprint() == golden["fingerprint"]:
        assert found == golden["runs"][method]


def test_the_comparison_sees_a_difference() -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))["runs"]["fedmix"]["rounds"]
    changes: list[dict[str, Any]] = [{"loss": golden[0]["loss"] + 0.001}, {"cohort": []}, {"bytes_up": 1}]
    for change in changes:
        assert not close([golden[0] | change, *golden[1:]], golden)
    assert close(golden, golden)


ROOT = Path(__file__).parents[2]


def test_the_source_distribution_holds_all_that_it_is_tested_with() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    included = set(project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    assert included >= {"src", "tests", "benchmarks", "examples", "docs", "mkdocs.yml", "Makefile", "constraints.txt"}
    assert included >= {path.name for path in ROOT.glob("*.md")} | set(project["project"]["license-files"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = {method: observe(method, Path(folder) / method) for method in METHODS}
    content = {"fingerprint": fingerprint(), "runs": runs}
    GOLDEN.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
