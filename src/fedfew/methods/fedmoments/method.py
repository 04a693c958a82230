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

basis.py       directions and units of what is sent
survey.py      second moments of all features            prior.py     how skewed sites become an advantage
em.py          a client's sums                           path.py      the server's M-step and model
answers.py     every client counts once                  share.py     the last word is the labels'
trust.py       sums unlike all others' count less        plausibility.py   sums that no images have
shift.py       sites with scanners of their own          bounded.py   noise that hides single images
forget.py      a model without one client's sums

Built on A. P. Dempster, N. M. Laird, D. B. Rubin 1977 (EM) and M. Saerens et al. 2002 (a site's own class mix).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedfew.aggregators import AGGREGATORS
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Expected, Layout, Payload, Schema, Vector
from fedfew.core.settings import Count, Doc, Fraction, Natural, NonNegative, Positive
from fedfew.core.types import ClientSite, Outcome, RoundEnd, ServerSite, ServerState, Trained, Updates
from fedfew.methods.entry import Entry, Federated, Scenario
from fedfew.methods.fedmoments.answers import Answer, answered, few_heard, kept, many_heard
from fedfew.methods.fedmoments.basis import REACH, Frame, basis_of, features, reads_of
from fedfew.methods.fedmoments.bounded import SKEW, Opened, step_answer, survey_sums
from fedfew.methods.fedmoments.em import SENT, TEMPERATURES, ClassSums, Shape, client_sums, packed, sent_scores
from fedfew.methods.fedmoments.forget import forgotten, keep_surveys
from fedfew.methods.fedmoments.path import Path, Rule, paths_of
from fedfew.methods.fedmoments.plausibility import Implausible
from fedfew.methods.fedmoments.prior import Known
from fedfew.methods.fedmoments.share import (
    NOTHING,
    UNKNOWN,
    exceeds,
    factor_of,
    folds_of,
    held_out,
    judged_share,
    label_model,
    least,
)
from fedfew.methods.fedmoments.shift import SHIFT, Shift, shift_of
from fedfew.methods.fedmoments.survey import Space, Tally, moments_of
from fedfew.methods.fedmoments.trust import class_weights, survey_weights
from fedfew.training.supervised import train_server
from fedfew.training.updates import scalar
from fedfew.transforms.compression import Compressed, Int8

NEW = 0.25
"""The survey ends when at most this share of a round's clients are new."""
SHARPEST = 1000.0
"""Largest sharpness of scores that a site computes, see ``ClassScores.sharpness``; on CIFAR-10 it was 21."""
SMALLEST = 1e-7
"""Smallest scale that a site divides by: with 0 one image's y is not a number, and neither is the sum of all."""


@dataclass(frozen=True)
class FedMoments(Federated):
    """Class moments from clients of different class mix; for models with a frozen backbone."""

    directions: Annotated[
        Natural, Doc("directions of the backbone's classifier in which clients send sums; 0: all features")
    ] = 384
    width: Annotated[Count, Doc("number of principal directions that EM uses")] = 128
    mix: Annotated[
        Literal["sites", "even", "labels"],
        Doc("class shares over all clients: halfway between equal and what EM finds, equal, or those of the labels"),
    ] = "sites"
    confidence: Annotated[
        Fraction, Doc("mean confidence that the temperature is set to, before a client's class mix counts")
    ] = 0.75
    label_weight: Annotated[NonNegative, Doc("κ: how many unlabeled images one label outweighs in a class mean")] = 20.0
    evidence: Annotated[
        Positive, Doc("how many images of each class the prior assumes when it shrinks a class mean")
    ] = 30.0
    steps: Annotated[Count, Doc("steps in which a client estimates its own class mix")] = 10
    settled: Annotated[
        Fraction, Doc("EM stops when the share of images that change class falls below this, or rises")
    ] = 0.05
    survey: Annotated[Count, Doc("images to survey before EM starts; all, if there are fewer")] = 5000
    hear: Annotated[
        Fraction, Doc("share of the images surveyed that the answers must cover before EM takes a step")
    ] = 0.5
    patience: Annotated[Count, Doc("rounds without a new answer after which a step is taken with fewer")] = 3
    folds: Annotated[int, Ge(2), Doc("parts of the labels, each of which judges models that have not seen it")] = 4
    fold_directions: Annotated[Count, Doc("directions that the models of folds use")] = 128
    scanners: Annotated[
        bool, Doc("whether to look for sites whose scanner differs from the one of the labels, and to take it back")
    ] = True
    names: Annotated[bool, Doc("whether to use what the backbone knows of the classes' names")] = True
    most_steps: Annotated[
        Natural, Doc("number of steps of EM, whether classes have settled or not; 0: until they have")
    ] = 0
    image_noise: Annotated[
        NonNegative, Doc('noise that hides single images; with privacy.unit = "image" it is privacy.noise')
    ] = 0.0
    sums_only: Annotated[
        bool,
        Doc("use nothing of a single client, as secure sums need it: neither how their means differ nor trust in each"),
    ] = False
    remember: Annotated[Natural, Doc("number of clients up to which each one's latest sums are kept")] = 1000
    population: Annotated[Natural, Doc("total number of clients; 0: as in the config")] = 0

    @property
    def many(self) -> bool:
        """Whether clients are too many to keep what each one answered, or nobody is told."""
        return self.population > self.remember or self.sums_only

    def shape(self, classes: int, features: int) -> Shape:
        """What a client sends in a step of EM."""
        width = min(self.directions or features, features)
        return Shape(classes, width, self.folds, min(self.fold_directions, width))

    def before_clients(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """σ: a turn of server-only training."""
        return replace(state, sigma=self._trained(state.sigma, [state.round], site, rng))

    def warm_up(self, state: ServerState, site: ServerSite, rng: torch.Generator) -> ServerState:
        """The model from the labels alone: server-only training, and names as far as they help; the clients' units."""
        x, labels = features(site.labeled.samples), site.labeled.labels
        sigma = self._trained(state.omega, range(state.round + 1), site, rng)
        fold, moved = folds_of(labels, site.classes, self.folds), moved_of(site) if self.scanners else None

        def without(rest: Tensor) -> tuple[Tensor, Tensor]:
            others = replace(site, labeled=site.labeled.take(rest.nonzero()[:, 0]))
            return head_of(site, self._trained(state.omega, range(self.server.sgd.rounds), others, rng))

        plain = held_out(x, fold, moved, without)
        own = label_model(x, labels, site.classes, fold, names_of(site) if self.names else None, moved)
        judged = fold != UNKNOWN
        before, factor = plain[:1, judged], factor_of(0, own.names > 0, site.classes, self.folds)
        mine, of_server = judged_share(own.held_out[:1, judged], before, before, labels[judged], factor).parts
        frame = Frame.of(x @ basis_of(site.network, self.directions), even=self.image_noise > 0)
        extra = {"origin": frame.origin, "scale": frame.scale, "own_names": torch.tensor(own.names)}
        extra |= {"own": mine * as_model(site, own.weight, own.bias), "own_beside": scalar(of_server)}
        extra |= {"held_out": (mine * own.held_out + of_server * plain).float(), "plain": plain.float()}
        return replace(state, omega=mixed(extra, sigma), sigma=sigma, extra=extra)

    def _trained(self, start: Vector, rounds: Iterable[int], site: ServerSite, rng: torch.Generator) -> Vector:
        """``start`` after the turns of these rounds on the labels alone."""
        for t in rounds:
            start = train_server(self.server, start, ServerState(t, start, start), site, rng)
        return start

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

    def after_clients(self, state: ServerState, updates: Updates, site: ServerSite, rng: torch.Generator) -> RoundEnd:
        """The sums of the clients, and the model with the labels' as it is now."""
        state, outcome = self._advanced(state, updates, site)
        return replace(state, omega=mixed(state.extra, state.sigma)), outcome

    def _advanced(self, state: ServerState, updates: Updates, site: ServerSite) -> RoundEnd:
        """The survey, until enough images are surveyed; then steps of EM, until the classes have settled."""
        if not self.asks(state):
            return state, Outcome(metrics={"settled": 1.0})
        shape = self.shape(*site.network.layout.shapes[0])
        if self.image_noise:
            noise = max((u.metrics.get("noise", self.image_noise) for u in updates), default=self.image_noise)
            state = replace(state, extra={**state.extra, "noise": scalar(noise)})
            updates = self._opened(state, updates, shape)
        updates = added_up(updates, state.round) if self.sums_only else updates
        twice = self.sums_only and max(state.participation.values(), default=0) > 1  # nobody is surveyed twice
        extra, new = self._surveyed(state, [] if twice else updates, site, shape)
        state = replace(state, extra=extra)
        images = Tally.of(extra, shape.width).images
        everyone = self.image_noise and len(state.participation) == self.population  # asking again would cost noise
        unknown = images < self.survey and new > NEW * len(updates) and not everyone
        if "weight" not in extra and (not images or unknown):
            return state, Outcome(metrics={"surveyed": images})
        try:
            return self._step(state, updates, site, shape) if "weight" in extra else self._begin(state, site, shape)
        except RuntimeError:  # torch's LinAlgError, for sums with much noise, say: the model stays
            return state, Outcome(metrics={"settled": 0.0})

    def _opened(self, state: ServerState, updates: Updates, shape: Shape) -> Updates:
        """Noisy answers as sums: new clients answered the survey, all others a step of EM."""
        opened = Opened(shape, float(state.extra["noise"]))
        if self.sums_only:
            return opened(updates, int(state.extra["step"]) if "weight" in state.extra else None)
        new = [u for u in updates if state.participation[u.client] == 1]
        known = [u for u in updates if state.participation[u.client] > 1]
        return [*opened(new, None), *opened(known, int(state.extra.get("step", scalar(0.0))))]

    def _begin(self, state: ServerState, site: ServerSite, shape: Shape) -> RoundEnd:
        """The sites' shifts, and the first scores: class means of the labels, shrunk by the clients' spread."""
        extra, gain = self._shifted(state.extra, site, shape)
        paths = self._paths(extra, site, shape)
        begun = packed([path.start(self._mix(path, None)) for path in paths], None)
        metrics = {"surveyed": Tally.of(extra, shape.width).images, "alpha": paths[0].prior.alpha, "shift": gain}
        metrics |= {"directions": float(paths[0].prior.seen), "names": float(extra["own_names"])}
        return replace(state, extra=extra | begun | {"step": scalar(0.0)}), Outcome(metrics=metrics)

    def _shifted(self, extra: Mapping[str, Tensor], site: ServerSite, shape: Shape) -> tuple[dict[str, Tensor], float]:
        """The state with the sites' shifts, if they have any, and how much more likely the survey is with them."""
        moved = moved_of(site)
        if not self.scanners or moved is None:
            return dict(extra), 0.0
        survey = Tally.of(extra, shape.width).survey(extra["scale"].double())
        displaced = moved.double() @ basis_of(site.network, self.directions)
        shift = shift_of(survey, self._labeled(extra, site), site.labeled.labels, site.classes, displaced)
        return (dict(extra), 0.0) if shift is None else ({**extra, **shift.tensors()}, shift.gain)

    def _surveyed(
        self, state: ServerState, updates: Updates, site: ServerSite, shape: Shape
    ) -> tuple[dict[str, Tensor], int]:
        """The state with the survey of the clients that answered for the first time, and their number."""
        width, size = shape.width, Tally.length(shape.width)
        scale = state.extra["scale"].double()
        sizes = (size, size + shape.length)
        first = updates if self.sums_only else [u for u in updates if state.participation[u.client] == 1]
        new = [u for u in first if u.examples and len(u.reply["sums"]) in sizes]
        sums = [u.reply["sums"][-size:].double() for u in new]
        v = self._labeled(state.extra, site)
        weights = survey_weights(
            [own[:width] / u.examples * scale for own, u in zip(sums, new, strict=True)],
            [float(own[width : 2 * width].mean()) / u.examples for own, u in zip(sums, new, strict=True)],
            v, site.labeled.labels,
        ) if not self.image_noise else [1.0] * len(new)  # fmt: skip
        tally = Tally.of(state.extra, width)
        for update, own, weight in zip(new, sums, weights, strict=True):
            tally = tally.add(own, update.examples, weight) if weight else tally
        extra = state.extra | tally.tensors()
        if not self.sums_only:
            extra = keep_surveys(extra, len(state.participation), zip(new, weights, sums, strict=True))
        return extra, len(new)

    def _step(self, state: ServerState, updates: Updates, site: ServerSite, shape: Shape) -> RoundEnd:
        """Add the clients' sums; once they cover enough images, a step of EM and a new model."""
        lengths = (shape.length, shape.length + Tally.length(shape.width))
        read = [(u, u.reply["sums"]) for u in updates if u.examples]
        answers = [Answer(u.client, u.examples, sums[: shape.length]) for u, sums in read if len(sums) in lengths]
        paths, scale = self._paths(state.extra, site, shape), state.extra["scale"].double()
        weights = partial(self._weights, space=paths[0].space, shape=shape, scale=scale)
        images, step = Tally.of(state.extra, shape.width).images, int(state.extra["step"])
        if self.many:
            news = many_heard(state.extra, answers, weights, images, step, everybody=self.sums_only)
        else:
            news = few_heard(state.extra, answers, weights, images, step)
        extra, most = news.extra, news.heard >= self.hear * news.known
        if self.image_noise and not self.many:  # numbers of images are noisy: clients count instead
            most = sum(a.step == step for a in kept(extra)) >= self.hear * len(state.participation)
        waited = 0.0 if answers else float(extra.get("waited", scalar(0.0))) + 1
        counted = sum(answer.images for answer in answers)
        shares = {} if self.sums_only else {answer.client: answer.images / counted for answer in answers}
        metrics = {"heard": news.heard / max(news.known, 1.0)}
        if not news.heard or not (most or waited >= self.patience):
            return replace(state, extra=extra | {"waited": scalar(waited)}), Outcome(shares, metrics)
        metrics |= {"moved": news.moved}
        last = float(extra.get("moved", scalar(2.0)))
        if most and not self.most_steps and news.moved >= last:  # what is left is noise: the step before was the last
            return replace(state, extra=extra | {"done": scalar(1.0)}), Outcome(shares, metrics | {"settled": 1.0})
        extra, total = news.advanced()
        sums = [part.scaled(scale) for part in shape.read(total)]
        judged, trust = self._judged(extra, site, paths, sums)
        scores = [path.step(part, self._mix(path, part)) for path, part in zip(paths, sums, strict=True)]
        done = float(step + 1 >= self.most_steps if self.most_steps else most and news.moved < self.settled)
        after = {"moved": news.moved if most else last, "done": done, "step": step + 1.0, "waited": 0.0}
        extra = extra | judged | packed(scores, extra) | {name: scalar(value) for name, value in after.items()}
        metrics |= {"alpha": scores[0].alpha, "trust": trust, "temperature": scores[0].temperature, "settled": done}
        return replace(state, extra=extra), Outcome(shares, metrics)

    def forget(self, state: ServerState, client: int, site: ServerSite) -> ServerState | None:
        """The model without a client's survey and last sums; the others' sums stay as they answered them."""
        shape = self.shape(*site.network.layout.shapes[0])
        extra = forgotten(state.extra, client, shape.width)
        if extra is None:
            return None
        answers = kept(extra)
        extra = {name: t for name, t in extra.items() if name not in ("sites", "beside")}
        if answers and "weight" in extra:
            paths, scale = self._paths(extra, site, shape), extra["scale"].double()
            weights = self._weights(answers, paths[0].space, shape, scale)
            parts = [weight * answer.sums.double() for weight, answer in zip(weights, answers, strict=True)]
            sums = [part.scaled(scale) for part in shape.read(torch.stack(parts).sum(0))]
            extra |= self._judged(extra, site, paths, sums)[0]
        omega = mixed(extra, state.sigma)
        left = {k: count for k, count in state.participation.items() if k != client}
        return replace(state, omega=omega, extra=extra, participation=left)

    def _labeled(self, extra: Mapping[str, Tensor], site: ServerSite) -> Tensor:
        """The server's labeled images v (N×p)."""
        frame = Frame.sent(extra)
        return frame.scale * frame(features(site.labeled.samples), basis_of(site.network, self.directions))

    def _weights(self, answers: Sequence[Answer], space: Space, shape: Shape, scale: Tensor) -> list[float]:
        """How much each of these answers counts, see ``trust.py``."""
        if self.image_noise:  # which is larger than the differences between sites
            return [1.0] * len(answers)
        parts = [shape.read(answer.sums.double())[0].scaled(scale) for answer in answers]
        return class_weights(parts, space) if parts else []

    def _mix(self, path: Path, sums: ClassSums | None) -> Tensor:
        """m: the class shares over all clients."""
        counts = path.counts
        even = torch.full_like(counts, 1 / len(counts))
        if self.mix == "labels":
            return counts / counts.sum()
        return even if self.mix == "even" or sums is None else (even + sums.counts / sums.counts.sum()) / 2

    def _paths(self, extra: Mapping[str, Tensor], site: ServerSite, shape: Shape) -> list[Path]:
        """The path of all labels, then those without a fold."""
        shift, basis = Shift.sent(extra), basis_of(site.network, self.directions)
        names = names_of(site) if self.names else None
        known = Known(reads_of(site.network, basis), None if names is None else names @ basis)
        noisy = self.image_noise > 0
        alpha = SKEW if noisy or self.sums_only else None if shift is None else shift.alpha
        rule = Rule(self.width, self.confidence, self.label_weight, self.evidence, alpha, not noisy, known)
        survey = Tally.of(extra, shape.width).survey(extra["scale"].double())
        if noisy:
            survey = replace(survey, floor=Opened(shape, float(extra["noise"])).floor(survey, float(extra["scale"][0])))
        survey = survey if shift is None else shift.aligned(survey)
        v = self._labeled(extra, site)
        labels, fold = site.labeled.labels, folds_of(site.labeled.labels, site.classes, self.folds)
        return paths_of(rule, survey, v, labels, site.classes, fold, range(self.folds), shape.fold_width)

    def _judged(
        self, extra: Mapping[str, Tensor], site: ServerSite, paths: Sequence[Path], sums: Sequence[ClassSums]
    ) -> tuple[dict[str, Tensor], float]:
        """The sites' part of the model and the factor of the labels' beside it, for the state; and the sites' share."""
        basis, labels = basis_of(site.network, self.directions), site.labeled.labels
        v, shifted = self._labeled(extra, site), SHIFT[0] in extra
        fold, moved = folds_of(labels, site.classes, self.folds), moved_of(site) if shifted else None
        moved = None if moved is None else moved.double() @ basis
        models = [path.model(part) for path, part in zip(paths[1:], sums[1:], strict=True)]

        def without(rest: Tensor) -> tuple[Tensor, Tensor]:
            weight, bias = models[int(fold[~rest][0])]
            return torch.cat([weight, weight.new_zeros(v.shape[1] - len(weight), weight.shape[1])]), bias

        judged = fold != UNKNOWN
        sites = held_out(v, fold, moved, without)
        own, prior = labels[judged], paths[0].prior
        factor = factor_of(prior.seen, bool(extra["own_names"]), site.classes, self.folds)
        alone, plain = (extra[name].double()[: len(sites), judged] for name in ("held_out", "plain"))
        share = judged_share(sites[:, judged], alone, plain, own, factor)
        weight, bias = paths[0].model(sums[0])
        seen, unseen = (least(scores[:, judged], own)[0] for scores in ((v @ weight + bias)[None], sites[:1]))
        if len(own) and exceeds(seen - unseen):
            share = NOTHING
        mine, of_server = share.parts
        part = as_model(site, mine * basis @ weight, mine * (bias - extra["origin"].double() @ weight))
        return {"sites": part, "beside": scalar(of_server)}, share.sites

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


def as_model(site: ServerSite, weight: Tensor, bias: Tensor) -> Vector:
    """A linear head D×C as the network's vector."""
    names = site.network.layout.names
    return site.network.layout.pack({names[0]: weight.T.float(), names[1]: bias.float()})


def head_of(site: ServerSite, vector: Vector) -> tuple[Tensor, Tensor]:
    """The network's vector as a linear head: D×C and C."""
    views, (weight, bias) = site.network.layout.views(vector), site.network.layout.names
    return views[weight].double().T, views[bias].double()


def mixed(extra: Mapping[str, Tensor], sigma: Vector) -> Vector:
    """The model: the sites' part, that of names, and server-only training as far as it is."""
    own = extra["own_beside"].float() * sigma + extra["own"]
    return extra["sites"] + extra["beside"].float() * own if "sites" in extra else own


def moved_of(site: ServerSite) -> Tensor | None:
    """How scanner-like changes displace the labeled images (S×D); None where that is not known."""
    return getattr(site.labeled.samples, "moved", None)


def names_of(site: ServerSite) -> Tensor | None:
    """What the backbone knows of the classes' names, as weights of the features (C×D); None if nothing."""
    names: Tensor | None = getattr(site.labeled.samples, "names", None)
    return None if names is None else names.double()


def added_up(updates: Updates, round: int) -> Updates:
    """The sum over the clients of a round as one update; of a secure sum it is that already."""
    longest = max((len(u.reply["sums"]) for u in updates), default=0)
    parts = [u for u in updates if len(u.reply["sums"]) == longest]
    if not parts:
        return []
    total = torch.stack([u.reply["sums"].double() for u in parts]).sum(0)
    return [replace(parts[0], client=round, reply={"sums": total}, examples=sum(u.examples for u in parts))]


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
    """The number of clients, where it is known; no shift with privacy, since it depends on all images of a site, and
    nothing of single clients with secure sums."""
    known: dict[str, Any] = {}
    if not method.population and scenario.clients is not None:
        known["method.population"] = scenario.clients
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
