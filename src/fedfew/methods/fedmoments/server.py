"""The server's part of fedmoments: the labels alone, the survey, steps of EM, and the labels' last word.

warm-up        server-only training, names as far as they help, and the units in which clients send sums
survey         until enough images are known; then the sites' shifts, and the first scores
step of EM     once the answers cover enough images: class means, the next scores, what the sites count
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fedfew.core.layout import Vector
from fedfew.core.types import Outcome, RoundEnd, ServerSite, ServerState, Updates
from fedfew.methods.fedmoments.answers import Answer, few_heard, kept, many_heard
from fedfew.methods.fedmoments.basis import Frame, basis_of, features, reads_of
from fedfew.methods.fedmoments.bounded import SKEW, Opened
from fedfew.methods.fedmoments.em import ClassSums, Shape, packed
from fedfew.methods.fedmoments.forget import forgotten, keep_surveys
from fedfew.methods.fedmoments.path import Path, Rule, paths_of
from fedfew.methods.fedmoments.prior import Known
from fedfew.methods.fedmoments.settings import Settings
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
from fedfew.methods.fedmoments.survey import Space, Tally
from fedfew.methods.fedmoments.trust import class_weights, survey_weights
from fedfew.training.supervised import train_server
from fedfew.training.updates import scalar

NEW = 0.25
"""The survey ends when at most this share of a round's clients are new."""


@dataclass(frozen=True)
class ServerSteps(Settings):
    """What the server does before clients answer, and with their answers."""

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
