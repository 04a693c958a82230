"""fedmoments, our own method for frozen features: clients send class moments, whose differences separate the classes.

    survey:    each client sends Σ y and Σ y yᵀ once, y its features in the directions that the backbone's classifier
               reads; the server whitens them and finds, in the spread of the clients' means, the directions in which
               classes differ and how skewed clients are (α)
    client k:  z = v W + b;   r ∝ softmax(z)·π_k,  π_k = (Σ r + α m)/(n_k + α);   sends Σ r and Σ r yᵀ
    server:    M_c = (Σ r v + labeled sums + κ n_c M_c⁰)/(…), shrunk by the prior;   S = total − between;   W = S⁻¹M
               T such that the mean confidence without π_k is ``confidence``; EM stops where classes have settled
    model:     the same moments in all directions, mixed with a model of the labels alone as the labels judge

A generative step works where a prior-corrected loss on a client's own predictions has no gradient: it moves class means
by which client an image is at, as in learning from label proportions. The M-step equals that of pooled data, so
clients do not drift; clients send only sums; and α, the temperature, when to stop and how much to trust the clients
follow from the sums and the server's labels.

settings.py    the settings                             server.py    the server's part; here is the clients'
basis.py       directions and units of what is sent
survey.py      second moments of all features            prior.py     how skewed sites become an advantage
em.py          a client's sums                           path.py      the server's M-step and model
answers.py     every client counts once                  share.py     the last word is the labels'
trust.py       sums unlike all others' count less        plausibility.py   sums that no images have
shift.py       sites with scanners of their own          bounded.py   noise that hides single images
forget.py      a model without one client's sums

Built on A. P. Dempster, N. M. Laird, D. B. Rubin 1977 (EM) and M. Saerens et al. 2002 (a site's own class mix).
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedfew.aggregators import AGGREGATORS
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Expected, Layout, Payload, Schema
from fedfew.core.types import ClientSite, ServerState, Trained
from fedfew.methods.entry import Entry, Federated, Scenario
from fedfew.methods.fedmoments.answers import answered
from fedfew.methods.fedmoments.basis import REACH, Frame, basis_of, features
from fedfew.methods.fedmoments.bounded import Opened, step_answer, survey_sums
from fedfew.methods.fedmoments.em import SENT, TEMPERATURES, client_sums, sent_scores
from fedfew.methods.fedmoments.plausibility import Implausible
from fedfew.methods.fedmoments.server import ServerSteps
from fedfew.methods.fedmoments.shift import SHIFT, Shift
from fedfew.methods.fedmoments.survey import Tally, moments_of
from fedfew.training.updates import scalar
from fedfew.transforms.compression import Compressed, Int8

SHARPEST = 1000.0
"""Largest sharpness of scores that a site computes, see ``ClassScores.sharpness``; on CIFAR-10 it was 21."""
SMALLEST = 1e-7
"""Smallest scale that a site divides by: with 0 one image's y is not a number, and neither is the sum of all."""


