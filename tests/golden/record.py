"""Records the golden run: ``python -m tests.golden.record`` from the project's folder."""

import json
import tempfile
from pathlib import Path
from typing import Any

from tests.runtime.tiny_run import model_hash, records, tiny_run

from fedfew.core.environment import fingerprint

GOLDEN = Path(__file__).with_name("rounds.json")
EASY: dict[str, dict[str, Any]] = {
    "fedmix": {"method__threshold": 0.15},
    "fedavg": {"objective__threshold": 0.3},
    "fedmatch": {"method__threshold": 0.12, "method__interval": 1},
}
"""Thresholds low enough that a model of two rounds votes with some images."""
METHODS = tuple(EASY)


def observe(method: str, out: Path) -> dict[str, Any]:
    """What a run leaves that does not depend on its speed."""
    run = tiny_run(out, method__name=method, server__epochs=10, server__momentum=0.9, **EASY[method])
    return {"rounds": records(run), "model_sha256": model_hash(run)}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = {method: observe(method, Path(folder) / method) for method in METHODS}
    content = {"fingerprint": fingerprint(), "runs": runs}
    GOLDEN.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
