"""What clients answered in EM (fedmoments): a step counts every client once, whoever answered when.

few clients     the server keeps each client's latest sums s_k, with the step whose scores they answer:  s = Σ_k s_k
                A client that is away counts with its last answer, one that answers twice or late only once, and the
                sums do not depend on the order of answers (incremental EM, R. Neal and G. Hinton 1998)
many clients    sums are collected until they cover as many images as the survey, then
                s ← (1 − ρ_t) s + ρ_t · mean over the images collected,   ρ_t = t^(−0.6)
                (online EM, O. Cappé and E. Moulines 2009); a client counts once in a collection
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FORGETTING = 0.6
PREFIX = "answers/"
"""Entries of the server's state that belong to one client; checkpoints write each to a file of its own."""


@dataclass(frozen=True, eq=False)
class Answer:
    """A client's sums; the first entry is the step that they answer."""

    client: int
    images: int
    sums: Tensor

    @property
    def step(self) -> int:
        return int(self.sums[0])


def kept(extra: Mapping[str, Tensor]) -> list[Answer]:
    """The latest answers of all clients, in the order of the clients."""
    stored = {int(name.removeprefix(PREFIX)): t for name, t in extra.items() if name.startswith(PREFIX)}
    return [Answer(client, int(stored[client][0]), stored[client][1:]) for client in sorted(stored)]


def keep(extra: Mapping[str, Tensor], answers: Iterable[Answer]) -> dict[str, Tensor]:
    """The state with these answers, each in place of the client's last, unless that is newer."""
    state = dict(extra)
    for answer in answers:
        name = f"{PREFIX}{answer.client}"
        if name not in state or int(state[name][1]) <= answer.step:
            state[name] = torch.cat([torch.tensor([float(answer.images)]), answer.sums.float()])
    return state


def answered(extra: Mapping[str, Tensor], client: int) -> int:
    """The step that a client answered last; −1 for none."""
    stored = extra.get(f"{PREFIX}{client}")
    return -1 if stored is None else int(stored[1])


def collect(extra: Mapping[str, Tensor], answers: Iterable[Answer], weights: Iterable[float]) -> dict[str, Tensor]:
    """The state with these answers added to the collection, but of each client only the first."""
    heard = extra.get("heard", torch.zeros(0, dtype=torch.int64))
    images = extra.get("collected_images", torch.zeros((), dtype=torch.float64))
    sums = extra.get("collected")
    for answer, weight in zip(answers, weights, strict=True):
        if not bool((heard == answer.client).any()):
            own = weight * answer.sums.double()
            heard = torch.cat([heard, torch.tensor([answer.client])])
            images, sums = images + weight * answer.images, own if sums is None else sums + own
    new = {"heard": heard, "collected_images": images}
    return {**extra, **new} if sums is None else {**extra, **new, "collected": sums}


def online(extra: Mapping[str, Tensor], step: int, *, everyone: bool = False) -> dict[str, Tensor]:
    """The state with the collection in the running mean ``sums``, or as it, if it is of everyone; a new collection."""
    rho = 1.0 if everyone else (step + 1) ** -FORGETTING
    mean = extra["collected"] / extra["collected_images"].clamp_min(1)
    running = rho * mean + (1 - rho) * extra["sums"] if "sums" in extra else mean
    rest = {name: t for name, t in extra.items() if name not in ("heard", "collected", "collected_images")}
    return rest | {"sums": running}


@dataclass(frozen=True, eq=False)
class Heard:
    """What is known of the present step after a round."""

    extra: dict[str, Tensor]
    heard: float
    """Images that answered the present scores,"""
    known: float
    """of so many."""
    moved: float
    """The share of the former that changed class since the step before."""
    advanced: Callable[[], tuple[dict[str, Tensor], Tensor]]
    """The state and the sums of all clients for the M-step."""


Weights = Callable[[Sequence[Answer]], list[float]]


def few_heard(
    extra: Mapping[str, Tensor], answers: Sequence[Answer], weights: Weights, images: float, step: int
) -> Heard:
    """With these answers, where the latest of each client is kept; ``images`` were surveyed."""
    state = keep(extra, answers)
    everyone = kept(state)
    fresh = [answer for answer in everyone if answer.step == step]

    def advanced() -> tuple[dict[str, Tensor], Tensor]:
        parts = [weight * answer.sums.double() for weight, answer in zip(weights(everyone), everyone, strict=True)]
        return state, torch.stack(parts).sum(0)

    known = max(images, float(sum(answer.images for answer in everyone)))
    return Heard(state, float(sum(answer.images for answer in fresh)), known, moved_of(fresh), advanced)


def many_heard(
    extra: Mapping[str, Tensor], answers: Sequence[Answer], weights: Weights, images: float, step: int,
    *, everybody: bool = False,
) -> Heard:  # fmt: skip
    """With these answers, where they are collected until they cover as many images as were surveyed.

    ``whole``: answers are sums over many clients, so a collection of all images replaces the one before."""
    state = collect(extra, answers, weights(answers))

    def advanced() -> tuple[dict[str, Tensor], Tensor]:
        everyone = everybody and float(state["collected_images"]) >= images
        after = online(state, step, everyone=everyone)
        return after, images * after["sums"]

    return Heard(state, float(state["collected_images"]), images, moved_of(answers), advanced)


def moved_of(answers: Sequence[Answer]) -> float:
    """The share of images that changed class."""
    return sum(float(answer.sums[1]) for answer in answers) / max(sum(answer.images for answer in answers), 1)
