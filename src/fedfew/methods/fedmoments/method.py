"""fedmoments, our own method for frozen features: clients send class moments, whose differences separate the classes.

    survey:    each client sends Σ x and Σ x xᵀ once; the server whitens the features and finds, in the spread of the
               clients' means, the directions in which classes differ and how skewed clients are (α)
    client k:  z = x W + b;   r ∝ softmax(z)·π_k,  π_k = (Σ r + α m)/(n_k + α);   sends Σ r and Σ r xᵀ
    server:    M_c = (Σ r x + labeled sums + κ n_c M_c⁰)/(…), shrunk by the prior;   S = total − between;   W = S⁻¹M
               T such that the mean confidence without π_k is ``confidence``; EM stops where classes have settled
    model:     the same moments in more directions, corrected by the labels as far as cross-validation on them says

A generative step works where a prior-corrected loss on a client's own predictions has no gradient: it moves class means
by which client an image is at, as in learning from label proportions. The M-step equals that of pooled data, so
clients do not drift; clients send only sums; and α, the temperature, when to stop and how much to trust the clients
follow from the sums and the server's labels. ``survey.py`` derives how skewed sites become an advantage.

Built on A. P. Dempster, N. M. Laird, D. B. Rubin 1977 (EM) and M. Saerens et al. 2002 (a site's own class mix).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Layout, Vector
from fedfew.core.samples import Samples
from fedfew.core.settings import Count, Doc, Fraction, NonNegative, Positive
from fedfew.core.types import (
    Aggregator,
    ClientSite,
    ClientUpdate,
    Contribution,
    Expected,
    Method,
    Outcome,
    Payload,
    Schema,
    ServerSite,
    ServerState,
    Trained,
)
from fedfew.methods.entry import Entry, Scenario
from fedfew.methods.fedmoments.plausibility import odd_classes, odd_survey
from fedfew.methods.fedmoments.survey import (
    TEMPERATURES,
    Prior,
    Space,
    Survey,
    class_sums,
    corrected,
    linear,
    prior_of,
    responsibilities,
    spread_of,
    sureness,
    temperature_for,
)
from fedfew.methods.fedmoments.trust import class_weights, survey_weights
from fedfew.models.backbones.pretrained import LENGTH
from fedfew.training.sgd import LocalSGD, Supervised
from fedfew.training.updates import scalar

SUMS = "the clients send sums of features, not models"
SKEWED = "most clients have no image of most classes, so a rule that drops outliers would drop classes"
PER_IMAGE = LENGTH + LENGTH**2 + len(TEMPERATURES)
"""No image adds more than this to the length of a client's sums."""


