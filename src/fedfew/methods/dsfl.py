"""DS-FL: clients send predictions on a few public images, not their models.

S. Itahara, T. Nishio, Y. Koda, M. Morikura, K. Yamamoto: Distillation-Based Semi-Supervised Federated Learning for
Communication-Efficient Collaborative Training with Non-IID Private Data. IEEE TMC 2021.

    client k:  ψ_k = ω − η ∇ objective(u);   P_k = f(o; ψ_k)  on the round's open images o, which the server sends
    server:    q = softmax(mean_k P_k / T)   (entropy reduction, T = 0.1);   ω ← ω − η ∇ CE(q, f(o)), then CE(y, f(x))

An adaptation to labels at the server. As published, clients have labels, keep their own models and distil the broadcast
q themselves. Here they have none, so they start from the server's model, train on their objective and predict the
open set; only the server distils, and it trains on its labels. The open set (``dataset.open``) is public
unlabeled data at the server; the round's images are sent with the payload. The purpose stays: the upload is
|open images| · classes numbers, whatever the size of the model.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Expected, Layout, Payload, Schema, Vector
from fedfew.core.samples import Samples
from fedfew.core.settings import Count, Doc, Natural, NonNegative, Positive
from fedfew.core.types import ClientSite, ClientUpdate, Outcome, RoundEnd, ServerSite, ServerState, Trained, Updates
from fedfew.methods.entry import Entry, Federated, Scenario
from fedfew.objectives.objective import Objective, train_unlabeled
from fedfew.training.label_shift import PLAIN_VOTE, Voting
from fedfew.training.sgd import descend
from fedfew.training.supervised import train_server
from fedfew.training.updates import Warmup, check_outputs, contributions, outputs, schedule

OPEN_ROUNDS = 3
"""The open set holds the images of this many rounds, if the config gives no number."""
NO_MODELS = "the clients send probabilities, not models, so there are no steps and no direction to compare"


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """Entropy reduction aggregation: softmax(q̄/T) of the averaged probabilities, row by row."""
    return (probabilities / temperature).softmax(1)


@dataclass(frozen=True)
class DSFL(Federated):
    """Probabilities on a shared open set instead of weights."""

    objective: Objective
    subset: Annotated[Count, Doc("open images that clients predict in a round, drawn from dataset.open")] = 200
    temperature: Annotated[Positive, Doc("T: how much the averaged probabilities are sharpened")] = 0.1
    distill_epochs: Annotated[Natural, Doc("the server's epochs on the round's open images")] = 5
    lambda_s: Annotated[NonNegative, Doc("weight of the server's cross-entropy")] = 1.0
    warmup: Warmup = 0
    vote: Voting = PLAIN_VOTE

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """The server trains alone, so that the clients start from a useful model."""
        self.public(site)
        check_outputs(site, "ds-fl")
        sigma = train_server(self.server, state.omega, state, site, rng, self.lambda_s, self.warmup)
        return self.draw(replace(state, sigma=sigma), site, rng)

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """Draws the round's open images."""
        return self.draw(replace(state, sigma=state.omega), site, rng)

    def draw(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """The open images that the clients predict in this round."""
        public = self.public(site)
        asked = public.take(torch.randperm(len(public), generator=rng)[: self.subset].sort().values)
        return replace(state, extra=state.extra | {"open": asked.data} | self.vote.learn(site))

    def public(self, site: ServerSite) -> Samples:
        """The open set; E113 if it is too small."""
        size = 0 if site.open is None else len(site.open)
        if site.open is None or size < self.subset:
            problem = f"method.subset is {self.subset}, but the open set has {size} images"
            raise FedfewError("E113", "dataset.open", problem, "Raise dataset.open or lower method.subset")
        return site.open

    def broadcast(self, state: ServerState, client: int) -> Payload:
        payload = {"omega": state.sigma, "open": state.extra["open"]}
        return payload | schedule(self.client, state) | self.vote.message(state)

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        trained = train_unlabeled(self.objective, self.client, self.vote, payload, site, rng)
        return replace(trained, reply={"probabilities": site.network.probabilities(site.samples.like(payload["open"]))})

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        asked = site.labeled.samples.like(state.extra["open"])
        parts = contributions(state, updates, vector=_distribution)
        site.network.load(state.sigma)
        own = site.network.probabilities(asked).flatten()
        mean = self.aggregator(parts, own, own)
        targets = sharpened(mean.vector.view(len(asked), site.classes), self.temperature)
        distilled = self.distill(state, asked, targets, site, rng)
        omega = train_server(self.server, distilled, state, site, rng, self.lambda_s)
        return replace(state, omega=omega), Outcome(mean.weights, clients=distilled)

    def distill(
        self, state: ServerState, asked: Samples, targets: Tensor, site: ServerSite, rng: torch.Generator
    ) -> Vector:
        """The server's model after SGD on CE(q, f(weak o))."""
        network, sgd = site.network, replace(self.server.sgd, epochs=self.distill_epochs)
        network.load(state.sigma)

        def loss_of(indices: Tensor) -> Tensor:
            logits = network(asked.take(indices).weak(rng))
            return cross_entropy(logits, targets[indices].to(network.device))

        descend(network, sgd, sgd.rate(state.round, state.validation), len(asked), loss_of, rng)
        return network.snapshot()

    def reply_schema(self, layout: Layout) -> Schema:
        return {"probabilities": Expected((self.subset, outputs(layout)))}


def _distribution(update: ClientUpdate) -> Vector:
    """Rows that are probabilities whatever was sent: values above 1 give a client no extra weight."""
    rows = update.reply["probabilities"].clamp(0, 1)
    total = rows.sum(1, keepdim=True)
    return torch.where(total > 0, rows / total.clamp_min(1e-12), 1 / rows.shape[1]).flatten()


def settle(method: DSFL, scenario: Scenario) -> dict[str, int]:
    """If it is not set, dataset.open holds the samples of a few rounds."""
    return {"dataset.open": OPEN_ROUNDS * method.subset} if scenario.open == 0 else {}


def refuse(method: DSFL, scenario: Scenario) -> Iterator[FedfewError]:
    """Open images are required: a dataset with its own sites has none."""
    if scenario.open is None:
        problem = "ds-fl needs public images, and a dataset with its own sites has none"
        yield FedfewError("E113", "method.name", problem, "Use a method that sends models")
    elif scenario.open < method.subset:
        problem = f"method.subset = {method.subset} open images a round, but dataset.open = {scenario.open}"
        yield FedfewError("E113", "method.subset", problem, "Raise dataset.open or lower method.subset")


DS_FL = Entry(
    DSFL, aggregator="uniform", unfit={"fednova": NO_MODELS, "fltrust": NO_MODELS}, settle=settle, refuse=refuse
)
