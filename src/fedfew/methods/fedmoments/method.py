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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Expected, Layout, Payload, Schema, Vector
from fedfew.core.samples import Samples
from fedfew.core.settings import Count, Doc, Fraction, NonNegative, Positive
from fedfew.core.types import (
    ClientSite,
    ClientUpdate,
    Contribution,
    Outcome,
    RoundEnd,
    ServerSite,
    ServerState,
    Trained,
    Updates,
)
from fedfew.methods.entry import Entry, Federated, Scenario
from fedfew.methods.fedmoments.correction import corrected
from fedfew.methods.fedmoments.em import (
    TEMPERATURES,
    ClassSums,
    class_sums,
    client_sums,
    linear,
    responsibilities,
    spread_of,
    sureness,
    temperature_for,
)
from fedfew.methods.fedmoments.plausibility import implausible
from fedfew.methods.fedmoments.survey import Prior, Space, Survey, Tally, moments_of, prior_of
from fedfew.methods.fedmoments.trust import class_weights, survey_weights
from fedfew.models.backbones.pretrained import LENGTH
from fedfew.training.updates import scalar

SUMS = "the clients send sums of features, not models"
SKEWED = "most clients have no image of most classes, so a rule that drops outliers would drop classes"
NEW = 0.25
"""The survey ends when at most this share of a round's clients are new."""
RIDGE, WIDE_RIDGE = 0.02, 0.1
"""Variance added to every direction in EM and in the final model, in units of the whitened features."""
PER_IMAGE = LENGTH + LENGTH**2 + len(TEMPERATURES)
"""No image adds more than this to the length of a client's sums."""


