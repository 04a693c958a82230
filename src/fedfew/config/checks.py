"""Checks between settings: method, aggregator, model and scenario must fit together when a config is loaded."""

from collections.abc import Callable, Iterator
from typing import Any

from fedfew.aggregators.robust import krum_misfit
from fedfew.config.names import OWN_CODE, entry_of, find, imported, is_own
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Layout
from fedfew.core.types import Method, Oracle
from fedfew.methods import METHODS
from fedfew.methods.entry import Entry, Scenario
from fedfew.objectives import OBJECTIVES
from fedfew.runtime.cohort import cohort_size
from fedfew.transforms.compression import Compression, vectors
from fedfew.transforms.norm_policy import MEASURED, LocalNorm
from fedfew.transforms.privacy import unprotected

Table = dict[str, Any]

COHORT_NEEDS: dict[str, Callable[..., str]] = {"krum": krum_misfit}
"""Aggregators that need a number of clients: each returns why a cohort is not enough, or an empty text."""
TOY = Layout(("weight",), ((1, 1),), (0, 1), 1)
"""A small layout, to get the schema of a method's replies."""
STRETCH = ("fednova", "fltrust")
"""Aggregators that can go beyond the clients' models, which a running variance must not."""
AUGMENTS = ("none", "weak", "strong")
STEPS_COUNT = ("fednova", "scaffold")
"""Aggregator and method that infer from the number of a client's steps how far it went."""
SITES = "sites"
"""The partition of a dataset with its own sites: nothing is drawn."""


def misfits(document: Table, entry: Entry[Any], method: Method) -> Iterator[FedfewError]:
    """Every pair of settings that exclude each other; the method reports what concerns only itself."""
    own = list(entry.refuse(method, scenario_of(document)))
    yield from own
    yield from _aggregator(document)
    if all(fault.place != "vote.prior" for fault in own):
        yield from _vote(document)
    yield from _privacy(document, method)
    yield from _compression(document, entry, method)
    yield from _norm(document, entry, method)
    yield from _validation(document)
    yield from _annealing(document)
    yield from _augment(document)
    yield from _optimizer(document)
    yield from _client_labels(document, entry, method)
    yield from _own(document)


def scenario_of(document: Table) -> Scenario:
    """What a method may know of a resolved config."""
    drawn, fleet = document["partition"]["kind"] != SITES, document["fleet"]
    return Scenario(
        clients=document["clients"] if drawn else None,
        validation=document["dataset"]["validation"] if drawn else None,
        open=document["dataset"]["open"] if drawn else None,
        frozen_backbone=document["model"].get("train") == "head",
        real_sites=fleet["kind"] == "flower" and bool(fleet["network"]),
        class_prior=document["vote"]["prior"],
    )


def _own(document: Table) -> Iterator[FedfewError]:
    if document["fleet"]["kind"] == "inline":
        return
    for section, key in OWN_CODE:
        name = document[section][key]
        if name.startswith("__main__:"):
            what = f"{name!r} is defined in a script or notebook, which the processes that train clients cannot import"
            yield FedfewError("E113", f"{section}.{key}", what, 'Put it into a file, or set fleet.kind = "inline"')


def _validation(document: Table) -> Iterator[FedfewError]:
    if document["dataset"]["validation"] or document["partition"]["kind"] == SITES:
        return
    for section in ("server", "client"):
        if document[section]["schedule"] == "plateau":
            what = "a plateau is detected on validation images, but dataset.validation is 0"
            yield FedfewError("E113", f"{section}.schedule", what, "Set dataset.validation, or use the cosine schedule")


def _annealing(document: Table) -> Iterator[FedfewError]:
    if document["server"]["annealing"] == "none":
        return
    begun = {"method.warmup": document["method"].get("warmup"), "start": document["start"]}
    for key, value in begun.items():
        if value:
            what = "annealing leaves out labels that are already learned, and after that start all of them are"
            remedy = f'Remove {key}, or set server.annealing = "none"'
            yield FedfewError("E113", "server.annealing", f"{key} = {value!r}: {what}", remedy)


