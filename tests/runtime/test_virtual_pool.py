"""Virtual clients on the pool: the workers work out the same images as one process does."""

from pathlib import Path

from tests.runtime.tiny_run import model_hash, tiny

from fedfew.runs.session import Experiment

VIRTUAL = {"clients": 1000, "participation": 0.003, "partition__kind": "virtual", "partition__per_client": 20}


def test_virtual_clients_have_the_same_images_in_every_process(tmp_path: Path) -> None:
    for kind in ("inline", "pool"):
        Experiment(tiny(**VIRTUAL, fleet__kind=kind, fleet__workers=1, rounds=1)).run(tmp_path / kind)
    assert model_hash(tmp_path / "inline") == model_hash(tmp_path / "pool")