@dataclass(frozen=True)
class FedMoments(Federated):
    """Class moments from clients of different class mix; for models with a frozen backbone."""

    width: Annotated[Count, Doc("number of principal directions of the features that EM uses")] = 128
    wide: Annotated[Count, Doc("number of principal directions that the final model uses")] = 512
    mix: Annotated[Literal["even", "labels"], Doc("class shares over all clients: equal, or those of the labels")] = (
        "even"
    )
    confidence: Annotated[
        Fraction, Doc("mean confidence, without a client's class mix, that the temperature is chosen for")
    ] = 0.75
    label_weight: Annotated[NonNegative, Doc("κ: how many unlabeled images one label outweighs in a class mean")] = 50.0
    evidence: Annotated[
        Positive, Doc("how many images of each class the prior assumes when it shrinks a class mean")
    ] = 30.0
    steps: Annotated[Count, Doc("steps in which a client estimates its own class mix")] = 10
    settled: Annotated[
        Fraction, Doc("EM stops when the share of images that change class falls below this, or rises")
    ] = 0.02
    survey: Annotated[Count, Doc("images to survey before EM starts; all, if there are fewer")] = 8000
    hear: Annotated[Fraction, Doc("share of the surveyed images that answers must cover before a step of EM")] = 1.0

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
        if "survey" in payload:
            asked = bool(float(payload["survey"]))  # only once, though others may not have been surveyed yet
            return Trained({"sums": moments_of(x) if asked else torch.zeros(0)}, {"steps": 1.0})
        scores = x @ payload["weight"].double() + payload["bias"].double()
        before = x @ payload["previous_weight"].double() + payload["previous_bias"].double()
        r = responsibilities(scores, float(payload["alpha"]), payload["mix"].double(), self.steps)
        sums = client_sums(x, scores, before, r, float(payload["temperature"]))
        return Trained({"sums": sums}, {"coverage": 1.0, "steps": 1.0}, r.argmax(1))

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        """The survey, until enough images are surveyed; then steps of EM, until the classes have settled."""
        if not self.asks(state):
            return state, Outcome(metrics={"settled": 1.0})
        if "weight" not in state.extra:
            return self._survey(state, updates, site)
        return self._step(state, updates, site)

    def _survey(self, state: ServerState, updates: Updates, site: ServerSite) -> RoundEnd:
        """Add the new clients' sums; with enough of them, EM begins."""
        width = site.network.layout.shapes[0][1]
        tally = Tally.of(state.extra, width)
        new = [u for u in updates if state.participation[u.client] == 1 and fits(u, Tally.length(width))]
        means = [u.reply["sums"][:width].double() / u.examples for u in new]
        weights = survey_weights(means, features(site.labeled.samples), site.labeled.labels)
        for update, weight in zip(new, weights, strict=True):
            tally = tally.add(update.reply["sums"], update.examples, weight) if weight else tally
        images = float(tally.counts[0])
        if not images or (images < self.survey and len(new) > NEW * len(updates)):
            return replace(state, extra=state.extra | tally.tensors()), Outcome(metrics={"surveyed": images})
        begun = self._begin(tally.survey(), site)
        kept = {name: tensor for name, tensor in state.extra.items() if name not in tally.tensors()}
        metrics = {"surveyed": images, "alpha": float(begun["alpha"]), "directions": float(begun["seen"])}
        return replace(state, extra=kept | begun), Outcome(metrics=metrics)

    def _begin(self, survey: Survey, site: ServerSite) -> dict[str, Tensor]:
        """Whitened space, prior, first scores: class means of the labels, shrunk according to the clients' spread."""
        x, labels = features(site.labeled.samples), site.labeled.labels
        space = Space.of(survey, min(self.wide, x.shape[1]))
        width = min(self.width, space.basis.shape[1])
        mine = space(x)
        prior = prior_of(survey, space, width, mine, labels, site.classes)
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
        scores = scores_at(space, head, torch.zeros_like(mix), temperature)
        blank = {f"previous_{name}": torch.zeros_like(scores[name]) for name in ("weight", "bias")}
        return extra | scores | blank

    def _step(self, state: ServerState, updates: Updates, site: ServerSite) -> RoundEnd:
        """Add the clients' sums; once they cover enough images, a step of EM and a new model."""
        extra, size = dict(state.extra), ClassSums.length(site.classes, len(state.extra["centre"]))
        usable = [u for u in updates if fits(u, size)]
        if not usable:
            return state, Outcome()
        weights = class_weights([u.reply["sums"] for u in usable], Space.kept(extra), site.classes)
        parts = [
            Contribution(u.client, w * (u.reply["sums"] / u.examples), u.examples, state.answered(u.client))
            for u, w in zip(usable, weights, strict=True)
        ]
        mean = self.aggregator(parts, torch.zeros(size), torch.zeros(size))
        images = float(sum(part.examples for part in parts))
        covered = images + float(extra.pop("heard", torch.zeros(())))
        total = images * mean.vector.double() + extra.pop("sums", torch.zeros(size, dtype=torch.float64))
        if covered < self.hear * float(extra["images"]):
            extra |= {"heard": scalar(covered), "sums": total}
            return replace(state, extra=extra), Outcome(mean.weights, {"settled": 0.0})
        sums = ClassSums.of(total, site.classes, float(extra["images"]))
        if sums.moved >= float(extra.get("moved", scalar(2.0))):  # what is left is noise: the step before was the last
            done = replace(state, extra=extra | {"done": scalar(1.0)})
            return done, Outcome(mean.weights, {"moved": sums.moved, "settled": 1.0})
        omega, trust = self._model(extra, site, sums)
        extra |= self._m_step(extra, site, sums)
        extra |= {"moved": scalar(sums.moved), "done": scalar(float(sums.moved < self.settled))}
        metrics = {"moved": sums.moved, "alpha": float(extra["alpha"]), "trust": trust}
        metrics |= {"temperature": float(extra["temperature"]), "settled": float(extra["done"])}
        return replace(state, omega=omega, extra=extra), Outcome(mean.weights, metrics)

    def _m_step(self, extra: Mapping[str, Tensor], site: ServerSite, sums: ClassSums) -> dict[str, Tensor]:
        """Class means from the sums and the labels, shrunk by the prior, with one covariance; T for the next step."""
        space, d = Space.kept(extra), len(extra["gamma"])
        prior = Prior(extra["gamma"], extra["within"], float(extra["alpha"]), int(extra["seen"]))
        mine = space(features(site.labeled.samples), d)
        labels = torch.bincount(site.labeled.labels, minlength=site.classes).double()
        both, pull = sums.counts + labels, self.label_weight * labels[:, None]
        total = space.sums(sums.counts, sums.moments)[:, :d] + class_sums(mine, site.labeled.labels, site.classes)
        means = (total + pull * extra["anchor"]) / (both[:, None] + pull)
        means = prior.shrunk(means, torch.full_like(labels, self.evidence))
        eye = torch.eye(d, dtype=torch.float64)
        second = float(extra["images"]) * eye + mine.T @ mine
        within = (second - (both[:, None] * means).T @ means) / both.sum() + RIDGE * eye
        previous = {f"previous_{name}": extra[name] for name in ("weight", "bias")}
        temperature = temperature_for(sums.confidence, self.confidence)
        return scores_at(space, *linear(means, spread_of(within)), temperature) | previous

    def _model(self, extra: Mapping[str, Tensor], site: ServerSite, sums: ClassSums) -> tuple[Vector, float]:
        """Gaussian classes in all directions, with the labels' correction; and how far the clients are trusted."""
        space = Space.kept(extra)
        mine, labels = space(features(site.labeled.samples)), site.labeled.labels
        theirs, own = space.sums(sums.counts, sums.moments), class_sums(mine, labels, site.classes)
        known = torch.bincount(labels, minlength=site.classes).double()
        eye = float(extra["images"]) * torch.eye(mine.shape[1], dtype=torch.float64)

        def head(more: Tensor, labeled: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
            both = sums.counts + more
            means = (theirs + labeled) / both[:, None].clamp_min(1e-3)
            within = (eye + second - (both[:, None] * means).T @ means) / both.sum()
            return linear(means, spread_of(within + WIDE_RIDGE * eye / float(extra["images"])))

        unseen = head(torch.zeros_like(known), torch.zeros_like(own), torch.zeros_like(eye))
        weight, bias = head(known, own, mine.T @ mine)
        scale = (space.values / space.values.mean()).sqrt()
        trust, more, offset = corrected(
            mine * scale, labels, mine @ unseen[0] + unseen[1], mine @ weight + bias, site.classes
        )
        full = space.basis @ (trust * weight + scale[:, None] * more)
        return as_model(site, full, trust * bias + offset - space.centre @ full), trust

    def reply_schema(self, layout: Layout) -> Schema:
        """{"sums"}: as long as the survey or the class moments are."""
        classes, width = layout.shapes[0]
        longest = max(Tally.length(width), ClassSums.length(classes, width))
        return {"sums": Expected((None,), limit=longest, per_example=PER_IMAGE, rule=implausible)}


def features(samples: Samples) -> Tensor:
    """The vectors of samples, in float64 and at most ``LENGTH`` long."""
    x = samples.vectors()
    shortened: Tensor = x * (LENGTH / x.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
    return shortened


def fits(update: ClientUpdate, size: int) -> bool:
    """Whether a client has images and its answer fits the request."""
    return update.examples > 0 and update.reply["sums"].shape == (size,)


def scores_at(space: Space, head: Tensor, bias: Tensor, temperature: float) -> dict[str, Tensor]:
    """The scores c·head + bias at a temperature, as weights for raw features."""
    weight = space.basis[:, : len(head)] @ head / temperature
    offset = bias / temperature - space.centre @ weight
    return {"weight": weight.float(), "bias": offset.float(), "temperature": scalar(temperature)}


def as_model(site: ServerSite, weight: Tensor, bias: Tensor) -> Vector:
    """A linear head D×C as the network's vector."""
    names = site.network.layout.names
    return site.network.layout.pack({names[0]: weight.T.float(), names[1]: bias.float()})


def refuse(method: FedMoments, scenario: Scenario) -> Iterator[FedfewError]:
    """The backbone must be frozen."""
    if not scenario.frozen_backbone:
        problem = "fedmoments works on the features of a frozen backbone"
        yield FedfewError("E113", "method.name", problem, 'Set model.name = "efficientnet-lite0", model.train = "head"')


FEDMOMENTS = Entry(
    FedMoments,
    unfit={
        **dict.fromkeys(("fednova", "fltrust", "status"), SUMS),
        **dict.fromkeys(("median", "trimmed-mean", "krum"), SKEWED),
    },
    refuse=refuse,
)
