"""A site's ledger: what came in and what left, in a chain that shows every change."""

import contextlib
import hashlib
import io
import json
import multiprocessing
import socket
import threading
from pathlib import Path

import pytest

from fedfew.core.errors import FedfewError
from fedfew.deploy.messages.frames import encode, receive, send
from fedfew.deploy.site.ledger import Ledger, verify
from fedfew.deploy.site.limits import SiteTerms
from fedfew.deploy.site.warm_site import WarmSite, serve
from fedfew.interface.cli import app


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def test_a_chain_can_be_checked_by_hand(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append([{"decision": "one"}, {"decision": "two"}])
    ledger.append([{"decision": "three"}])
    chain = ""
    for line in lines(tmp_path):
        sealed = line.pop("chain")
        chain = hashlib.sha256(f"{chain}\n{json.dumps(line)}".encode()).hexdigest()
        assert sealed == chain
    summary = verify(tmp_path, noted=chain[:10])
    assert (summary.lines, summary.chain, len(summary.decisions)) == (3, chain, 3)


@pytest.mark.parametrize("number", [0, 5, 9])
@pytest.mark.parametrize("change", ["edit", "drop", "swap", "add"])
def test_every_change_is_found(tmp_path: Path, number: int, change: str) -> None:
    Ledger(tmp_path).append([{"decision": f"number {n}"} for n in range(11)])
    path, noted = tmp_path / "ledger.jsonl", verify(tmp_path).chain
    text = path.read_bytes().splitlines(keepends=True)
    if change == "edit":
        text[number] = text[number].replace(f"number {number}".encode(), b"number 77")
    elif change == "drop":
        del text[number]
    elif change == "swap":
        text[number], text[number + 1] = text[number + 1], text[number]
    else:
        text.insert(number, b'{"time": "", "decision": "new", "chain": ""}\n')
    path.write_bytes(b"".join(text))
    with pytest.raises(FedfewError, match=f"E513.*jsonl:{number + 1}"):
        verify(tmp_path)
    path.write_bytes(b"".join(text[:0]))  # what only a noted hash can show
    assert verify(tmp_path).lines == 0
    with pytest.raises(FedfewError, match="E513"):
        verify(tmp_path, noted)


@pytest.mark.parametrize(
    "line", [{}, {"decision": 1}, {"time": "", "tensor": "x", "shape": 3}, {"time": "", "message": [], "bytes": "x"}]
)
def test_a_chain_of_lines_that_no_site_writes_is_refused(tmp_path: Path, line: dict[str, object]) -> None:
    """A site writes its own chain, and whoever makes the dossier reads it."""
    sealed = hashlib.sha256(f"\n{json.dumps(line)}".encode()).hexdigest()
    for text in (json.dumps(line | {"chain": sealed}), "[" * 10**5, "3", '"x"'):
        (tmp_path / "ledger.jsonl").write_text(f"{text}\n")
        with pytest.raises(FedfewError, match="E513"):
            verify(tmp_path)


def test_a_line_cut_off_by_a_crash_is_removed_and_the_chain_goes_on(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append([{"decision": "x" * 9_000}, {"decision": "second"}])
    with (tmp_path / "ledger.jsonl").open("ab") as file:
        file.write(b'{"time": "2026')
    ledger.append([{"decision": "y" * 20_000}])
    ledger.append([{"decision": "last"}])
    assert [line["decision"] for line in verify(tmp_path).decisions][1::2] == ["second", "last"]


def write(folder: Path, name: str) -> None:
    for number in range(50):
        Ledger(folder).append([{"decision": f"{name} {number}"}])


def test_two_processes_write_one_chain(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write, args=(tmp_path, name)) for name in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert verify(tmp_path).lines == 100


def test_a_site_records_what_came_in_and_a_bare_code_with_its_run_and_round(tmp_path: Path) -> None:
    """On the real socket: a message that cannot be built is answered with a code, and both are in the ledger."""

    def build(head: object) -> object:
        raise ValueError("a bug")

    site = WarmSite(0, build, tmp_path, tmp_path / "memory", terms=SiteTerms(keep_content=True))  # type: ignore[arg-type]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "site"))
    listener.listen(1)
    threading.Thread(target=serve, args=(site, listener), daemon=True).start()
    head = {"kind": "train", "run": "abc", "round": 4, "jobs": [{"client": 0}], "config": {}, "about": {}}
    for text in (json.dumps(head), "no JSON"):
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(str(tmp_path / "site"))
            send(end, encode(text, {"0": b"1234"}))
            assert json.loads(receive(end)[0]) == {"code": "E408"}
    came, left, odd, answer = lines(tmp_path)
    frame = b"".join(encode(json.dumps(head), {"0": b"1234"}))
    assert (came["run"], came["round"], came["received"], came["tensors"]) == ("abc", 5, "train", 1)
    assert (came["bytes"], came["sha256"]) == (len(frame), hashlib.sha256(frame).hexdigest())
    assert (left["run"], left["round"], left["message"]) == ("abc", 5, {"code": "E408"})
    assert "run" not in odd and answer["message"] == {"code": "E408"}
    assert (tmp_path / "content" / str(came["sha256"])).read_bytes() == frame
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        app(["ledger", "verify", str(tmp_path), "--json"], standalone_mode=False)
    told = json.loads(out.getvalue())
    assert told["lines"] == 4 and told["runs"]["abc"]["codes"] == {"E408": 1} and told["runs"]["abc"]["received"] == 1
    (tmp_path / "content" / str(came["sha256"])).write_bytes(frame[:-1] + b"5")
    with pytest.raises(FedfewError, match=r"E513.*line 1"):
        verify(tmp_path)
