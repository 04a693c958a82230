"""The plain PyTorch clients under Flower's simulation engine: a ClientApp on Ray actors, one core each."""

import os
import random
import tempfile
from functools import lru_cache
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch
from benchmarks.performance.peer_torch import Setup, StateDict, average, setup, train_client
from benchmarks.performance.workloads import Opened, open_workload
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Turn off the telemetry of Flower and Ray."""

client_app = ClientApp()


@lru_cache(maxsize=1)
def _loaded(folder: str) -> Setup:
    """Load model and images, once in each actor."""
    random.seed(os.getpid())
    torch.manual_seed(os.getpid())
    return setup(open_workload(Path(folder)))[0]


def state_dict(message: Message, name: str) -> StateDict:
    """A record of arrays as PyTorch's tensors."""
    record: Any = message.content[name]
    return dict(record.to_torch_state_dict())


@client_app.train()  # type: ignore[untyped-decorator, unused-ignore]
def train(message: Message, context: Context) -> Message:
    """One client's round: the same function as without Flower."""
    order: Any = message.content["order"]
    made = _loaded(str(order["folder"]))
    omega, sigma = (state_dict(message, name) for name in ("omega", "sigma"))
    psi, coverage = train_client(made, int(order["client"]), omega, sigma)
    metrics = MetricRecord({"coverage": coverage, "threads": torch.get_num_threads()})
    return Message(RecordDict({"psi": ArrayRecord(psi), "metrics": metrics}), reply_to=message)


def contest(opened: Opened, folder: Path, rounds: int, actors: int) -> dict[str, Any]:
    """Warm up, then time rounds: send to all clients, receive, average."""
    os.environ |= QUIET
    from flwr.simulation import run_simulation

    made, omega, sigma = setup(opened)
    result: dict[str, Any] = {}
    server_app = ServerApp()

    def exchange(grid: Grid, nodes: list[int], clients: list[int]) -> list[Message]:
        messages = []
        for node, client in zip(nodes, clients, strict=False):
            order = ConfigRecord({"client": client, "folder": str(folder)})
            content: dict[str, Any] = {"order": order, "omega": ArrayRecord(omega), "sigma": ArrayRecord(sigma)}
            messages.append(Message(RecordDict(content), dst_node_id=node, message_type="train"))
        replies = list(grid.send_and_receive(messages))
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
        return replies

    @server_app.main()  # type: ignore[untyped-decorator, unused-ignore]
    def main(grid: Grid, context: Context) -> None:
        while len(nodes := list(grid.get_node_ids())) < opened.workload.clients:
            sleep(0.05)
        exchange(grid, nodes, opened.warm)
        result["ready"] = perf_counter()
        seconds: list[float] = []
        metrics: list[Any] = []
        for _ in range(rounds):
            start = perf_counter()
            replies = exchange(grid, nodes, opened.timed)
            psis: list[StateDict] = [state_dict(reply, "psi") for reply in replies]
            average(psis, omega, sigma, made.method)
            seconds.append(perf_counter() - start)
            metrics += [reply.content["metrics"] for reply in replies]
        result["rounds"] = seconds
        result["coverage"] = float(np.mean([float(m["coverage"]) for m in metrics]))
        result["threads"] = int(metrics[0]["threads"])

    with tempfile.TemporaryDirectory(prefix="ray-") as sockets:  # whose paths must be short
        arguments: dict[str, Any] = {"num_cpus": actors, "_temp_dir": sockets, "object_store_memory": 512 * 2**20}
        run_simulation(
            server_app,
            client_app,
            num_supernodes=opened.workload.clients,
            backend_config={"init_args": arguments, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
    if "rounds" not in result:
        raise RuntimeError("Flower's simulation ended without a round")
    return result