@dataclass(frozen=True)
class FedMoments(Method):
    """Class moments from clients of different class mix; for models with a frozen backbone."""

    server: Supervised
    client: LocalSGD
    aggregator: Aggregator
    width: Annotated[Count, Doc("principal directions of the features in which EM works")] = 128
    wide: Annotated[Count, Doc("principal directions of the final model")] = 512
    mix: Annotated[Literal["even", "labels"], Doc("classes' shares over all clients: equal, or the labels'")] = "even"
    confidence: Annotated[Fraction, Doc("target of the model's mean confidence, without a client's mix; sets T")] = 0.75
    label_weight: Annotated[NonNegative, Doc("κ: unlabeled images that one label outweighs in a class mean")] = 50.0
    evidence: Annotated[Positive, Doc("images per class that the prior assumes when it shrinks a class mean")] = 30.0
    steps: Annotated[Count, Doc("steps in which a client finds its own class mix")] = 10
    settled: Annotated[Fraction, Doc("EM stops when the share of images changing class is below this, or rises")] = 0.02
    survey: Annotated[Count, Doc("images to survey before EM starts, if there are as many")] = 8000
    hear: Annotated[Fraction, Doc("images that answers cover before an EM step, as a share of those surveyed")] = 1.0

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        return replace(state, sigma=state.omega)

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """The best model from the labels alone."""
        x = features(site.labeled.samples)
        nothing = torch.zeros(len(x), site.classes, dtype=torch.float64)
        centre = x.mean(0)
        scale = 1 / (x - centre).norm(dim=1).mean()
        _, weight, bias = corrected((x - centre) * scale * x.shape[1] ** 0.25, site.labeled.labels, nothing, nothing,
                                    site.classes)  # fmt: skip
        weight = weight * scale * x.shape[1] ** 0.25
        omega = as_model(site, weight, bias - centre @ weight)
        return replace(state, omega=omega, sigma=omega)

    def broadcast(self, state: ServerState, client: int) -> Payload:
        """In the survey only a request, once; then the scores' weights, those of the round before, α and m."""
        if "weight" not in state.extra:
            return {"survey": scalar(float(client not in state.participation))}
        names = ("weight", "bias", "previous_weight", "previous_bias", "temperature", "alpha", "mix")
        return {name: state.extra[name] for name in names}

    def asks(self, state: ServerState) -> bool:
        """Until the classes have settled."""
        return not float(state.extra.get("done", torch.zeros(())))

    def train_client(self, payload: Payload, site: ClientSite, rng: torch.Generator) -> Trained:
        """Sums over the client's images: moments of the features, or of the classes."""
        x = features(site.samples)
        if "survey" in payload and not float(payload["survey"]):
            return Trained({"sums": torch.zeros(0)}, {"steps": 1.0})  # already surveyed, while others are not
        if "survey" in payload:
            rows, columns = torch.triu_indices(x.shape[1], x.shape[1])
            second = (x.float().T @ x.float())[rows, columns]
            return Trained({"sums": torch.cat([x.sum(0).float(), second])}, {"steps": 1.0})
        scores = x @ payload["weight"].double() + payload["bias"].double()
        before = x @ payload["previous_weight"].double() + payload["previous_bias"].double()
        r = responsibilities(scores, float(payload["alpha"]), payload["mix"].double(), self.steps)
        moved = (scores.argmax(1) != before.argmax(1)).double().sum()
        curve = sureness(scores * float(payload["temperature"]))
        sums = torch.cat([r.sum(0), (r.T @ x).flatten(), moved[None], curve]).float()
        return Trained({"sums": sums}, {"coverage": 1.0, "steps": 1.0}, r.argmax(1))

    def after_clients(
        self, state: ServerState, updates: Sequence[ClientUpdate], site: ServerSite, rng: torch.Generator
    ) -> tuple[ServerState, Outcome]:
        """The survey, until enough images are surveyed; then M-steps, until the classes have settled."""
        if not self.asks(state):
            return state, Outcome(metrics={"settled": 1.0})
        if "weight" not in state.extra:
            return self._survey(state, updates, site)
        return self._step(state, updates, site)

    # --- the survey

    def _survey(
        self, state: ServerState, updates: Sequence[ClientUpdate], site: ServerSite
    ) -> tuple[ServerState, Outcome]:
        width = site.network.layout.shapes[0][1]
        size = width + width * (width + 1) // 2
        fresh = [u for u in updates if state.participation[u.client] == 1 and fits(u, size)]
        extra = dict(state.extra)
        counts = extra.get("survey_counts", torch.zeros(3, dtype=torch.float64))
        sums = extra.get("survey_sums", torch.zeros(size, dtype=torch.float64))
        between = extra.get("survey_between", torch.zeros(width, width, dtype=torch.float64))
        means = [u.reply["sums"][:width].double() / u.examples for u in fresh]
        weights = survey_weights(means, features(site.labeled.samples), site.labeled.labels)
        for update, w in zip(fresh, weights, strict=True):
            if w:
                own, n = w * update.reply["sums"].double(), w * update.examples
                counts = counts + torch.tensor([n, n**2, w], dtype=torch.float64)
                sums, between = sums + own, between + torch.outer(own[:width], own[:width]) / n
        extra |= {"survey_counts": counts, "survey_sums": sums, "survey_between": between}
        enough = float(counts[0]) >= self.survey or len(fresh) <= NEW * len(updates)
        metrics = {"surveyed": float(counts[0])}
        if not enough or not counts[0]:
            return replace(state, extra=extra), Outcome(metrics=metrics)
        second = torch.zeros(width, width, dtype=torch.float64)
        second[*torch.triu_indices(width, width)] = sums[width:]
        images, squares, clients = counts.tolist()
        whole = second + second.triu(1).T
        found = self._begin(Survey(images, squares, clients, sums[:width], whole, between), site)
        kept = {name: tensor for name, tensor in extra.items() if not name.startswith("survey_")}
        metrics |= {"alpha": float(found["alpha"]), "directions": float(found["seen"])}
        return replace(state, extra=kept | found), Outcome(metrics=metrics)

    def _begin(self, survey: Survey, site: ServerSite) -> dict[str, Tensor]:
        """Whitened space, prior, first scores: class means of the labels, shrunk according to the clients' spread."""
        x, labels = features(site.labeled.samples), site.labeled.labels
        space = Space.of(survey, min(self.wide, x.shape[1]))
        width = min(self.width, space.basis.shape[1])
        mine = space(x)
        prior = prior_of(survey, space, width, mine, labels, site.classes, WEAK)
        counts = torch.bincount(labels, minlength=site.classes).double()
        anchor = prior.shrunk(class_sums(mine[:, :width], labels, site.classes) / counts[:, None].clamp_min(1), counts)
        head = torch.linalg.solve(prior.within, anchor.T)
        norm = (anchor.T * head).sum(0).clamp_min(1e-6).sqrt()
        head = head / norm * norm.mean()  # no class wins by its length
        # the scores were made from the labeled images, so the model is more confident on these than on others
        temperature = temperature_for(sureness(mine[:, :width] @ head) / len(mine), min(0.9, self.confidence + 0.1))
        mix = counts / counts.sum() if self.mix == "labels" else torch.full_like(counts, 1 / site.classes)
        extra = {
            "centre": space.centre, "basis": space.basis, "values": space.values, "gamma": prior.gamma,
            "within": prior.within, "alpha": scalar(prior.alpha), "seen": scalar(prior.seen), "anchor": anchor,
            "images": scalar(survey.images), "mix": mix, "done": scalar(0.0),
        }  # fmt: skip
        return extra | self._scores(extra, head, torch.zeros_like(mix), temperature, {})

    @staticmethod
    def _scores(
        extra: Mapping[str, Tensor], head: Tensor, bias: Tensor, temperature: float, before: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Weights for raw features at the temperature, and those of the step before."""
        weight = extra["basis"][:, : len(head)] @ head / temperature
        offset = bias / temperature - extra["centre"] @ weight
        now = {"weight": weight.float(), "bias": offset.float(), "temperature": scalar(temperature)}
        earlier = {"weight": torch.zeros_like(now["weight"]), "bias": torch.zeros_like(now["bias"])} | dict(before)
        return now | {"previous_weight": earlier["weight"], "previous_bias": earlier["bias"]}

    # --- a round of EM

    def _step(
        self, state: ServerState, updates: Sequence[ClientUpdate], site: ServerSite
    ) -> tuple[ServerState, Outcome]:
        extra, classes = dict(state.extra), site.classes
        width = len(extra["centre"])
        size = classes * (width + 1) + 1 + len(TEMPERATURES)
        usable = [u for u in updates if fits(u, size)]
        if not usable:
            return state, Outcome()
        space = Space(extra["centre"], extra["basis"], extra["values"])
        weights = class_weights([u.reply["sums"] for u in usable], space, classes)
        parts = [
            Contribution(u.client, w * (u.reply["sums"] / u.examples), u.examples, state.answered(u.client))
            for u, w in zip(usable, weights, strict=True)
        ]
        nothing = torch.zeros(size)
        mean = self.aggregator(parts, nothing, nothing)
        images = float(sum(part.examples for part in parts))
        heard = images + float(extra.get("heard", torch.zeros(())))
        sums = images * mean.vector.double() + extra.get("sums", torch.zeros(size, dtype=torch.float64))
        extra |= {"heard": scalar(heard), "sums": sums}
        if heard < self.hear * float(extra["images"]):
            return replace(state, extra=extra), Outcome(mean.weights, {"settled": 0.0})
        counts, moments, moved, curve = split(sums, classes, width, float(extra["images"]))
        del extra["heard"], extra["sums"]
        before = float(extra.get("moved", scalar(2.0)))
        if moved >= before:  # what is left is noise and drift: the step before was the last
            done = replace(state, extra=extra | {"done": scalar(1.0)})
            return done, Outcome(mean.weights, {"moved": moved, "settled": 1.0})
        omega, strength = self._model(extra, site, counts, moments)
        extra |= self._m_step(extra, site, counts, moments, curve)
        extra |= {"moved": scalar(moved), "done": scalar(float(moved < self.settled))}
        metrics = {"moved": moved, "alpha": float(extra["alpha"]), "trust": strength}
        metrics |= {"temperature": float(extra["temperature"]), "settled": float(extra["done"])}
        return replace(state, omega=omega, extra=extra), Outcome(mean.weights, metrics)

    def _m_step(
        self, extra: Mapping[str, Tensor], site: ServerSite, counts: Tensor, moments: Tensor, curve: Tensor
    ) -> dict[str, Tensor]:
        """Class means from the sums and the labels, shrunk by the prior, with one covariance; T for the next step."""
        space, prior = Space(extra["centre"], extra["basis"], extra["values"]), prior_in(extra)
        d = len(prior.gamma)
        mine = space(features(site.labeled.samples), d)
        labels = torch.bincount(site.labeled.labels, minlength=site.classes).double()
        both, pull = counts + labels, self.label_weight * labels[:, None]
        total = space.sums(counts, moments)[:, :d] + class_sums(mine, site.labeled.labels, site.classes)
        means = (total + pull * extra["anchor"]) / (both[:, None] + pull)
        means = prior.shrunk(means, torch.full_like(labels, self.evidence))
        eye = torch.eye(d, dtype=torch.float64)
        second = float(extra["images"]) * eye + mine.T @ mine
        within = (second - (both[:, None] * means).T @ means) / both.sum() + RIDGE * eye
        before = {"weight": extra["weight"], "bias": extra["bias"]}
        return self._scores(extra, *linear(means, spread_of(within)), temperature_for(curve, self.confidence), before)

    def _model(
        self, extra: Mapping[str, Tensor], site: ServerSite, counts: Tensor, moments: Tensor
    ) -> tuple[Vector, float]:
        """Gaussian classes in all directions, with the labels' correction, as a linear head on raw features."""
        space = Space(extra["centre"], extra["basis"], extra["values"])
        mine, labels = space(features(site.labeled.samples)), site.labeled.labels
        there, sums = space.sums(counts, moments), class_sums(mine, labels, site.classes)
        known = torch.bincount(labels, minlength=site.classes).double()
        eye = float(extra["images"]) * torch.eye(mine.shape[1], dtype=torch.float64)

        def head(more: Tensor, labeled: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
            both = counts + more
            means = (there + labeled) / both[:, None].clamp_min(1e-3)
            within = (eye + second - (both[:, None] * means).T @ means) / both.sum()
            return linear(means, spread_of(within + WIDE_RIDGE * eye / float(extra["images"])))

        alone = head(torch.zeros_like(known), torch.zeros_like(sums), torch.zeros_like(eye))
        whole = head(known, sums, mine.T @ mine)
        scale = (space.values / space.values.mean()).sqrt()
        strength, weight, bias = corrected(
            mine * scale, labels, mine @ alone[0] + alone[1], mine @ whole[0] + whole[1], site.classes
        )
        head_w, head_b = strength * whole[0] + scale[:, None] * weight, strength * whole[1] + bias
        full = space.basis @ head_w
        return as_model(site, full, head_b - space.centre @ full), strength

    def reply_schema(self, layout: Layout) -> Schema:
        """{"sums"}: as long as the survey or the class moments are."""
        classes, width = layout.shapes[0]
        longest = max(width + width * (width + 1) // 2, classes * (width + 1) + 1 + len(TEMPERATURES))
        return {"sums": Expected((None,), limit=longest, per_example=PER_IMAGE, rule=implausible)}


def implausible(reply: Tensor, payload: Payload, examples: int) -> str:
    """Why no images can have these sums (``plausibility.py``); empty if some can."""
    sums = reply.double()
    if not examples or not len(sums):
        return ""
    if "survey" in payload:
        return odd_survey(sums, examples, LENGTH)
    classes, width = payload["weight"].shape[1], len(payload["weight"])
    if len(sums) != classes * (width + 1) + 1 + len(TEMPERATURES):
        return ""  # not an answer to this request: left out later
    moments = sums[classes : classes * (width + 1)].view(classes, width)
    weight, bias = payload["weight"].double(), payload["bias"].double()
    return odd_classes(sums[:classes], moments, weight, bias, examples, LENGTH)


NEW = 0.25
"""The survey ends when at most this share of a round's clients are new."""
WEAK = 0.5
"""Between-class share assumed along the first principal direction, where the clients show none."""
RIDGE, WIDE_RIDGE = 0.02, 0.1


def features(samples: Samples) -> Tensor:
    """The vectors of samples, in float64 and at most ``LENGTH`` long."""
    x = samples.vectors()
    shortened: Tensor = x * (LENGTH / x.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
    return shortened


def fits(update: ClientUpdate, size: int) -> bool:
    """Whether a client has images and its answer fits the request."""
    return update.examples > 0 and update.reply["sums"].shape == (size,)


def split(sums: Tensor, classes: int, width: int, images: float) -> tuple[Tensor, Tensor, float, Tensor]:
    """Sums scaled to all images: Σ r, Σ r x; the share of images that changed class; the mean confidence."""
    counts = sums[:classes].clamp_min(1e-9)
    heard = counts.sum()
    moments = sums[classes : classes * (width + 1)].view(classes, width)
    moved = float(sums[classes * (width + 1)] / heard)
    return counts * images / heard, moments * images / heard, moved, sums[-len(TEMPERATURES) :] / heard


def prior_in(extra: Mapping[str, Tensor]) -> Prior:
    """The prior in the server's state."""
    return Prior(extra["gamma"], extra["within"], float(extra["alpha"]), int(extra["seen"]))


def as_model(site: ServerSite, weight: Tensor, bias: Tensor) -> Vector:
    """A linear head D×C as the network's vector."""
    names = site.network.layout.names
    return site.network.layout.pack({names[0]: weight.T.float(), names[1]: bias.float()})


def refuse(method: FedMoments, scenario: Scenario) -> Iterator[FedfewError]:
    """The backbone must be frozen."""
    if not scenario.frozen_backbone:
        what = "fedmoments works on the features of a frozen backbone"
        yield FedfewError("E113", "method.name", what, 'Set model.name = "efficientnet-lite0", model.train = "head"')


FEDMOMENTS = Entry(
    FedMoments,
    unfit={
        **dict.fromkeys(("fednova", "fltrust", "status"), SUMS),
        **dict.fromkeys(("median", "trimmed-mean", "krum"), SKEWED),
    },
    refuse=refuse,
)