def _augment(document: Table) -> Iterator[FedfewError]:
    name = document["server"]["augment"]
    if name not in AUGMENTS and not is_own(name):
        remedy = f"Use one of {', '.join(AUGMENTS)}, or package.module:function of your own"
        yield FedfewError("E105", "server.augment", f"there is no augmentation {name!r}", remedy)
    name, method = document["client"]["augment"], document["method"]["name"]
    if name == "standard":
        return
    if not is_own(name):
        remedy = "Use standard, or package.module:function of your own"
        yield FedfewError("E105", "client.augment", f"there is no strong view {name!r}", remedy)
        return
    imported(name, "client.augment")
    objective = find("objective", document["objective"]["name"], OBJECTIVES) if _takes(method, "objective") else None
    if not getattr(objective or entry_of(method), "strong_views", False):
        what = f"the clients of method {method} use no strong view of their images"
        yield FedfewError("E113", "client.augment", what, "Use e.g. fedfew, semifl, or fedavg with objective fixmatch")


def _optimizer(document: Table) -> Iterator[FedfewError]:
    """FedNova and SCAFFOLD assume that clients take steps of plain SGD, so that distance follows from their number."""
    if document["client"]["optimizer"] == "sgd":
        return
    for key in ("method.name", "aggregator.name"):
        section, _, part = key.partition(".")
        if (name := document[section][part]) in STEPS_COUNT:
            what = f"{name} assumes steps of SGD; AdamW's have another length"
            yield FedfewError("E113", "client.optimizer", what, f'Use "sgd", or another {section}')


def _client_labels(document: Table, entry: Entry[Any], method: Method) -> Iterator[FedfewError]:
    """Labels at clients are for methods with a loss for them; without any the server needs its own."""
    bound = isinstance(method, Oracle) or entry.pools
    if not document["client_labels"]["each"]:
        if not document["labels"]:
            remedy = "Set labels to 1 or more, or give clients some with client_labels.each"
            yield FedfewError("E103", "labels", "there are no labels, neither at the server nor at any client", remedy)
        return
    name = document["method"]["name"]
    if not _takes(name, "client_labels") and entry.asks_clients and not bound:
        fits = ", ".join(known for known in METHODS if _takes(known, "client_labels"))
        what = f"method {name} is for labels at the server: its clients have no loss for labels of their own"
        yield FedfewError("E113", "client_labels.each", what, f"These have one: {fits}")
    if document["fleet"]["kind"] == "flower" and document["fleet"]["network"]:
        what = "the sites of a network have images only; labels at clients are a scenario of the simulation"
        yield FedfewError("E113", "client_labels.each", what, "Put the labels you have into the server's folder")
    if not document["labels"]:
        yield from _no_server_labels(document, entry)


def _takes(method: str, part: str) -> bool:
    """Whether a method takes some part of the config."""
    return entry_of(method).takes(part)


def _no_server_labels(document: Table, entry: Entry[Any]) -> Iterator[FedfewError]:
    """What a server without labels cannot do."""
    wanted = {
        "method.name": "" if entry.asks_clients or entry.pools else document["method"]["name"],
        "vote.prior": document["vote"]["prior"].replace("server", ""),
        "norm.policy": document["norm"]["policy"] if document["norm"]["policy"] == "server-data" else "",
        "aggregator.name": document["aggregator"]["name"] if document["aggregator"]["name"] == "fltrust" else "",
    }
    for key, value in wanted.items():
        if value:
            what = f"{key} = {value!r} needs the server's labels, but labels is 0"
            yield FedfewError("E113", "labels", what, f"Set labels to 1 or more, or change {key}")


def _aggregator(document: Table) -> Iterator[FedfewError]:
    options = dict(document["aggregator"])
    name = options.pop("name")
    if name in COHORT_NEEDS and document["partition"]["kind"] != SITES:
        cohort = cohort_size(document["participation"], document["clients"])
        if what := COHORT_NEEDS[name](cohort, **options):
            remedy = "Raise participation or clients, lower aggregator.faulty or aggregator.select, or use median"
            yield FedfewError("E107", "aggregator", what, remedy)


def _vote(document: Table) -> Iterator[FedfewError]:
    if document["vote"]["prior"] == "server":
        return
    name, objective = document["method"]["name"], document["objective"]["name"]
    if not _takes(name, "vote"):
        fits = [known for known in METHODS if _takes(known, "vote")]
        what = f"method {name} makes no pseudo-labels by vote, so vote.prior has no effect"
        yield FedfewError("E113", "vote.prior", what, f"These have a vote: {', '.join(fits)}")
    elif _takes(name, "objective") and not find("objective", objective, OBJECTIVES)().labels:
        fits = [name for name, make in OBJECTIVES.items() if make().labels]
        what = f"objective {objective} makes no pseudo-labels, so vote.prior has no effect"
        yield FedfewError("E113", "vote.prior", what, f"These do: {', '.join(fits)}")


