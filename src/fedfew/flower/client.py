"""The training step of a ClientApp: from a message of the server's `run` to its reply, on the node's own samples.

It sends a model and a few counts, never an image or a label; a failure leaves as a code, its reason stays in the log.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from flwr.app import ArrayRecord, Context, Message
from torch import Tensor, nn

from fedfew.config.parts import sites_of
from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.core.storage import digest
from fedfew.data.clients import ClientsData
from fedfew.data.samples import samples_of
from fedfew.deploy.messages.frames import LIMIT, Arrays, hash_of
from fedfew.deploy.messages.heads import SITE_LIMIT, parse_head
from fedfew.deploy.messages.records import from_content, to_content
from fedfew.deploy.site.answers import Ready, guarded, packed, run_name, train_jobs
from fedfew.deploy.site.build import checked_config
from fedfew.deploy.site.files import KEPT_ROUNDS, PrivacyBudget, given_once
from fedfew.deploy.versions import check_versions

PARTITION = "partition-id"
"""Key of a node's configuration with the number of its client; without one the server numbers the nodes."""


def train(
    message: Message,
    context: Context,
    model: nn.Module,
    samples: Any,
    *,
    allow_code: Sequence[str] = (),
    state: str | Path = "",
    max_epsilon: float = 0.0,
    delta: float = 1e-5,
    unit: Literal["site", "image"] = "site",
) -> Message:
    """The reply to a message of the server's `run`: ``model`` trained on ``samples``, which need no labels.

    ``samples`` are images, uint8 N×C×H×W as the server's are. ``allow_code`` lists names of your
    own code (``package.module:Name``) that the server's settings may use here; no other code is imported.

    A run with ``privacy.noise`` needs ``state``, a folder of this node's that lasts: for the noisy answer, which a
    message that comes again gets again, and for ``privacy.json``, the account of all answers. Beyond ``max_epsilon`` at
    ``delta`` (0: no limit) the node gives none. ``unit`` is what this ε is of, whatever the server's settings say: all
    images of the node, or the images of one person.
    """  # fmt: skip

    def answer() -> tuple[dict[str, Any], Arrays]:
        text, arrays = from_content(message.content, LIMIT)
        head = parse_head(text, SITE_LIMIT)
        number = context.node_config.get(PARTITION)
        if head.get("kind") != "train":
            return {"site": int(number) if number is not None else None}, {}
        data = torch.as_tensor(samples)
        ready = _ready(head, model, data, allow_code)
        make = partial(train_jobs, ready, head, arrays, partial(ContextMemory, context))
        if ready.noise or max_epsilon:
            if not state:
                why = "noisy answers and their account need a folder that lasts: pass state= to fedfew.flower.train"
                raise FedfewError("E417", "limits", why)
            Path(state).mkdir(parents=True, exist_ok=True)
            budget = PrivacyBudget(Path(state) / "privacy.json", max_epsilon, delta, unit)
            make = partial(make, partial(budget.charge, ready.privacy))
            asked = f"{hash_of(head, arrays)}/{digest(data.numpy().tobytes())}"
            answers, sent = packed(given_once(Path(state), asked, make))
        else:
            answers, sent = packed(make())
        return {"run": run_name(head), "round": int(head["round"]), "answers": answers}, sent

    reply, sent = guarded(answer)
    return Message(to_content(json.dumps(reply), sent), reply_to=message)


def _ready(head: Mapping[str, Any], model: nn.Module, data: Tensor, allow_code: Sequence[str]) -> Ready:
    """This node as a site: one client, under the number that the server knows it by."""
    check_versions(head["versions"])
    config, about = checked_config({**head["config"], "model": {}}, allow_code), head["about"]
    if config.privacy.sums == "secure":  # this node could not tell other nodes from the server
        why = "nodes of a Flower project have no keys of a network, which secure sums need"
        raise FedfewError("E417", "config", why, 'The server must set privacy.sums = "open"')
    samples = samples_of(data, about["samples"])
    if (ours := samples.about()["shape"]) != (theirs := about["samples"]["shape"]):
        raise FedfewError("E417", "data", f"samples are {tuple(ours)} here, the server's {tuple(theirs)}")
    (client,) = (int(job["client"]) for job in head["jobs"])
    federation = ClientsData.of_site(client, samples, int(about["classes"]))
    network = Network.of(model, config.engine, samples)
    return Ready(sites_of(config, federation, network), lambda number: number == client, config.privacy)


@dataclass(frozen=True)
class ContextMemory:
    """One client's memory in one run, in the state that Flower keeps for a node."""

    context: Context
    run: str
    client: int

    @property
    def _prefix(self) -> str:
        return f"fedfew-{self.run}-{self.client}-"

    def _rounds(self) -> list[int]:
        """The rounds after which it is kept, the newest first."""
        keys = [key for key in self.context.state if key.startswith(self._prefix)]
        return sorted((int(key.removeprefix(self._prefix)) for key in keys), reverse=True)

    def before(self, round: int) -> dict[str, Tensor]:
        """The memory as it was when ``round`` began."""
        newest = next((written for written in self._rounds() if written < round), None)
        record = self.context.state.get(f"{self._prefix}{newest}")
        if not isinstance(record, ArrayRecord):
            return {}
        return {name: torch.from_numpy(array.numpy().copy()) for name, array in record.items()}

    def write(self, round: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep the memory after ``round``, and drop that of later rounds, which were undone, and of other runs."""
        earlier = [written for written in self._rounds() if written < round]
        kept = {f"{self._prefix}{written}" for written in earlier[: KEPT_ROUNDS - 1]}
        for key in [key for key in self.context.state if key.startswith("fedfew-") and key not in kept]:
            del self.context.state[key]
        if tensors:
            self.context.state[f"{self._prefix}{round}"] = ArrayRecord({name: t.cpu() for name, t in tensors.items()})
