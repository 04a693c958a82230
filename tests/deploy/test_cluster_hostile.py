"""A real cluster with one hostile site: whatever its app sends, the run goes on, and no process of the server grows."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from tests.deploy.cluster import Cluster, cluster, descendants

from fedfew.runs.alarms import alarms
from fedfew.runtime.record import left_out

pytestmark = pytest.mark.slow

HOSTILE = """
import json, os, sys
if "flwr-clientapp" in sys.argv[0] or "clientapp" in " ".join(sys.argv):
    os.environ["FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE"] = "1000000"
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
    from fedfew.deploy.messages import records
    to_content = records.to_content

    def honest(head, parts):
        return to_content(json.dumps(head), parts)

    def plain(record, parts=()):
        return RecordDict({"head": ConfigRecord(record), "parts": ArrayRecord(dict(parts))})

    def hostile(text, parts):
        head = json.loads(text)
        answers = head.get("answers", [])
        small = {"json": json.dumps(head), "names": ["0"], "sizes": [1], "small": b"x"}
        match head.get("round", 0):
            case 1:
                return honest(head, dict(parts) | {"more": os.urandom(200 << 20)})
            case 2:
                return honest(head, dict(parts) | {"more": bytes(300 << 20)})  # one chunk, three hundred times
            case 3:
                return plain(small | {"small": "text"})
            case 4:
                return plain(small | {"names": ["a"] * 9000, "sizes": [5000, -4999] * 4500, "small": bytes(4500)})
            case 5:
                return honest(head | {"k" * 1_000_000: 1}, parts)
            case 6:
                words = "\\x1b[2J\\x1b[31m" + "w" * 5000
                return honest(head | {"answers": [{"client": 1, "code": words}]}, parts)
            case 7:
                answers[0]["metrics"] = {"kept": 1e15, "steps": -1e15}
            case 8:
                answers[0]["metrics"] = {"kept": 3.0, "class/0": 1.0, "class/1": 1.0, "class/2": 1.0}
            case 9:
                answers[0]["metrics"] = {f"m{i}": 1.0 for i in range(9000)}
            case 10:
                answers[0]["examples"] = 10_000_000
        return honest(head, parts)

    records.to_content = hostile
"""
CODES = {2: "E405", 3: "E405", 4: "E401", 5: "E401", 6: "E405", 7: "E408", 8: "E404", 10: "E405", 11: "E407"}


class Peaks:
    """The largest memory of each process below one, by its command's name."""

    def __init__(self, pid: int) -> None:
        self.pid, self.found, self._end = pid, dict[str, int](), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(0.05):
            for pid in [self.pid, *descendants(self.pid)]:
                try:
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                    status = Path(f"/proc/{pid}/status").read_text()
                    size = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
                except (OSError, StopIteration):
                    continue
                words = [word.decode(errors="replace").rpartition("/")[2] for word in command if word]
                name = next((w for w in words if w.startswith(("flower-", "flwr-"))), " ".join(words[1:3]))
                self.found[name] = max(self.found.get(name, 0), size >> 10)

    def close(self) -> None:
        self._end.set()
        self._thread.join()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, dict[str, int], dict[str, int]]]:
    """A run of which site b spoils eleven rounds; with the server's memory after the first, and at the end."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "hook").mkdir()
    (folder / "hook" / "sitecustomize.py").write_text(HOSTILE)
    with cluster(folder, {"rounds": 12, "method.threshold": 0.0, "fleet.timeout": 25.0}) as found:
        server = found.server()
        found.site("a")
        places = os.pathsep.join(filter(None, [str(folder / "hook"), os.environ.get("PYTHONPATH", "")]))
        found.site("b", environment={"PYTHONPATH": places})
        peaks = Peaks(server.pid)
        try:
            assert found.round_done(1, 200), found.words()
            before = dict(peaks.found)
            assert server.wait(500) == 0, found.words()
            sleep(0.1)
        finally:
            peaks.close()
        yield found, before, peaks.found


Played = tuple[Cluster, dict[str, int], dict[str, int]]


def test_each_spoiled_reply_costs_its_round_and_no_more(played: Played) -> None:
    network, _, _ = played
    records = network.rounds()
    assert len(records) == 12 and not any(record["skipped"] for record in records)
    codes: dict[int, Any] = {r["round"]: [fault["code"] for fault in left_out(r)] for r in records}
    assert codes == {number: [CODES[number]] if number in CODES else [] for number in range(1, 13)}
    assert max(len(line) for line in (network.run / "rounds.jsonl").read_text().splitlines()) < 5_000
    assert all(fault["reason"].isprintable() for record in records for fault in left_out(record))
    assert "\x1b[2J" not in network.started[0].errors()


def test_no_record_breaks_a_reader(played: Played) -> None:
    records: Any = played[0].rounds()
    assert {len(record["pseudo_classes"]) for record in records} <= {0, 10}
    assert all(record["coverage"] is None or 0 <= record["coverage"] <= 1 for record in records)
    alarms(records)
    assert json.loads((played[0].run / "summary.json").read_text())


def test_no_process_of_the_server_grows_by_64_mb(played: Played) -> None:
    _, before, after = played
    grown = {name: after[name] - size for name, size in before.items()}
    assert max(grown.values()) < 64, (before, grown)
