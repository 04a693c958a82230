"""`fedfew.flower` in a Flower project of one's own: the Strategy in Flower's loop, `train` in the ClientApp."""

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore.task_identity import TaskIdentity
from tests.deploy.cluster import eventually
from torch import nn

from fedfew.core.errors import FedfewError
from fedfew.core.samples import LabeledSet
from fedfew.data.samples import Images
from fedfew.deploy.processes import flower_environment, free_ports
from fedfew.deploy.server.superlink import answers
from fedfew.flower import FewLabels, train

APP = Path(__file__).parents[2] / "examples" / "flower_app"
SETTINGS: dict[str, Any] = {"server.lr": 0.05, "client.lr": 0.02, "client.batch": 8, "server.batch": 8}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))


def images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Three classes of bright rows that anything can tell apart."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=rng)
    found = torch.randint(0, 60, (count, 1, 8, 8), generator=rng, dtype=torch.uint8)
    for image, label in zip(found, labels.tolist(), strict=True):
        image[0, 2 * label : 2 * label + 2] += 150
    return found, labels


class DirectGrid(Grid):
    """Hands each message to a ClientApp's training step at once; contexts last, as a SuperNode's do."""

    def __init__(self, nodes: dict[int, torch.Tensor], **options: Any) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.nodes, self.options = nodes, options
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in nodes}
        self.spoil: Callable[[int, Message], Message | None] = lambda node, reply: reply
        self.asked: list[int] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.asked.append(node)
            reply = train(message, self.contexts[node], net(), self.nodes[node], **self.options)
            reply.metadata.__dict__["_src_node_id"] = node
            if (spoiled := self.spoil(node, reply)) is not None:
                replies.append(spoiled)
        return replies

    def set_run(self, run: Any) -> None: ...
    @property
    def run(self) -> Any: ...
    def create_message(self, *args: Any, **options: Any) -> Any: ...
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def grid(clients: int = 3, **options: Any) -> DirectGrid:
    return DirectGrid({7_000 + k: images(24, 10 + k)[0] for k in range(clients)}, **options)


def labeled(count: int, seed: int) -> LabeledSet:
    pixels, labels = images(count, seed)
    return LabeledSet(Images(pixels, flips=False), labels)


def strategy(method: str = "fedavg", **settings: Any) -> FewLabels:
    chosen = SETTINGS | {"method.name": method} | {key.replace("__", "."): value for key, value in settings.items()}
    return FewLabels(net(), labeled(12, 1), 3, chosen)


def run(found: FewLabels, over: DirectGrid, rounds: int = 3) -> Result:
    score = found.scorer(labeled(60, 2))
    return found.start(over, ArrayRecord(net().state_dict()), num_rounds=rounds, evaluate_fn=score)


def accuracies(result: Result) -> list[float]:
    return [float(one["accuracy"]) for one in result.evaluate_metrics_serverapp.values()]  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["fedavg", "fedmix", "fedmatch", "scaffold", "semifl", "fedfew", "server-only"])
def test_a_method_runs_in_flowers_own_loop(method: str) -> None:
    over = grid()
    result = run(strategy(method), over, 4)
    assert accuracies(result)[-1] > accuracies(result)[0]
    assert all(torch.isfinite(t).all() for t in result.arrays.to_torch_state_dict().values())
    used = [int(one["used"]) for one in result.train_metrics_clientapp.values()]  # type: ignore[arg-type]
    assert used == ([0] * 4 if method == "server-only" else [3] * 4)
    fresh = net()
    fresh.load_state_dict(result.arrays.to_torch_state_dict())  # the project's own model takes it as it is


def test_a_share_of_the_nodes_is_drawn_from_the_seed() -> None:
    asked = []
    for _ in range(2):
        over = grid(6)
        found = FewLabels(net(), labeled(12, 1), 3, SETTINGS, fraction_train=0.5, min_train_nodes=1)
        run(found, over)
        asked.append(over.asked)
    assert asked[0] == asked[1] and len(asked[0]) == 9 and len(set(asked[0])) > 3


def test_a_node_that_fails_or_lies_costs_its_own_update() -> None:
    over = grid(4)

    def spoil(node: int, reply: Message) -> Message | None:
        if node == 7_000:
            return None
        if node == 7_001:
            wrong = Message(Error(2, "out of memory"), reply_to=reply)
            wrong.metadata.__dict__["_src_node_id"] = node
            return wrong
        if node == 7_002:
            reply.content = RecordDict({"arrays": ArrayRecord(), "config": ConfigRecord({"x": 1})})
        return reply

    over.spoil = spoil
    result = run(strategy(), over)
    assert [one["used"] for one in result.train_metrics_clientapp.values()] == [1, 1, 1]


def test_a_client_keeps_its_memory_in_flowers_context() -> None:
    over = grid(2)
    run(strategy("scaffold", method__population=2, objective__threshold=0.05), over)
    kept = over.contexts[7_000].state["fedfew-memory"]
    assert isinstance(kept, ArrayRecord) and list(kept) == ["control"]


def test_reasons_and_class_counts_stay_at_the_client() -> None:
    said = []
    over = grid(2)
    over.spoil = lambda node, reply: said.append(str(dict(reply.content["head"])["json"])) or reply  # type: ignore[func-returns-value]
    run(strategy(objective__threshold=0.0), over)
    metrics = json.loads(said[0])["answers"][0]["metrics"]
    assert "coverage" in metrics and not any(name.startswith("class/") or name == "right" for name in metrics)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"objective__name": "tests.config.own_parts:Sharpen"}, "code that the run uses"),
        ({}, "images do not fit"),
    ],
)
def test_what_a_client_refuses_ends_the_run_with_the_reason(settings: dict[str, Any], said: str) -> None:
    over = grid(2) if settings else DirectGrid({k: torch.zeros(4, 3, 8, 8, dtype=torch.uint8) for k in (1, 2)})
    with pytest.raises(FedfewError, match="all 2 clients failed in the same way") as caught:
        run(strategy(**settings), over)
    assert said in str(caught.value)


@pytest.mark.parametrize("method", ["pooled", "all-labels"])
def test_bounds_of_a_simulation_are_refused(method: str) -> None:
    with pytest.raises(FedfewError, match="only a simulation has"):
        strategy(method)


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
        assert eventually(lambda: answers("127.0.0.1", port, None, "/health"), 90), (
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
    out = tmp_path / "model.pt"
    command = ["flwr", "run", str(APP), name, "--run-config", f'rounds=2 out="{out}"', "--format", "json"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert '"success": true' in said.stdout, said.stdout + said.stderr
    done = eventually(out.exists, 240, 0.5)
    logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in tmp_path.glob("*.log"))
    assert done, logs
    weights = torch.load(out, weights_only=True)
    assert weights["5.weight"].shape == (10, 512)


def test_the_example_is_short() -> None:
    """What a project changes: its two apps, without blank lines, comments and docstrings."""
    lines = 0
    for name in ("server", "client"):
        text = (APP / "few_labels" / f"{name}.py").read_text().splitlines()
        lines += sum(bool(line.strip()) and not line.strip().startswith(('"""', "#")) for line in text)
        page = (APP.parents[1] / "docs" / "how-to" / "flower-project.md").read_text()
        assert (APP / "few_labels" / f"{name}.py").read_text() in page
    assert lines <= 30
