"""ClientApps for comparison: one that answers at once, and one that loads torch and data each time."""

import os
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedfew.deploy.messages.heads import SITE_LIMIT, parse_head
from fedfew.deploy.messages.records import from_content, to_content

floor_app = ClientApp()
plain_app = ClientApp()
DATA = "FEDFEW_BENCHMARK_DATA"


@floor_app.train()
def floor(message: Message, context: Context) -> Message:
    """Return the message's content: Flower's own cost, and nothing else."""
    text, parts = from_content(message.content, 1 << 40, SITE_LIMIT)
    return Message(to_content(_answer(parse_head(text, SITE_LIMIT)), {"0": parts["0"]}), reply_to=message)


@plain_app.train()
def plain(message: Message, context: Context) -> Message:
    """Import torch, load the site's images, make a tensor of the model and return it; no training."""
    import numpy as np
    import torch

    with np.load(os.environ[DATA]) as arrays:
        images = torch.from_numpy(arrays["images"])
    text, parts = from_content(message.content, 1 << 40, SITE_LIMIT)
    vector = torch.frombuffer(bytearray(parts["0"]), dtype=torch.float32)
    vector = vector + 0.0 * float(images[0].float().mean())
    return Message(to_content(_answer(parse_head(text, SITE_LIMIT)), {"0": vector.numpy().tobytes()}), reply_to=message)


def _answer(head: dict[str, Any]) -> dict[str, Any]:
    """The head of a reply with ψ = ω for the one client that was asked."""
    (job,) = head["jobs"]
    tensors = {"psi": job["tensors"]["omega"]}
    answer = {"client": job["client"], "examples": 1, "metrics": {}, "tensors": tensors}
    return {"run": head["run"], "round": head["round"], "answers": [answer]}
