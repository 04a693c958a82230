"""FedSiam (first published as FedSemi): an online network learns to agree with its own moving average.

Z. Long, L. Che, Y. Wang, M. Ye, J. Luo, J. Wu, H. Xiao, F. Ma: FedSiam: Towards Adaptive Federated Semi-Supervised
Learning. 2020 (FedSemi: An Adaptive Federated Semi-Supervised Learning Framework, same authors).

    client k:  β(t) ‖f(u + η; target) − f(u + η′; online)‖²,   target ← a target + (1 − a) online after each step
    server:    both networks are aggregated (-mt), or the online one alone, which is its own target (-pi);
               the server then trains CE(y, f(x)) on the aggregate, and the target follows its steps in the same way

Adapted to labels at the server: the published clients train on labels of their own as well; here the server's turn on
D_s, from which the next round starts, is the only supervision. a grows from 0 to ``decay`` with the same ramp as β. The
published choice of layers to upload by their divergence is left out; ``compression`` works with every method.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedfew.core.layout import Expected, Layout, Payload, Schema, Vector
from fedfew.core.network import Network
from fedfew.core.samples import Samples
from fedfew.core.settings import Decay, Doc, Fraction, NonNegative
from fedfew.core.types import ClientSite, Outcome, RoundEnd, ServerSite, ServerState, Trained, Updates
from fedfew.methods.entry import Entry, Federated
from fedfew.methods.fedavg import STARTS_FROM_SERVER
from fedfew.objectives.consistency import disagreement
from fedfew.objectives.objective import soft_ramp
from fedfew.training.sgd import Hooks, descend
from fedfew.training.supervised import train_server
from fedfew.training.updates import Warmup, contributions, schedule


@dataclass(frozen=True)
class FedSiam(Federated):
    """Consistency between an online network and its target; ``uploads`` "both" is -MT, "online" is -Π."""

    weight: Annotated[NonNegative, Doc("β: weight of the consistency loss at the end of the ramp")] = 10.0
    ramp: Annotated[Fraction, Doc("share of the run over which β and a grow")] = 0.2
    decay: Annotated[Decay, Doc("a: decay of the target at each step, after the ramp")] = 0.999
    noise: Annotated[NonNegative, Doc("deviation of the noise η on a weak view, for pixels in [0, 1]")] = 0.1
    lambda_s: Annotated[NonNegative, Doc("weight of the server's cross-entropy")] = 1.0
    warmup: Warmup = 0
    uploads: Literal["both", "online"] = "both"

    def start(self, omega: Vector) -> ServerState:
        return ServerState(0, omega, omega, extra={"target": omega} if self.uploads == "both" else {})

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """The server trains alone, and its model is the target too."""
        sigma = train_server(self.server, state.omega, state, site, rng, self.lambda_s, self.warmup)
        return replace(state, sigma=sigma, extra=dict.fromkeys(state.extra, sigma))

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        return replace(state, sigma=state.omega)

    def broadcast(self, state: ServerState, client: int) -> Payload:
        """σ here is ω_t after the server's training; and the target, if clients send one."""
        return {"omega": state.sigma} | schedule(self.client, state) | state.extra

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        network = site.network
        network.load(payload["omega"])
        rise = soft_ramp(float(payload["progress"]), self.ramp)
        target = payload["target"].clone().to(network.device) if "target" in payload else None

        def loss_of(indices: Tensor) -> Tensor:
            return self.weight * rise * self.loss(network, site.samples.take(indices), target, rng)

        hooks = following(target, self.decay * rise)
        steps = descend(network, self.client, float(payload["lr"]), len(site), loss_of, rng, hooks)
        sent = {} if target is None else {"target": target.cpu()}
        return Trained({"psi": network.snapshot()} | sent, {"steps": float(steps)})

    def loss(self, network: Network, samples: Samples, target: Vector | None, rng: torch.Generator) -> Tensor:
        """‖f(u + η; target) − f(u + η′; online)‖²; without a separate target the gradient goes through both sides."""
        one, other = (samples.weak(rng).noisy(self.noise, rng) for _ in range(2))
        if target is None:
            first, second = network(one.join(other)).softmax(1).chunk(2)
            return disagreement(first, second)
        return disagreement(network(other).softmax(1), network.outputs_of(target, one).softmax(1))

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        psi = self.aggregator(contributions(state, updates, self.client), state.sigma, state.sigma)
        target = None
        if self.uploads == "both":
            targets = contributions(state, updates, self.client, vector=lambda update: update.reply["target"])
            sent = state.extra["target"]
            target = self.aggregator(targets, sent, sent).vector.to(site.network.device)
        hooks = following(target, self.decay * soft_ramp(state.round / max(self.client.rounds, 1), self.ramp))
        omega = train_server(self.server, psi.vector, state, site, rng, self.lambda_s, hooks=hooks)
        extra = state.extra | ({} if target is None else {"target": target.cpu()})
        return replace(state, omega=omega, extra=extra), Outcome(psi.weights, clients=psi.vector)

    def reply_schema(self, layout: Layout) -> Schema:
        target = {"target": Expected((layout.size,), near="target")}
        return super().reply_schema(layout) | (target if self.uploads == "both" else {})


def following(target: Vector | None, decay: float) -> Hooks:
    """After each step, target ← a·target + (1 − a)·online, in place."""

    def follow(network: Network) -> None:
        if target is not None:
            target.mul_(decay).add_(network.vector.detach(), alpha=1 - decay)

    return Hooks(after_step=follow)


FEDSIAM_MT = Entry(FedSiam, unfit=STARTS_FROM_SERVER)
FEDSIAM_PI = Entry(FedSiam, {"uploads": "online"}, unfit=STARTS_FROM_SERVER)
