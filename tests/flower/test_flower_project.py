"""`fedfew.flower` in a Flower project of one's own: `run` in the ServerApp, `train` in the ClientApp."""

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from tests.deploy.cluster import eventually
from tests.flower.project import DirectGrid, grid, net

from fedfew.core.errors import FedfewError
from fedfew.deploy.processes import flower_environment, free_ports
from fedfew.flower import run, train
from fedfew.runs.model_file import load_model
from fedfew.runs.run import Run
from fedfew.runtime.record import left_out

APP = Path(__file__).parents[2] / "examples" / "flower_app"
PROJECT: dict[str, Any] = {
    "model.name": "tests.flower.project:net", "dataset.name": "tests.flower.project:rows", "dataset.validation": 0,
    "participation": 1.0, "rounds": 4, "server.lr": 0.05, "client.lr": 0.02, "client.batch": 8, "server.batch": 8,
    "fleet.timeout": 2.0, "fleet.wait": 2.0,
}  # fmt: skip


def play(over: DirectGrid, out: Path, method: str = "fedavg", **settings: Any) -> Run:
    chosen = {"method.name": method, "clients": len(over.nodes)}
    return run(over, out, PROJECT | chosen | {key.replace("__", "."): value for key, value in settings.items()})


@pytest.mark.parametrize("method", ["fedavg", "fedmix", "fedmatch", "scaffold", "semifl", "fedfew", "server-only"])
def test_a_method_runs_on_the_nodes_and_leaves_a_run_folder(method: str, tmp_path: Path) -> None:
    done = play(grid(), tmp_path / "run", method)
    assert done.finished and done.curve()[-1] > 0.5
    used = [len(record["cohort"]) - len(left_out(record)) for record in done.records]
    assert used == ([0] * 4 if method == "server-only" else [3] * 4)
    network, about = load_model(tmp_path / "run", allow_code=["tests.flower.project:net"])
    assert about["classes"] == ["top", "middle", "bottom"] and bool(torch.isfinite(network.vector).all())


def test_a_share_of_the_nodes_is_drawn_from_the_seed(tmp_path: Path) -> None:
    cohorts = [[r["cohort"] for r in play(grid(6), tmp_path / name, participation=0.5).records] for name in "ab"]
    assert cohorts[0] == cohorts[1] and all(len(cohort) == 3 for cohort in cohorts[0])
    assert len({k for cohort in cohorts[0] for k in cohort}) > 3


def test_a_node_that_fails_or_lies_costs_its_own_update(tmp_path: Path) -> None:
    over = grid(4)

    def spoil(node: int, reply: Message) -> Message | None:
        if node == 7_000:
            return None
        if node == 7_001:
            reply.__dict__.update(_content=None, _error=Error(2, "out of memory"))
        if node == 7_002:
            reply.content = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord({"x": 1})})
        return reply

    over.spoil = spoil
    done = play(over, tmp_path / "run", rounds=2)
    codes = [[fault["code"] for fault in left_out(record)] for record in done.records]
    assert codes == [["E410", "E408", "E401"]] * 2


def test_a_run_that_dies_is_continued_with_the_same_result(tmp_path: Path) -> None:
    """The clients' memories are those of before the round, whatever was tried since."""
    memory: dict[str, Any] = {"method": "scaffold", "method__population": 2, "objective__threshold": 0.05}
    whole = play(grid(2), tmp_path / "whole", **memory).summary["model_sha256"]
    over = grid(2)
    for fails_at in (5, 9, 99):

        def spoil(node: int, reply: Message, fails_at: int = fails_at) -> Message:
            if len(over.pushed) == fails_at:
                raise ConnectionError("the SuperLink has gone")
            return reply

        over.spoil = spoil
        with contextlib.suppress(ConnectionError):
            play(over, tmp_path / "run", **memory)
    assert Run.open(tmp_path / "run").summary["model_sha256"] == whole
    kept = [key for key in over.contexts[7_000].state if key.startswith("fedfew-")]
    assert len(kept) == 3 and list(over.contexts[7_000].state[kept[0]]) == ["control"]


def test_other_settings_and_finished_runs_are_refused(tmp_path: Path) -> None:
    over = grid(2)
    over.spoil = lambda node, reply: over.undefined  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        play(over, tmp_path / "run")
    with pytest.raises(FedfewError, match=r"server\.lr is 0\.1 here, but 0\.05 in the run"):
        play(grid(2), tmp_path / "run", server__lr=0.1)
    play(grid(2), tmp_path / "run")
    with pytest.raises(FedfewError, match="E301"):
        play(grid(2), tmp_path / "run")


def test_a_node_that_has_a_partition_keeps_its_number(tmp_path: Path) -> None:
    over = grid(3)
    for node, number in ((7_000, 2), (7_001, 0)):
        over.contexts[node].node_config["partition-id"] = number
    asked: dict[int, set[int]] = {}

    def spoil(node: int, reply: Message) -> Message:
        head = json.loads(str(dict(reply.content["head"])["json"]))
        asked.setdefault(node, set()).update(answer["client"] for answer in head["answers"])
        return reply

    over.spoil = spoil
    play(over, tmp_path / "run", rounds=2)
    assert asked == {7_000: {2}, 7_001: {0}, 7_002: {1}}