def unused_objective(document: Table) -> FedfewError | None:
    """Why an objective in the config would be ignored; None if it is used."""
    name = document["method"]["name"]
    if _takes(name, "objective"):
        return None
    fits = [known for known in METHODS if _takes(known, "objective")]
    what = f"method {name} has an objective of its own, so [objective] has no effect"
    return FedfewError("E113", "objective.name", what, f"These take one: {', '.join(fits)}")


def _privacy(document: Table, method: Method) -> Iterator[FedfewError]:
    privacy, name, model = document["privacy"], document["method"]["name"], document["model"]
    if privacy["noise"] and not privacy["clip"]:
        what = "noise without clipping protects nothing: one client's change can be arbitrarily large"
        yield FedfewError("E113", "privacy.noise", what, "Set privacy.clip")
    if not privacy["clip"]:
        return
    if isinstance(method, Oracle) or unprotected(method.reply_schema(TOY)):
        what = f"method {name} sends more than a changed model, which clipping and noise do not cover"
        yield FedfewError("E113", "privacy.clip", what, "Use a method that sends models, e.g. fedmix or fedavg")
    if model.get("norm") == "batch" and privacy["noise"] and document["norm"]["policy"] not in MEASURED:
        what = "noise can make a batch norm's running variance negative"
        yield FedfewError("E113", "model.norm", what, 'Set model.norm = "group", or norm.policy = "server-data"')


def _compression(document: Table, entry: Entry[Any], method: Method) -> Iterator[FedfewError]:
    if Compression(**document["compression"]).codec() is None or not entry.asks_clients:
        return
    name = document["method"]["name"]
    if isinstance(method, Oracle):
        what = f"method {name} is a bound that only a simulation has: it sends nothing"
        yield FedfewError("E113", "compression.kind", what, "Remove the section [compression]")
    elif not vectors(method.reply_schema(TOY)):
        what = f"method {name} does not send whole models, so there is no vector to compress"
        yield FedfewError("E113", "compression.kind", what, "Remove the section [compression], or use another method")


def _norm(document: Table, entry: Entry[Any], method: Method) -> Iterator[FedfewError]:
    model, policy, name = document["model"], document["norm"]["policy"], document["method"]["name"]
    norm = model.get("norm", "unknown" if is_own(model["name"]) else "none")
    stays = any(isinstance(transform, LocalNorm) for transform in entry.transforms)
    if norm == "none" and (stays or policy == "local"):
        what = f"model {model['name']} has no normalisation layers, so clients have nothing to keep"
        yield FedfewError("E113", "norm.policy" if policy == "local" else "method.name", what, _remedy(model))
    if norm not in ("batch", "unknown") and policy in MEASURED:
        what = f"model {model['name']} has no batch norm, so there are no statistics to measure"
        remedy = 'Set model.norm = "batch", or norm.policy = "average"' if "norm" in model else _remedy(model)
        yield FedfewError("E113", "norm.policy", what, remedy)
    if policy == "clients" and document["fleet"]["kind"] == "flower" and document["fleet"]["network"]:
        what = "statistics of all clients' images need them in one place, which only a simulation has"
        yield FedfewError("E113", "norm.policy", what, 'Use norm.policy = "server-data"')
    sends_models = not isinstance(method, Oracle) and vectors(method.reply_schema(TOY))[:1] == ["psi"]
    true_labels = isinstance(method, Oracle) and policy in MEASURED  # measured on ω; nothing is kept by clients
    if policy != "average" and entry.asks_clients and not sends_models and not true_labels:
        what = f"norm.policy = {policy!r} needs clients that send models, which method {name}'s do not"
        yield FedfewError("E113", "norm.policy", what, 'Use norm.policy = "average" or another method')
    aggregator = document["aggregator"]["name"]
    if norm == "batch" and policy == "average" and not stays and aggregator in STRETCH:
        what = f"aggregator {aggregator} can go beyond the clients' models, and a negative running variance is invalid"
        yield FedfewError(
            "E113", "model.norm", what, 'Use norm.policy = "local" or "server-data", or model.norm = "group"'
        )


def _remedy(model: Table) -> str:
    choice = 'Set model.norm = "batch" or "group", or use' if "norm" in model else "Use"
    return f'{choice} another method and norm.policy = "average"'
