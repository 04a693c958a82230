"""What leaves a site, on the wire of a real network: its ledger and Flower's own words, and nothing of its data."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy.cluster import Cluster, cluster, eventually
from tests.deploy.recorder import Recorder

from fedfew.deploy.plan import SERVER, open_bundle
from fedfew.deploy.processes import free_ports

pytestmark = pytest.mark.slow

WARD = "ward-7 HIV study, Dr Meier"
WORDS = ("ward-7", "HIV study", "Meier", "patients", "positive", "negative", "Traceback", ".npz")


@pytest.fixture(scope="module")
def wire(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, bytes, np.ndarray[Any, Any]]]:
    """Three sites behind a relay that reads the wire: one honest, two whose images cannot be used."""
    folder = tmp_path_factory.mktemp("canaries")
    with cluster(folder, {"rounds": 2}, sites=("a", "b", "c")) as found:
        outside, inside = found.plan.port, free_ports(1)[0]
        settings = found.plan.folder / SERVER
        settings.write_text(re.sub(r"(?m)^bind = 0", f"bind = {inside}", settings.read_text()))
        recorder = Recorder.of_server(found.plan, outside, inside)
        with np.load(folder / "a.npz") as arrays:
            shape = arrays["images"].shape
        pixels = np.random.default_rng(3).integers(0, 256, shape, dtype=np.uint8)
        (folder / WARD).mkdir()
        for name, images in (("a", pixels), ("b", pixels[:, :, :20]), ("c", pixels)):
            place = folder / WARD / f"patients-{name}.npz"
            np.savez(place, images=images, labels=np.array(["positive", "negative"] * 20))
            plan = open_bundle(folder / "net" / "bundles" / f"{name}.tar", folder / "sites" / WARD / name)
            assert plan.port == outside
            site = found.start("deploy", "client", str(plan.folder), "--data", str(place))
        assert eventually(lambda: "images of" in site.errors()), found.words()
        place.write_bytes(b"PK\x03\x04 no archive of patients")  # c's file breaks after its client has looked at it
        server = found.server()
        assert server.wait(400) == 0, found.words()
        recorder.close()
        yield found, bytes(recorder.sent), pixels


def test_no_word_of_paths_labels_or_faults_leaves(wire: tuple[Cluster, bytes, np.ndarray[Any, Any]]) -> None:
    network, sent, _ = wire
    assert len(network.rounds()) == 2
    found = [word for word in (*WORDS, str(network.folder)) if word.encode() in sent]
    assert not found
    assert b"E417.data" in sent, "the sites that cannot train say so, by a code"
    logs = "".join(path.read_text() for path in (network.folder / "sites" / WARD).rglob("site-*.log"))
    assert "patients-b.npz" in logs, "and why, in their own logs"


def test_no_pixels_leave(wire: tuple[Cluster, bytes, np.ndarray[Any, Any]]) -> None:
    _, sent, pixels = wire
    content = pixels.tobytes()
    windows = {content[i : i + 12] for i in range(0, len(content) - 12, 14)}
    assert len(windows) > 1000
    assert not any(sent[i : i + 12] in windows for i in range(len(sent) - 12))


def test_the_ledger_has_every_head_and_tensor_that_is_on_the_wire(
    wire: tuple[Cluster, bytes, np.ndarray[Any, Any]],
) -> None:
    network, sent, _ = wire
    on_wire = set(re.findall(rb'\{"run": "[0-9a-f]+", "round": .*?\}\]\}', sent))
    listed: set[bytes] = set()
    tensors = 0
    for path in (network.folder / "sites" / WARD).rglob("ledger.jsonl"):
        lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
        listed |= {json.dumps(line["message"]).encode() for line in lines if "run" in line.get("message", {})}
        tensors += sum(line["bytes"] for line in lines if "tensor" in line)
    assert on_wire == listed and len(listed) == 6
    assert 0 < tensors < len(sent)
