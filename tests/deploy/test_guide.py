"""The guide for three machines in docs/how-to/deploy.md, its own lines run on this machine in folders of their own."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.deploy.cluster import FEDFEW, Cluster, alive, descendants, eventually
from tests.docs.blocks import Block, blocks_of

from fedfew.deploy.processes import free_ports
from fedfew.runs.run import Run
from fedfew.runtime.record import left_out

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"


def guide() -> list[Block]:
    """The blocks between the headings of the section."""
    text = PAGE.read_text("utf-8")
    first = text[: text.index("\n## Three machines")].count("\n")
    last = text[: text.index("\n## Sites come and go")].count("\n")
    return [block for block in blocks_of(PAGE, PAGE.name) if first < block.line < last]


def lines(block: Block) -> list[list[str]]:
    """Its commands as words, without ``fedfew``."""
    found = [shlex.split(line, comments=True) for line in block.code.splitlines()]
    assert all(words[0] == "fedfew" for words in found)
    return [words[1:] for words in found]


def said(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FEDFEW, *words], cwd=place, capture_output=True, text=True, timeout=900)


def test_the_guide_for_three_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_images, make_network, at_server, at_site, on_one = guide()
    monkeypatch.chdir(tmp_path)
    exec(compile(make_images.code, PAGE.name, "exec"), {"__name__": "guide"})
    port = str(free_ports(1)[0])
    for words in lines(make_network):
        here = ["127.0.0.1" if word == "fed.example.org" else word for word in words]
        done = said(tmp_path, *here, *(["--port", port] if words[0] == "deploy" else []))
        assert done.returncode == 0, done.stderr
    config = tmp_path / "clinic" / "server" / "config.toml"
    for key in ("rounds", "warmup", "epochs"):  # "change what you like"
        config.write_text(re.sub(rf"^{key} = [1-9]\d*$", f"{key} = 2", config.read_text(), flags=re.MULTILINE))

    machines = Cluster(tmp_path, plan=None)  # type: ignore[arg-type]
    examine_server, serve = lines(at_server)
    examine_site, attend = lines(at_site)
    try:
        done = said(tmp_path, *examine_server)
        assert done.returncode == 0 and "FAILED" not in done.stdout, done.stdout
        server = machines.start(*serve)
        assert eventually(lambda: said(tmp_path, *examine_server).stdout.count("the server is running"), 120, 2.0)
        for name in ("north", "south"):
            place = tmp_path / f"machine {name}"
            place.mkdir()
            shutil.move(tmp_path / "clinic" / "bundles" / f"{name}.tar", place)
            shutil.move(tmp_path / f"{name}-images", place)
            monkeypatch.chdir(place)
            if name == "north":
                done = said(place, *examine_site, "--json")
                checks = {
                    check["name"]: check["passed"] for check in json.loads(done.stdout.splitlines()[-1])["checks"]
                }
                assert done.returncode == 0 and checks["key registered"] and all(checks.values()), done.stdout
            machines.start(*(word.replace("north", name) for word in attend))
        assert server.wait(400) == 0, machines.words()
        assert 1 <= server.errors().count("warm-up: ") <= 2, "said when it moves, not at every look"
        below = [pid for one in machines.started for pid in descendants(one.pid)]
    finally:
        for one in reversed(machines.started):
            one.end()
    assert below and not alive(below)
    run = Run.open(tmp_path / "clinic" / "server" / "run")
    assert [record["cohort"] for record in run.rounds] == [[0, 1]] * 2
    assert not any(left_out(record) for record in run.rounds)
    assert [words[1] for words in lines(on_one)] == ["init", "server", "client", "client"]