@dataclass(frozen=True)
class FedMoments(ServerSteps):
    """Class moments from clients of different class mix; for models with a frozen backbone."""

    state_format: ClassVar[int] = 2

    def broadcast(self, state: ServerState, client: int) -> Payload:
        """The units; whether to answer the survey, once; and the models, if the client has not answered these."""
        extra = state.extra
        more = not self.many or float(extra.get("survey_counts", torch.zeros(1))[0]) < self.survey
        new = "weight" not in extra if self.sums_only else client not in state.participation
        survey = scalar(float(more and new))
        payload = {"survey": survey, "origin": extra["origin"], "scale": extra["scale"]}
        if self.image_noise and float(survey):
            return payload
        if "weight" in extra and (self.many or answered(extra, client) < int(extra["step"])):
            payload |= {name: extra[name] for name in (*SENT, "step")}
            payload |= {name: extra[name] for name in SHIFT if name in extra}
        return payload

    def asks(self, state: ServerState) -> bool:
        """Until the classes have settled."""
        return not float(state.extra.get("done", torch.zeros(())))

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        """Sums over the client's images: of the classes, and once of all features."""
        frame = Frame.sent(payload)
        y = frame(features(site.samples), basis_of(site.network, self.directions))
        v = y * frame.scale
        if self.image_noise:
            return self._bounded(payload, v, y)
        sums, votes, metrics = [torch.zeros(0)], None, {"steps": 1.0}
        moments = moments_of(y) if float(payload["survey"]) else None
        if (shift := Shift.sent(payload)) is not None and len(v):
            y = frame.bounded(v - shift.of_site(v) + frame.origin)
            v = y * frame.scale
        if "weight" in payload:
            models = sent_scores(payload)
            weight, bias = payload["previous_weight"].double(), payload["previous_bias"].double()
            before = replace(models[0], weight=weight, bias=bias)
            own, votes = client_sums(v, y, models, before, float(payload["step"]), self.steps, site.fewest)
            sums, metrics = [own], metrics | {"coverage": 1.0}
        if moments is not None:
            sums.append(moments.float())
        return Trained({"sums": torch.cat(sums)}, metrics, votes)

    def _bounded(self, payload: Payload, v: Tensor, y: Tensor) -> Trained:
        """Sums to which one image adds at most 1, in float64: rounding them would depend on all images."""
        if float(payload["survey"]):
            return Trained({"sums": survey_sums(y)})
        models = sent_scores(payload) if "weight" in payload else []
        return Trained({"sums": step_answer(v, y, models, self.image_noise) if models else torch.zeros(0)})

    def refused(self, payload: Payload, layout: Layout) -> str:
        """Units or models with which an image could count for more than its part, or stand alone in a sum."""
        shape = self.shape(*layout.shapes[0])
        forms = shape.sent if "weight" in payload else shape.units
        for name, form in forms.items():
            if name not in payload or tuple(payload[name].shape) != form:
                return f"{name} does not have the form {form} that the config gives it"
        if float(payload["scale"].min()) < SMALLEST:
            return f"a scale is below {SMALLEST:g}"
        if any(payload[name].ndim != 2 or len(payload[name]) != shape.width for name in SHIFT[:2] if name in payload):
            return "the sites' shift does not have the form of directions"
        if "weight" not in payload:
            return ""
        if any(float(payload[name].min()) < 0 for name in ("alpha", "mix")):
            return "a class mix is negative"
        sharpest = max(model.sharpness(payload["scale"]) for model in sent_scores(payload))
        return f"scores of sharpness {sharpest:.4g}; the limit is {SHARPEST:g}" if sharpest > SHARPEST else ""

    def reply_schema(self, layout: Layout) -> Schema:
        """{"sums"}: of the classes, of the survey, or both."""
        shape = self.shape(*layout.shapes[0])
        if self.image_noise:
            opened = Opened(shape, self.image_noise)
            return {"sums": Expected((None,), limit=max(opened.survey_length, opened.length), per_example=1.0, exact=1)}
        longest = shape.length + Tally.length(shape.width)
        reach = REACH * shape.width**0.5
        most = reach + reach**2 + 2 + (1 + self.folds) * (reach + 1 + len(TEMPERATURES))
        return {"sums": Expected((None,), limit=longest, per_example=most, exact=shape.header, rule=Implausible(shape))}


def refuse(method: Federated, scenario: Scenario) -> Iterator[FedfewError]:
    """The backbone must be frozen."""
    if not scenario.frozen_backbone:
        problem = "it computes a linear head, on vectors or on the features of a frozen backbone"
        remedy = 'Set model.name = "linear" for vectors, "efficientnet-lite0" with train = "head" for images'
        yield FedfewError("E113", "method.name", problem, remedy)


NOISY: dict[str, Any] = {"folds": 2, "most_steps": 3}
"""Other defaults where noise hides single images,"""
NARROW: dict[str, Any] = {"directions": 128, "fold_directions": 64}
"""and where there is much of it: at each site, or from this z on for a sum."""
MUCH = 2.0


def settle(method: FedMoments, scenario: Scenario) -> dict[str, Any]:
    """No shift with privacy, since it depends on all images of a site; nothing of single clients with secure sums."""
    known: dict[str, Any] = {}
    if scenario.secure_sums:
        known["method.sums_only"] = True
    if scenario.private or scenario.image_noise or scenario.secure_sums:
        known["method.scanners"] = False
    if scenario.image_noise:
        unset = {field.name: field.default for field in fields(FedMoments)}
        noisy = NOISY if scenario.secure_sums and scenario.image_noise < MUCH else NOISY | NARROW
        known |= {f"method.{name}": value for name, value in noisy.items() if getattr(method, name) == unset[name]}
        known["method.image_noise"] = scenario.image_noise
    return known


FEDMOMENTS = Entry(
    FedMoments,
    unfit={name: "every client's sums are added up once" for name in AGGREGATORS if name != "fedavg"},
    sums="all",
    encoding=(Compressed(Int8(), feedback=False),),
    settle=settle,
    refuse=refuse,
    bounds_images=True,
)
