"""Label-shift EM: a client estimates its own class prior from the model's outputs and votes with it.

M. Saerens, P. Latinne, C. Decaestecker: Adjusting the Outputs of a Classifier to New a Priori Probabilities. Neural
Computation 2002. Here at every client of a federation, where a non-IID split makes the priors differ.

    r_ic ∝ q_ic · π_k,c / π_s,c        q: the model's probabilities at temperature T, π_s: the server's class shares
    π_k  ← (Σ_i r_i + conc · π_s) / (N + conc)      conc: strength of a Dirichlet prior that holds π_k near π_s
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedfew.core.layout import Payload
from fedfew.core.settings import Count, Doc, Fraction, Natural, NonNegative, Positive
from fedfew.core.types import ClientSite, ServerSite, ServerState

TEMPERATURES = 0.5, 5.0
"""Bounds of an estimated temperature."""
STEPS = 100
"""EM iterations with a trained model: more than enough to converge on a few hundred images."""
CONCENTRATION = 0.3
"""Strength of the server's mix against the site's, as a share of the site's images: it limits drift, costs
little where a site is skewed and halves the harm where it is not (benchmarks/adapt_prior.py)."""
Adjust = Callable[[Tensor], Tensor]
"""Adjusts probabilities …×C to what a client knows about its own class mix."""


def unadjusted(probabilities: Tensor) -> Tensor:
    """Leave the probabilities as they are: the client does not use its own class mix."""
    return probabilities


def tempered(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T), normalised: flatter for T > 1, which corrects an over-confident model."""
    if temperature == 1:
        return probabilities
    return (probabilities.clamp_min(1e-30).log() / temperature).softmax(-1)


def calibrated_temperature(probabilities: Tensor, accuracy: float) -> float:
    """T at which the mean confidence of the probabilities N×C equals the accuracy: mean max p^(1/T) = ``accuracy``.

    Confidence falls with T, so bisection finds it, within bounds that limit the influence of a few images.
    """
    logarithms, low, high = probabilities.double().clamp_min(1e-30).log(), *TEMPERATURES
    for _ in range(30 if len(probabilities) else 0):
        middle = (low + high) / 2
        surer = float((logarithms / middle).softmax(1).amax(1).mean()) > accuracy
        low, high = (middle, high) if surer else (low, middle)
    return (low + high) / 2


def em_prior(
    probabilities: Tensor, server_prior: Tensor, temperature: float, steps: int, concentration: float
) -> tuple[Tensor, Tensor]:
    """Adjusted probabilities N×C and the estimated prior (C), from the model's probabilities N×C.

    Starts from the server's prior, so zero steps change nothing (at temperature 1). Sums are in float64, because the
    estimate must not depend on the order in which a machine adds.
    """
    q = tempered(probabilities.double(), temperature)
    start = server_prior.double() / server_prior.sum()
    prior = start
    for _ in range(steps if len(q) else 0):
        responsibilities = shifted(q, prior, start)
        # written as a mean so that an infinite concentration gives the server's prior, not ∞/∞
        trust = 1 / (1 + concentration / len(q))
        prior = trust * responsibilities.mean(0) + (1 - trust) * start
    return shifted(q, prior, start).to(probabilities.dtype), prior.to(probabilities.dtype)


def own_class_mix(
    probabilities: Tensor, server_prior: Tensor, temperature: float, concentration: float = CONCENTRATION
) -> tuple[Tensor, Tensor]:
    """A trained model's probabilities on a site's images, adjusted to the site's own class mix, and that mix."""
    return em_prior(probabilities, server_prior, temperature, STEPS, concentration * len(probabilities))


def shifted(q: Tensor, prior: Tensor, start: Tensor) -> Tensor:
    """r ∝ q · prior / start over the last dimension."""
    ratio = torch.where(start > 0, prior / start.clamp_min(1e-30), 0)  # a class the server never saw stays out
    r = q * ratio
    return r / r.sum(-1, keepdim=True).clamp_min(1e-30)


def log_ratio(mix: Tensor, prior: Tensor) -> Tensor:
    """log(π_k/π_server); a class that is in neither of them changes nothing."""
    return torch.where(prior > 0, (mix.clamp_min(1e-6) / prior.clamp_min(1e-6)).log(), 0.0)


@dataclass(frozen=True)
class Voting:
    """Which class prior pseudo-labels assume; ``em`` works with any method that makes pseudo-labels."""

    prior: Annotated[
        Literal["server", "em"], Doc("class shares of pseudo-labels: the server's, or the client's own by EM")
    ] = "server"
    views: Annotated[Count, Doc("em: number of weak views of an image whose mean probabilities start the estimate")] = 3
    temperature: Annotated[Positive, Doc("em: temperature of probabilities; above 1 for an over-confident model")] = 1.5
    steps: Annotated[Natural, Doc("em: number of EM steps")] = 30
    concentration: Annotated[NonNegative, Doc("em: the server's shares count as this many images; 0: none")] = 0.0
    warmup: Annotated[Fraction, Doc("em: share of the rounds before the estimate is used")] = 0.1
    rounds: int = 150

    def learn(self, site: ServerSite) -> dict[str, Tensor]:
        """The class shares of the server's labels, for its state."""
        if self.prior == "server":
            return {}
        counts = torch.bincount(site.labeled.labels, minlength=site.classes).float()
        return {"prior": counts / counts.sum()}

    def message(self, state: ServerState) -> Payload:
        """What the server adds to the payload; nothing before the warm-up is over."""
        if self.prior == "server" or state.round < self.warmup * self.rounds:
            return {}
        return {"prior": state.extra["prior"]}

    def adjust(self, payload: Mapping[str, Tensor], site: ClientSite, rng: torch.Generator) -> Adjust:
        """How this client adjusts probabilities in this round; the network must hold the received model."""
        if "prior" not in payload or not len(site):
            return unadjusted
        start = payload["prior"].double()
        views = [site.network.probabilities(site.samples.weak(rng)) for _ in range(self.views)]
        q = torch.stack(views).mean(0)
        _, prior = em_prior(q, start, self.temperature, self.steps, self.concentration)

        def adjusted(probabilities: Tensor) -> Tensor:
            # on the host, because not every accelerator has float64
            q = tempered(probabilities.cpu().double(), self.temperature)
            return shifted(q, prior.double(), start).to(probabilities)

        return adjusted


PLAIN_VOTE = Voting()
"""Pseudo-labels as published, without the client's own prior."""
