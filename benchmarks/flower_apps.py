"""Apps for comparison: two ClientApps (one answers at once, one loads torch and data each time), and the ServerApp."""

import json
import os
from pathlib import Path
from time import perf_counter
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedfew.deploy.messages.records import from_content, to_content

floor_app = ClientApp()
plain_app = ClientApp()
rounds_app = ServerApp()
DATA, PLAN = "FEDFEW_BENCHMARK_DATA", "FEDFEW_BENCHMARK_PLAN"


@rounds_app.main()
def rounds(grid: Grid, context: Context) -> None:
    """Send a model to every site and receive it again, as often as the plan says; write the seconds of each round."""
    import torch

    from fedfew.config.tree import FleetSettings
    from fedfew.core.types import ClientUpdate
    from fedfew.deploy.plan import open_server
    from fedfew.deploy.server.fleet import GridFleet
    from fedfew.deploy.server.members import Membership

    plan = json.loads(os.environ[PLAN])
    server = open_server(Path(plan["network"]))
    count, size = len(server.sites), plan["megabytes"] * 1_000_000 // 4
    members, description = (
        Membership(server.sites, count, server.numbers_of_keys()),
        {"run": "bench", "config": {}, "about": {}},
    )
    unscored: Any = None  # no model is scored
    fleet = GridFleet(grid, members, description, FleetSettings(timeout=600.0), unscored, 8 * size)
    fleet.online()
    seconds: list[float | str] = []
    for t in range(plan["rounds"] + 1):
        omega = torch.randn(size, generator=torch.Generator().manual_seed(t))
        start = perf_counter()
        answers = list(fleet.train(t, {k: {"omega": omega} for k in range(count)}))
        seconds.append(perf_counter() - start)
        wrong = [a for a in answers if not isinstance(a, ClientUpdate) or not torch.equal(a.reply["psi"], omega)]
        if wrong or len(answers) != count:
            seconds = [f"round {t} went wrong: {wrong[:1]}"]
            break
    Path(plan["out"]).with_suffix(".tmp").write_text(json.dumps(seconds))
    Path(plan["out"]).with_suffix(".tmp").replace(plan["out"])


@floor_app.train()
def floor(message: Message, context: Context) -> Message:
    """Return the message's content: Flower's own cost, and nothing else."""
    text, parts = from_content(message.content, 1 << 40)
    return Message(to_content(_answer(text), {"0": parts["0"]}), reply_to=message)


@plain_app.train()
def plain(message: Message, context: Context) -> Message:
    """Import torch, load the site's images, make a tensor of the model and return it; no training."""
    import numpy as np
    import torch

    with np.load(os.environ[DATA]) as arrays:
        images = torch.from_numpy(arrays["images"])
    text, parts = from_content(message.content, 1 << 40)
    vector = torch.frombuffer(bytearray(parts["0"]), dtype=torch.float32)
    vector = vector + 0.0 * float(images[0].float().mean())
    return Message(to_content(_answer(text), {"0": vector.numpy().tobytes()}), reply_to=message)


def _answer(text: str) -> str:
    """The head of a reply with ψ = ω for the one client that was asked."""
    head = json.loads(text)
    (job,) = head["jobs"]
    tensors = {"psi": job["tensors"]["omega"]}
    answer = {"client": job["client"], "examples": 1, "metrics": {}, "tensors": tensors}
    return json.dumps({"run": head["run"], "round": head["round"], "answers": [answer]})
