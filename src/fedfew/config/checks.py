"""What does not go together: method, aggregator, model and scenario, checked against each other as a config loads."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from fedfew.aggregators.robust import krum_misfit
from fedfew.config.names import find, is_own
from fedfew.core.errors import FedfewError
from fedfew.core.types import Algorithm, Oracle
from fedfew.data import BRING_SITES
from fedfew.methods import METHODS
from fedfew.objectives import OBJECTIVES
from fedfew.runtime.cohort import cohort_size
from fedfew.runtime.stack import NO_BATCH_NORM
from fedfew.transforms.compression import Compression, vectors
from fedfew.transforms.privacy import unprotected

Table = dict[str, Any]

COHORT_NEEDS: dict[str, Callable[..., str]] = {"krum": krum_misfit}
"""Aggregators that need a number of clients: each says why a cohort does not do, or nothing."""
STRETCH = ("fednova", "fltrust")
"""Aggregators that can go beyond the clients' models, which a running variance must not."""
OPEN_ROUNDS = 3
"""How many rounds' worth of open images ds-fl gets where the config names no number."""


def settle(document: Table) -> None:
    """Fill in what follows from other keys and was left open."""
    needs_open = "subset" in document["method"] and document["dataset"]["name"] not in BRING_SITES
    if needs_open and not document["dataset"]["open"]:
        document["dataset"]["open"] = OPEN_ROUNDS * document["method"]["subset"]


def misfits(document: Table, plain: Algorithm) -> Iterator[FedfewError]:
    """Every pair of settings that excludes each other; ``plain`` is the method without compression and norm policy."""
    yield from _aggregator(document)
    yield from _vote(document)
    yield from _privacy(document, plain)
    yield from _wire(document, plain)
    yield from _norm(document, plain)
    yield from _open_set(document)
    yield from _validation(document)
    yield from _own(document)
    yield from _engine(document)


def _engine(document: Table) -> Iterator[FedfewError]:
    if document["engine"]["stack"] == 1:
        return
    fleet = document["fleet"]
    if fleet["kind"] == "flower" or (fleet["kind"] == "pool" and fleet["workers"]):
        what = "a stack of clients is trained in one process, so there can be no workers and no sites"
        yield FedfewError("E113", "engine.stack", what, 'Set fleet.kind = "inline", or engine.stack = 1')
    if document["engine"]["compile"]:
        what = "stacked passes are not compiled"
        yield FedfewError("E113", "engine.stack", what, "Set engine.compile = false, or engine.stack = 1")
    if document["model"].get("norm") == "batch":
        yield FedfewError("E113", "engine.stack", NO_BATCH_NORM, 'Set engine.stack = 1, or model.norm = "group"')


def _own(document: Table) -> Iterator[FedfewError]:
    if document["fleet"]["kind"] == "inline":
        return
    for section in ("method", "objective", "aggregator", "model"):
        name = document[section]["name"]
        if name.startswith("__main__:"):
            what = f"{name!r} lives in a script or notebook, which the processes that train clients cannot import"
            yield FedfewError("E113", f"{section}.name", what, 'Put it into a file, or set fleet.kind = "inline"')


def _validation(document: Table) -> Iterator[FedfewError]:
    if document["dataset"]["validation"] or document["dataset"]["name"] in BRING_SITES:
        return
    for section in ("server", "client"):
        if document[section]["schedule"] == "plateau":
            what = "a plateau is seen on validation images, and dataset.validation is 0"
            yield FedfewError("E113", f"{section}.schedule", what, "Set dataset.validation, or use the cosine schedule")
    if document["method"].get("temperature") == 0:
        what = "a temperature of 0 is found from the accuracy on validation images, and dataset.validation is 0"
        yield FedfewError("E113", "method.temperature", what, "Set dataset.validation, or give a temperature")


def _aggregator(document: Table) -> Iterator[FedfewError]:
    options = dict(document["aggregator"])
    name = options.pop("name")
    if name in COHORT_NEEDS and document["dataset"]["name"] not in BRING_SITES:
        cohort = cohort_size(document["participation"], document["clients"])
        if what := COHORT_NEEDS[name](cohort, **options):
            remedy = "Raise participation or clients, lower aggregator.faulty or aggregator.select, or use median"
            yield FedfewError("E107", "aggregator", what, remedy)


