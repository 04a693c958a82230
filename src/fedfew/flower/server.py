"""The Strategy: any method of fedfew inside Flower's own round loop, `strategy.start(grid, …)`.

Flower calls it twice a round. ``configure_train`` trains the server, samples clients and broadcasts;
``aggregate_train`` is gate, screen and aggregation, by the code that every other fleet uses.
"""

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result
from flwr.serverapp.strategy.strategy_utils import sample_nodes
from torch import nn

from fedfew.config.schema import load
from fedfew.config.tree import Config
from fedfew.core.errors import FedfewError
from fedfew.core.evaluation import evaluate
from fedfew.core.layout import Vector
from fedfew.core.network import Network
from fedfew.core.refusals import Refusal
from fedfew.core.samples import LabeledSet
from fedfew.core.streams import stream
from fedfew.core.types import ClientUpdate, Missing, Oracle, Payload, ServerSite, ServerState
from fedfew.deploy.messages.answers import read_answers
from fedfew.deploy.messages.heads import ContentError, head_limit
from fedfew.deploy.messages.records import as_array, from_content, to_content
from fedfew.deploy.messages.tensors import pack
from fedfew.runtime.cohort import cohort_size
from fedfew.runtime.exchange import Clients, ask, draw
from fedfew.runtime.gate import reply_limit
from fedfew.runtime.rounds import close_round, server_turn
from fedfew.runtime.wire import Wire

APP = {"fleet.kind": "flower", "fleet.network": "a Flower app", "dataset.validation": 0}
"""Settings of every config here: the clients are other machines, and fedfew holds nothing out."""

_log = logging.getLogger("flwr")  # among the lines of Flower's own loop


