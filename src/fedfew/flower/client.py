"""The training step of a ClientApp: from a message of `FewLabels` to its reply, on the client's own images.

It sends a model and a few counts, never an image or a label; a failure leaves as a code, its reason stays in the log.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from torch import Tensor, nn

from fedfew.config.tree import Config
from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.core.samples import LabeledSet, Samples
from fedfew.core.types import ClientUpdate
from fedfew.data.samples import samples_of
from fedfew.data.shares import Partition
from fedfew.deploy.messages.frames import LIMIT
from fedfew.deploy.messages.heads import SITE_LIMIT, parse_head
from fedfew.deploy.messages.records import from_content, to_content
from fedfew.deploy.messages.tensors import pack, unpack
from fedfew.deploy.site.build import check_versions, checked_config
from fedfew.deploy.site.payload import check_payload
from fedfew.deploy.site.warm_site import RefusedError, fault_code
from fedfew.runtime.site import Sites

MEMORY = "fedfew-memory"
"""Key of Flower's Context under which a client stores its method's memory between rounds."""
_log = logging.getLogger(__name__)


def train(
    message: Message, context: Context, model: nn.Module, images: Any, *, allow_code: Sequence[str] = ()
) -> Message:
    """The reply to a message of `FewLabels`: ``model`` trained on ``images``, which need no labels.

    ``images`` are uint8 N×C×H×W (or features N×V×d) as the server's are. ``allow_code`` lists names of your own code
    (``package.module:Name``) that the server's settings may use here; no other code is imported.
    """
    try:
        text, parts = from_content(message.content, LIMIT, SITE_LIMIT)
        head = parse_head(text, SITE_LIMIT)
        reply, tensors = _trained(head, parts, context, model, torch.as_tensor(images), allow_code)
    except FedfewError as fault:
        _log.error("a message is refused: %s", fault)
        reply, tensors = {"code": fault_code(fault)}, {}
    except Exception:  # its text must not leave
        _log.exception("a message could not be answered")
        reply, tensors = {"code": "E408"}, {}
    return Message(to_content(reply, tensors), reply_to=message)


def _trained(
    head: Mapping[str, Any], parts: Mapping[str, bytes], context: Context, model: nn.Module, images: Tensor,
    allow_code: Sequence[str],
) -> tuple[dict[str, Any], dict[str, memoryview]]:  # fmt: skip
    check_versions(head["versions"])
    config = checked_config(head["config"], allow_code)
    about, client, round = head["about"], int(head["client"]), int(head["round"])
    samples = samples_of(images, about["samples"])
    if (ours := samples.about()["shape"]) != (theirs := about["samples"]["shape"]):
        raise RefusedError("data", "images", f"are {tuple(ours)}, the server's {tuple(theirs)}")
    sites = _sites(config, int(about["classes"]), client, model, samples)
    layout, payload = sites.network.layout, unpack(head["tensors"], parts)
    check_payload(payload, sites.algorithm.reply_schema(layout), layout)
    if remembered := _recall(context, str(head["run"])):
        sites.memory[client] = remembered
    update = sites.train(round, client, payload)
    if not isinstance(update, ClientUpdate):
        _log.error("%s %s", update.code, update.reason)
        return {"code": "E408"}, {}
    _remember(context, str(head["run"]), sites.memory.get(client, {}))
    index, tensors = pack({"reply": dict(update.reply)})
    # how many pseudo-labels each class has would reveal the site's class mix
    metrics = {name: value for name, value in update.metrics.items() if not name.startswith("class/")}
    answer = {"client": client, "examples": update.examples, "metrics": metrics, "tensors": index["reply"]}
    return {"run": head["run"], "round": round, "answers": [answer]}, tensors


def _sites(config: Config, classes: int, client: int, model: nn.Module, samples: Samples) -> Sites:
    """One client, under the number that the server knows it by."""
    network = Network.of(model, config.engine, samples)
    nothing = LabeledSet(samples.like(samples.data[:0]), torch.empty(0, dtype=torch.int64))
    return Sites(
        algorithm=config.method,
        transforms=config.transforms,
        network=network,
        samples=samples.to(network.device),
        truth=torch.full((len(samples),), -1),
        shares=Partition(np.arange(len(samples)), np.array([0] * (client + 1) + [len(samples)])),
        classes=classes,
        seed=config.seed,
        own_view=config.client.own,
        test=nothing,
        validation=nothing,
    )


def _recall(context: Context, run: str) -> dict[str, Tensor]:
    """The memory of the client's method in this run."""
    kept = context.state.get(MEMORY), context.state.get(f"{MEMORY}-run")
    match kept:
        case (ArrayRecord() as arrays, ConfigRecord() as about) if about.get("run") == run:
            return {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
    return {}


def _remember(context: Context, run: str, memory: Mapping[str, Tensor]) -> None:
    context.state[MEMORY] = ArrayRecord({name: tensor.cpu() for name, tensor in memory.items()})
    context.state[f"{MEMORY}-run"] = ConfigRecord({"run": run})