def _vote(document: Table) -> Iterator[FedfewError]:
    if document["vote"]["prior"] == "server":
        return
    wanted = inspect.signature(find("method", document["method"]["name"], METHODS)).parameters
    objective = document["objective"]["name"]
    if "vote" not in wanted:
        fits = [name for name, make in METHODS.items() if "vote" in inspect.signature(make).parameters]
        name = document["method"]["name"]
        what = f"method {name} makes no pseudo-labels by vote, so vote.prior has no meaning"
        if name == "fedfew":
            what = "method fedfew has this estimate already, under method.steps"
        yield FedfewError("E113", "vote.prior", what, f"These have a vote: {', '.join(fits)}")
    elif "objective" in wanted and not find("objective", objective, OBJECTIVES)().labels:
        fits = [name for name, make in OBJECTIVES.items() if make().labels]
        what = f"objective {objective} makes no pseudo-labels, so vote.prior has no meaning"
        yield FedfewError("E113", "vote.prior", what, f"These do: {', '.join(fits)}")


def unused_objective(document: Table) -> FedfewError | None:
    """Why an objective that was asked for would be ignored; nothing if it is used."""
    name = document["method"]["name"]
    if "objective" in inspect.signature(find("method", name, METHODS)).parameters:
        return None
    fits = [known for known, make in METHODS.items() if "objective" in inspect.signature(make).parameters]
    what = f"method {name} has an objective of its own, so [objective] has no meaning"
    return FedfewError("E113", "objective.name", what, f"These take one: {', '.join(fits)}")


def _privacy(document: Table, plain: Algorithm) -> Iterator[FedfewError]:
    privacy, name, model = document["privacy"], document["method"]["name"], document["model"]
    if privacy["noise"] and not privacy["clip"]:
        what = "noise without clipping protects nothing: one client's change can be as large as it likes"
        yield FedfewError("E113", "privacy.noise", what, "Set privacy.clip")
    if not privacy["clip"]:
        return
    if isinstance(plain, Oracle) or unprotected(plain):
        what = f"method {name} sends more than a changed model, which clipping and noise do not cover"
        yield FedfewError("E113", "privacy.clip", what, "Use a method that sends models, e.g. fedmix or fedavg")
    if model.get("norm") == "batch" and privacy["noise"] and document["norm"]["policy"] != "server-data":
        what = "noise can make a batch norm's running variance negative"
        yield FedfewError("E113", "model.norm", what, 'Set model.norm = "group", or norm.policy = "server-data"')


def _wire(document: Table, plain: Algorithm) -> Iterator[FedfewError]:
    if Compression(**document["compression"]).codec() is None:
        return
    name = document["method"]["name"]
    if isinstance(plain, Oracle):
        what = f"method {name} is a bound that only a simulation has: nothing of it travels"
        yield FedfewError("E113", "compression.kind", what, "Remove the section [compression]")
    elif not vectors(plain):
        what = f"method {name} does not send whole models, so there is no vector to compress"
        yield FedfewError("E113", "compression.kind", what, "Remove the section [compression], or use another method")


def _norm(document: Table, plain: Algorithm) -> Iterator[FedfewError]:
    model, policy, method = document["model"], document["norm"]["policy"], document["method"]["name"]
    norm = model.get("norm", "unknown" if is_own(model["name"]) else "none")
    if norm == "none" and (method == "fedbn" or policy == "local"):
        what = f"model {model['name']} has no normalisation layers, so clients have nothing to keep to themselves"
        yield FedfewError("E113", "norm.policy" if policy == "local" else "method.name", what, _NORMALISED)
    if norm not in ("batch", "unknown") and policy == "server-data":
        what = f"model {model['name']} has no batch norm, so there are no statistics to measure"
        yield FedfewError("E113", "norm.policy", what, 'Set model.norm = "batch", or norm.policy = "average"')
    if policy != "average" and (isinstance(plain, Oracle) or vectors(plain)[:1] != ["psi"]):
        what = f"norm.policy = {policy!r} needs clients that send models, which method {method}'s do not"
        yield FedfewError("E113", "norm.policy", what, 'Use norm.policy = "average" or another method')
    aggregator = document["aggregator"]["name"]
    if norm == "batch" and policy == "average" and method != "fedbn" and aggregator in STRETCH:
        what = (
            f"aggregator {aggregator} can go beyond the clients' models, and a running variance below zero is no model"
        )
        yield FedfewError(
            "E113", "model.norm", what, 'Use norm.policy = "local" or "server-data", or model.norm = "group"'
        )


_NORMALISED = 'Set model.norm = "batch" or "group", or use another method'


def _open_set(document: Table) -> Iterator[FedfewError]:
    subset, open_images = document["method"].get("subset"), document["dataset"]["open"]
    if subset is None:
        return
    if document["dataset"]["name"] in BRING_SITES:
        what = f"method {document['method']['name']} needs public images, and a dataset of sites has none to spare"
        yield FedfewError("E113", "method.name", what, "Use a method that sends models")
    elif open_images < subset:
        what = f"method.subset = {subset} open images a round, but dataset.open = {open_images}"
        yield FedfewError("E113", "method.subset", what, "Raise dataset.open or lower method.subset")