class FewLabels(FedAvg):
    """Trains ``model`` with a few labels at the server and clients that have images only.

    ``labeled`` are the server's samples with their labels, such as ``LabeledSet(Images(images), labels)``.
    ``settings`` are dotted keys of the config, such as ``{"method.name": "fedmix", "server.epochs": 5}``; ``preset`` a
    preset or TOML file to start from. ``options`` are those of Flower's FedAvg, such as ``fraction_train``; clients
    have no labels to evaluate on, so ``fraction_evaluate`` is 0 unless given.
    """

    def __init__(
        self,
        model: nn.Module,
        labeled: LabeledSet,
        classes: int,
        settings: Mapping[str, Any] | None = None,
        *,
        preset: str = "",
        **options: Any,
    ) -> None:
        super().__init__(**({"fraction_evaluate": 0.0} | options))
        self.config: Config = load(preset or {}, APP | {"labels": len(labeled)} | dict(settings or {}))
        self._network = Network.of(model, self.config.engine, labeled.samples)
        self._site = ServerSite(self._network, labeled.to(self._network.device), classes)
        self._run, self._clients = secrets.token_hex(8), dict[int, int]()
        self._build(self.config)

    def _build(self, config: Config) -> None:
        """Build the method of a config, with nothing learned yet."""
        self.config, self._method = config, config.method
        if isinstance(self._method, Oracle) or config.entry.pools:
            what = f"{config.method_name} needs the labels of the clients' images, which only a simulation has"
            raise FedfewError("E113", "method.name", what)
        self._wire = Wire(self._method, config.transforms)
        self._wire.check(self._site)
        self._state: ServerState | None = None
        self._asked: tuple[Clients, ServerState, list[int]] | None = None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Flower's own loop over ``num_rounds``; learning-rate schedules span this many rounds."""
        self._build(load(self.config.document, {"rounds": num_rounds}))
        return super().start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Train the server on its labels; then make a message for each sampled client."""
        if self._state is None:
            self._network.module.load_state_dict(arrays.to_torch_state_dict())
            self._state = self._method.start(self._network.snapshot())
        seed, state = self.config.seed, self._state
        trained = server_turn(self._method, state, self._site, stream(seed, "server", state.round))
        asks = self._method.asks(trained)
        online = self._online(grid) if asks else []
        clients = self._population(len(online))
        self._asked = (clients, trained, online)
        return self._messages(trained, draw(clients, Replied(online), state.round)) if asks else []

    def _online(self, grid: Grid) -> list[int]:
        """The numbers of the clients that can be reached; a node keeps its number."""
        _, nodes = sample_nodes(grid, self.min_available_nodes, 1)
        for node in sorted(set(nodes) - set(self._clients)):
            self._clients[node] = len(self._clients)
        return sorted(self._clients[node] for node in nodes)

    def _population(self, online: int) -> Clients:
        wanted = max(cohort_size(self.fraction_train, max(online, 1)), self.min_train_nodes)
        config, transforms = self.config, self._wire.transforms
        return Clients(
            config.seed, online, wanted, gate=config.gate, transforms=transforms, min_updates=config.min_updates
        )

    def _messages(self, trained: ServerState, cohort: Sequence[int]) -> list[Message]:
        """One message per client; a vector that goes to all of them is packed once."""
        index, raw = pack({str(k): self._method.broadcast(trained, k) for k in cohort})
        arrays = {name: as_array(part) for name, part in raw.items()}
        messages = []
        for k in cohort:
            used = {name: arrays[name] for name, _, _ in index[str(k)].values() if name in arrays}
            head = self._head(trained.round) | {"client": k, "tensors": index[str(k)]}
            messages.append(Message(to_content(head, used), _node(self._clients, k), MessageType.TRAIN))
        return messages

    def _head(self, round: int) -> dict[str, Any]:
        document = {key: value for key, value in self.config.document.items() if key != "fleet"}
        about = {"classes": self._site.classes, "samples": self._site.labeled.samples.about()}
        versions = {name: version(name) for name in ("fedfew", "torch")}
        return {"run": self._run, "round": round, "versions": versions, "config": document, "about": about}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, aggregate those that pass, and finish the round."""
        assert self._state is not None and self._asked is not None
        clients, trained, online = self._asked
        limit = reply_limit(self._wire.reply_schema(self._network.layout))
        came = {self._clients[m.metadata.src_node_id]: m for m in replies if m.metadata.src_node_id in self._clients}
        answers = ask(clients, self._method, self._site, Replied(online, came, self._run, limit), trained)
        for left_out in answers.missing:
            _log.warning(
                "\t> node %d left out: %s %s", _node(self._clients, left_out.client), left_out.code, left_out.reason
            )
        ema = self.config.evaluate
        state, _ = close_round(clients, self._method, self._site, self._state, trained, answers)
        state = replace(state, round=trained.round + 1, ema=ema.mean(state.ema, state.omega))
        self._state = replace(state, validation=(*state.validation, 0.0))
        kept = [update.metrics["coverage"] for update in answers.updates if "coverage" in update.metrics]
        metrics: dict[str, Any] = {"asked": len(answers.cohort), "used": len(answers.updates)}
        metrics |= {"bytes-up": answers.bytes_up, "bytes-down": answers.bytes_down}
        metrics |= {"coverage": sum(kept) / len(kept)} if kept else {}
        return self._arrays(state.evaluated), MetricRecord(metrics)

    def _arrays(self, vector: Vector) -> ArrayRecord:
        """The weights as Flower expects them: the model's state_dict."""
        self._network.load(vector)
        return ArrayRecord({name: tensor.clone() for name, tensor in self._network.module.state_dict().items()})

    def scorer(self, held_out: LabeledSet) -> Callable[[int, ArrayRecord], MetricRecord]:
        """An ``evaluate_fn`` for ``start``: accuracy and loss on labeled samples of the server's."""

        def score(server_round: int, arrays: ArrayRecord) -> MetricRecord:
            self._network.module.load_state_dict(arrays.to_torch_state_dict())
            accuracy, loss = evaluate(self._network, held_out)
            return MetricRecord({"accuracy": accuracy, "loss": loss})

        return score


def _node(clients: Mapping[int, int], client: int) -> int:
    """Flower's node id of a client."""
    return next(node for node, number in clients.items() if number == client)


class Replied:
    """A fleet whose replies Flower has already collected; without ``replies`` nobody has answered yet."""

    def __init__(
        self, online: list[int], replies: Mapping[int, Message] | None = None, run: str = "", limit: int = 0
    ) -> None:
        self._online, self._replies, self._run, self._limit = online, replies or {}, run, limit

    def online(self) -> list[int]:
        """The clients that were online when the round began."""
        return self._online

    def traffic(self) -> dict[str, int]:
        """Empty: Flower's loop does not count traffic."""
        return {}

    def train(self, round: int, payloads: Mapping[int, Payload]) -> Iterator[ClientUpdate | Missing]:
        """The content of the replies; a client without a reply gives no answer."""
        for client in payloads:
            message = self._replies.get(client)
            if message is None:
                continue
            if message.has_error():
                yield Missing(client, Refusal.FAILED, f"Flower reports error {int(message.error.code)}")
                continue
            try:
                text, parts = from_content(message.content, self._limit, head_limit(1))
            except ContentError as error:
                yield Missing(client, error.code, str(error))
                continue
            yield from read_answers(self._run, round, [client], text, parts, self._limit)
