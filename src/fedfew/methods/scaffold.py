"""SCAFFOLD: control variates correct each client's gradient for client drift.

S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich, A. T. Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning. ICML 2020, option II.

    client k:  ψ ← ψ − η (∇ objective(u) − c_k + c),   c_k⁺ = c_k − c + (ω_t − ψ_k) / (a_k η);  sends ψ_k and c_k⁺ − c_k
    server:    ω_{t+1} = Σ w_k ψ_k trained on D_s,     c ← c + Σ (c_k⁺ − c_k) / K

c_k⁺ is the mean gradient of the client's steps; a_k is its work in plain steps, momentum included. c_k
stays at the client. Published clients have labels; here their objective makes its own, and the server trains too.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import torch

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Expected, Layout, Payload, Schema
from fedfew.core.settings import Doc, Natural
from fedfew.core.types import ClientSite, RoundEnd, ServerSite, ServerState, Trained, Updates
from fedfew.methods.entry import Entry, Scenario
from fedfew.methods.fedavg import STARTS_FROM_SERVER, FedAvg
from fedfew.objectives.objective import train_unlabeled


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """FedAvg with control variates against client drift; twice the traffic."""

    population: Annotated[Natural, Doc("K: total number of clients, for the update of c; 0: as in the config")] = 0

    def broadcast(self, state: ServerState, client: int) -> Payload:
        return super().broadcast(state, client) | {"control": state.extra["control"]}

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """c starts at zero."""
        zeros = torch.zeros(site.network.layout.trainable)
        return super().warm_up(replace(state, extra=state.extra | {"control": zeros}), site, rng)

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        """ψ_k by corrected steps, and the change of c_k, which is zero if there was nothing to learn from."""
        n, lr, control = site.network.layout.trainable, float(payload["lr"]), payload["control"]
        own = site.memory.get("control", torch.zeros_like(control))
        trained = train_unlabeled(
            self.objective, self.client, self.vote, payload, site, rng, self.prox, control - own,
            self.supervise(site, rng),
        )  # fmt: skip
        work = self.client.work(trained.metrics["steps"], lr, self.prox)
        change = torch.zeros_like(control)
        if work:
            change = (payload["omega"] - trained.reply["psi"])[:n] / (work * lr) - control
            site.memory["control"] = own + change
        return replace(trained, reply=trained.reply | {"control": change})

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        control = state.extra["control"].double()
        for update in updates:
            control = control + update.reply["control"].double() / max(self.population, len(updates))
        state = replace(state, extra=state.extra | {"control": control.float()})
        return super().after_clients(state, updates, site, rng)

    def reply_schema(self, layout: Layout) -> Schema:
        return super().reply_schema(layout) | {"control": Expected((layout.trainable,), delta=True)}


def refuse(method: Scaffold, scenario: Scenario) -> Iterator[FedfewError]:
    """With a dataset of sites, their number is known too late."""
    if not method.population and scenario.clients is None:
        problem = "is 0, and the number of sites is not known yet"
        yield FedfewError("E113", "method.population", problem, "Set it to the number of sites")


SCAFFOLD = Entry(Scaffold, aggregator="uniform", unfit=STARTS_FROM_SERVER, refuse=refuse)