def test_reasons_and_class_counts_stay_at_the_client(tmp_path: Path) -> None:
    said = []
    over = grid(2)
    over.spoil = lambda node, reply: said.append(str(dict(reply.content["head"])["json"])) or reply  # type: ignore[func-returns-value]
    play(over, tmp_path / "run", objective__threshold=0.0)
    metrics = json.loads(said[0])["answers"][0]["metrics"]
    assert "coverage" in metrics and not any(name.startswith("class/") or name == "right" for name in metrics)


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"objective__name": "tests.config.own_parts:Sharpen"}, "code that the run uses"), ({}, "images do not fit")],
)
def test_what_a_client_refuses_ends_the_run_with_the_reason(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    over = grid(2) if settings else DirectGrid({k: torch.zeros(4, 3, 8, 8, dtype=torch.uint8) for k in (1, 2)})
    with pytest.raises(FedfewError, match="all 2 clients failed in the same way") as caught:
        play(over, tmp_path / "run", **settings)
    assert said in str(caught.value)


def test_a_node_keeps_noisy_answers_and_their_account_or_gives_none(tmp_path: Path) -> None:
    noisy: dict[str, Any] = {"privacy__clip": 1.0, "privacy__noise": 50.0, "rounds": 1}
    with pytest.raises(FedfewError, match="more than the site allows"):
        play(grid(2), tmp_path / "without", **noisy)
    over, said = grid(1), list[dict[str, Any]]()

    def answer(message: Message, most: float) -> Message:
        node = over.contexts[7_000]
        return train(message, node, net(), over.nodes[7_000], state=tmp_path / "node", max_epsilon=most)

    def twice(node: int, message: Message) -> Message:
        replies = [answer(message, most) for most in (5.0, 0.01)]  # the second is not charged, as it is the first
        said.extend(dict(reply.content["arrays"]) for reply in replies)
        return replies[0]

    over._deliver = twice  # type: ignore[method-assign]
    assert play(over, tmp_path / "run", **noisy).finished
    first, second = (arrays for arrays in said if arrays)
    assert first == second
    account = json.loads((tmp_path / "node" / "privacy.json").read_text())
    assert account["updates"] == [{"noise": 50.0, "unit": "site", "group": 1, "count": 1}]


@pytest.mark.parametrize("method", ["pooled", "all-labels"])
def test_bounds_of_a_simulation_are_refused(method: str, tmp_path: Path) -> None:
    with pytest.raises(FedfewError, match="E113"):
        play(grid(2), tmp_path / "run", method)


@pytest.fixture
def superlink(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A SuperLink with two SuperNodes that runs already, as anybody's would: no part of fedfew started it."""
    port, *nodes = free_ports(3)
    home = tmp_path / "flower"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    source = f"{Path(__file__).parents[2] / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = flower_environment(home, PYTHONPATH=source, OMP_NUM_THREADS="1")
    started = []

    def start(name: str, *command: str) -> None:
        log = (tmp_path / f"{name}.log").open("wb")
        started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))

    try:
        link = ("flower-superlink", "--host", "127.0.0.1", "--port", str(port), "--insecure")
        start("superlink", *link, "--disable-runtime-dependency-installation")
        assert eventually(lambda: not socket.socket().connect_ex(("127.0.0.1", port)), 90), (
            tmp_path / "superlink.log"
        ).read_text()
        for number, node in enumerate(nodes):
            where = ("--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1", "--port", str(node))
            start(f"node{number}", "flower-supernode", "--insecure", *where, "--node-config", f"partition-id={number}")
        yield "local", environment
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.mark.slow
def test_the_example_joins_a_superlink_that_runs(superlink: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    name, environment = superlink
    out = tmp_path / "run"
    command = ["flwr", "run", str(APP), name, "--run-config", f'rounds=2 out="{out}"', "--format", "json"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert '"success": true' in said.stdout, said.stdout + said.stderr
    done = eventually((out / "summary.json").exists, 240, 0.5)
    logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in tmp_path.glob("*.log"))
    assert done, logs
    assert [record["cohort"] for record in Run.open(out).records] == [[0, 1]] * 2
    assert not any(left_out(record) for record in Run.open(out).records)


def test_the_example_is_short() -> None:
    """What a project changes: its two apps, without blank lines, comments and docstrings."""
    lines = 0
    for name in ("server", "client"):
        text = (APP / "few_labels" / f"{name}.py").read_text().splitlines()
        lines += sum(bool(line.strip()) and not line.strip().startswith(('"""', "#")) for line in text)
        page = (APP.parents[1] / "docs" / "how-to" / "flower-project.md").read_text()
        assert (APP / "few_labels" / f"{name}.py").read_text() in page
    assert lines <= 30
