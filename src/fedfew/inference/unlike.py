"""Images, rows or texts that look like none of a model's classes: too far from the samples that have labels.

    s_i    the mean distance to the three nearest labeled x_j; of features 1 − cos(x_i − m, x_j − m) with the mean m of
           the labeled, of the rows of a table ‖x_i − x_j‖.  Of a labeled sample: without itself, in m too, so that it
           is as far off as a new one of its class would be
    w_j    of a labeled sample: how frequent its class seems to be among the unlabeled ones, over the class's labels
    t      such that labeled ones of a tenth of the weight, F, have s ≥ t (at least one has)

If all n samples are of the classes, the number above t is a draw from the binomial distribution with a chance of
Beta(e F, e (1 − F) + 1), e = (Σ w)² / Σ w² the labels that count. If so many or more have a probability below 5 %, some
look like none of the classes: at least the share above t beyond e F / (e + 1), of what F leaves.
"""

from dataclasses import dataclass
from math import exp
from typing import Any

import torch
from scipy.special import betaln, gammaln, logsumexp
from torch import Tensor
from torch.nn.functional import normalize

from fedfew.config.parts import federation_of
from fedfew.core.errors import FedfewError
from fedfew.core.network import Network
from fedfew.inference.embedding import embed
from fedfew.inference.predict import Found
from fedfew.runs.run import Run

NEAREST, TAIL, ERROR = 3, 0.1, 0.05
MOST = 500
"""Labeled samples that are looked at; more are hardly better, and cost time."""
ELSEWHERE = ("elsewhere",)
"""Sites whose samples are not read."""


@dataclass(frozen=True, eq=False)
class Unlike:
    """How many samples look like none of the classes, and which."""

    odd: Tensor
    """Whether a sample is further off than t; where nothing is significant, nobody is."""
    share: float
    """Such samples, at least; 0 if chance explains them."""
    probability: float
    """Of as many odd samples, if all are of the classes."""
    labels: int

    def about(self) -> dict[str, Any]:
        """In JSON's types."""
        return {"share": round(self.share, 4), "probability": round(self.probability, 4), "labels": self.labels}

    def sentence(self, noun: str) -> str:
        """In words."""
        if self.share:
            found = f"at least about {100 * self.share:.0f} % of the {noun} look like none of your classes"
            return f"{found}, or were taken in another way (p = {self.probability:.2g}, by {self.labels} labels)"
        return f"no sign of {noun} that are of none of your classes, as far as {self.labels} labels can tell"


def unlike_classes(run: Run, network: Network, inputs: Found, features: Tensor, probabilities: Tensor) -> Unlike | None:
    """By the run's labels, those for testing too; None for features that were learned, and where the labels are gone.

    ``features`` and ``probabilities`` are what ``network`` gives for the ``inputs``."""
    model = run.config.model
    if not model.frozen or model.settings.get("hidden") or not len(features):
        return None
    try:
        data = federation_of(run.config, ELSEWHERE if run.config.remote else ())
    except FedfewError:  # the model may be used far from the data
        return None
    labeled = data.server.join(data.validation).join(data.test)
    labeled = labeled.take(torch.randperm(len(labeled), generator=torch.Generator().manual_seed(0))[:MOST])
    if len(labeled) <= NEAREST:
        return None
    shares, counts = probabilities.double().mean(0), torch.bincount(labeled.labels, minlength=probabilities.shape[1])
    theirs, mine = features.double(), embed(network, labeled.samples)[0].double()
    if inputs.kind == "row":
        held_out, new = nearest(torch.cdist(mine, mine).fill_diagonal_(torch.inf)), nearest(torch.cdist(theirs, mine))
    else:
        held_out, new = nearest(angles_within(mine)), nearest(angles(theirs, mine))
    return judged(held_out, new, (shares / counts)[labeled.labels])


def nearest(distances: Tensor) -> Tensor:
    """The mean of the smallest of each row."""
    return distances.topk(NEAREST, 1, largest=False).values.mean(1)


def angles(x: Tensor, labeled: Tensor) -> Tensor:
    """1 − cos between samples x (N×d) and labeled ones, as seen from these ones' mean."""
    mean = labeled.mean(0)
    return 1 - normalize(x - mean, dim=1) @ normalize(labeled - mean, dim=1).T


def angles_within(labeled: Tensor) -> Tensor:
    """The same between labeled samples, each seen from the mean of the others: from their products alone."""
    others = len(labeled) - 1
    products = (labeled - labeled.mean(0)) @ (labeled - labeled.mean(0)).T
    own = products.diagonal()  # without i, x_j − m is y_j + y_i / others, with y = x − m
    squares = own + 2 * products / others + own[:, None] / others**2
    cosines = (products + own[:, None] / others) / (squares * own[:, None]).clamp_min(1e-24).sqrt()
    return (1 - cosines).fill_diagonal_(torch.inf)


def judged(labeled: Tensor, samples: Tensor, weights: Tensor) -> Unlike:
    """By the distances of labeled samples, with their weights, and of others."""
    weights = weights / weights.sum()
    count, order = float(1 / weights.square().sum()), labeled.argsort(descending=True)
    above = weights[order].cumsum(0)
    last = min(int((above < max(TAIL, 1 / count) - 1e-9).sum()), len(order) - 1)
    expected, odd = count * float(above[last]), samples > labeled[order[last]]
    probability = chance(int(odd.sum()), len(odd), expected, count + 1 - expected)
    usual = expected / (count + 1)
    share = max((float(odd.double().mean()) - usual) / (1 - usual), 0.0)
    if probability >= ERROR or not share:
        return Unlike(torch.zeros_like(odd), 0.0, probability, len(labeled))
    return Unlike(odd, share, probability, len(labeled))


def chance(least: int, n: int, a: float, b: float) -> float:
    """The probability of ``least`` or more of n, if each has the same chance, drawn from Beta(a, b)."""
    hits = torch.arange(least, n + 1).double().numpy()
    ways = gammaln(n + 1) - gammaln(hits + 1) - gammaln(n - hits + 1)
    return min(exp(float(logsumexp(ways + betaln(hits + a, n - hits + b) - betaln(a, b)))), 1.0)
