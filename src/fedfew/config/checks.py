"""Checks between settings: method, aggregator, model and scenario must fit together when a config is loaded."""

from collections.abc import Iterator

from fedfew.config.names import is_own, own_code
from fedfew.config.tree import Config, ModelSettings
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Layout
from fedfew.core.types import Oracle
from fedfew.methods import METHODS
from fedfew.objectives import OBJECTIVES
from fedfew.transforms import MEASURED, unprotected, vectors

TOY = Layout(("weight",), ((1, 1),), (0, 1), 1)
"""A small layout, to get the schema of a method's replies."""
STRETCH = ("fednova", "fltrust")
"""Aggregators that can go beyond the clients' models, which a running variance must not."""
AUGMENTS = ("none", "weak", "strong")
STEPS_COUNT = ("fednova", "scaffold")
"""Aggregator and method that infer from the number of a client's steps how far it went."""


def misfits(config: Config) -> Iterator[FedfewError]:
    """Every pair of settings that exclude each other; the method reports what concerns only itself."""
    own = list(config.entry.refuse(config.method, config.scenario))
    yield from own
    if all(fault.where != "vote.prior" for fault in own):
        yield from _vote(config)
    if config.privacy.sums == "secure":
        from fedfew.config.sums import sum_misfits  # noqa: PLC0415 - of an extra

        yield from sum_misfits(config)
    general = (_aggregator, _privacy, _compression, _norm, _validation, _annealing, _augment, _optimizer)
    for faults in (*general, _client_labels, _own):
        yield from faults(config)


def _own(config: Config) -> Iterator[FedfewError]:
    if config.fleet.kind == "inline":
        return
    for key, name in own_code(config.document).items():
        if key not in ("dataset.name", "partition.kind") and name.startswith("__main__:"):
            why = f"{name!r} is defined in a script or notebook, which the processes that train clients cannot import"
            yield FedfewError("E113", key, why, 'Put it into a file, or set fleet.kind = "inline"')


def _validation(config: Config) -> Iterator[FedfewError]:
    if config.dataset.validation or config.own_sites:
        return
    if config.evaluate.stop in ("validation", "loss"):
        why = f"evaluate.stop = {config.evaluate.stop!r} needs validation images, but dataset.validation is 0"
        yield FedfewError("E113", "evaluate.stop", why, "Set dataset.validation")
    for section, sgd in (("server", config.server.sgd), ("client", config.client)):
        if sgd.schedule == "plateau":
            why = "a plateau is detected on validation images, but dataset.validation is 0"
            yield FedfewError("E113", f"{section}.schedule", why, "Set dataset.validation, or use the cosine schedule")


def _annealing(config: Config) -> Iterator[FedfewError]:
    if config.server.annealing == "none":
        return
    begun = {"method.warmup": getattr(config.method, "warmup", 0), "start": config.start}
    for key, value in begun.items():
        if value:
            why = "annealing leaves out labels that are already learned, and after that start all of them are"
            remedy = f'Remove {key}, or set server.annealing = "none"'
            yield FedfewError("E113", "server.annealing", f"{key} = {value!r}: {why}", remedy)


def _augment(config: Config) -> Iterator[FedfewError]:
    name = config.server.augment
    if name not in AUGMENTS and not is_own(name):
        remedy = f"Use one of {', '.join(AUGMENTS)}, or package.module:function of your own"
        yield FedfewError("E105", "server.augment", f"there is no augmentation {name!r}", remedy)
    name = config.client.augment
    if name == "standard":
        return
    if not is_own(name):
        remedy = "Use standard, or package.module:function of your own"
        yield FedfewError("E105", "client.augment", f"there is no strong view {name!r}", remedy)
        return
    trains = config.objective if config.entry.takes("objective") else config.entry
    if not getattr(trains, "strong_views", False):
        why = f"the clients of method {config.method_name} use no strong view of their images"
        yield FedfewError("E113", "client.augment", why, "Use e.g. fedfew, semifl, or fedavg with objective fixmatch")


def _optimizer(config: Config) -> Iterator[FedfewError]:
    """FedNova and SCAFFOLD assume that clients take steps of plain SGD, so that distance follows from their number."""
    if config.client.optimizer == "sgd":
        return
    for section, name in (("method", config.method_name), ("aggregator", config.aggregator.name)):
        if name in STEPS_COUNT:
            why = f"{name} assumes steps of SGD; AdamW's have another length"
            yield FedfewError("E113", "client.optimizer", why, f'Use "sgd", or another {section}')


def _client_labels(config: Config) -> Iterator[FedfewError]:
    """Labels at clients are for methods with a loss for them; without any the server needs its own."""
    entry, name = config.entry, config.method_name
    if not config.client_labels.each:
        if not config.labels:
            remedy = "Set labels to 1 or more, or give clients some with client_labels.each"
            yield FedfewError("E103", "labels", "there are no labels, neither at the server nor at any client", remedy)
        return
    bound = isinstance(config.method, Oracle) or entry.pools
    if entry.asks_clients and not entry.takes("client_labels") and not bound:
        why = f"method {name} is for labels at the server: its clients have no loss for labels of their own"
        yield FedfewError("E113", "client_labels.each", why, f"These have one: {_methods_with('client_labels')}")
    if config.remote:
        why = "the sites of a network have images only; labels at clients are a scenario of the simulation"
        yield FedfewError("E113", "client_labels.each", why, "Put the labels you have into the server's folder")
    if not config.labels:
        yield from _no_server_labels(config)


def _methods_with(part: str) -> str:
    return ", ".join(name for name in METHODS.table if METHODS[name].takes(part))


def _no_server_labels(config: Config) -> Iterator[FedfewError]:
    """What a server without labels cannot do."""
    policy, aggregator = config.norm.policy, config.aggregator.name
    needing = {
        "method.name": "" if config.entry.asks_clients or config.entry.pools else config.method_name,
        "vote.prior": config.vote.prior.replace("server", ""),
        "norm.policy": policy if policy == "server-data" else "",
        "aggregator.name": aggregator if aggregator == "fltrust" else "",
    }
    for key, value in needing.items():
        if value:
            why = f"{key} = {value!r} needs the server's labels, but labels is 0"
            yield FedfewError("E113", "labels", why, f"Set labels to 1 or more, or change {key}")


def _aggregator(config: Config) -> Iterator[FedfewError]:
    rule = config.aggregator
    if rule.name == "krum" and not config.own_sites and (why := krum_misfit(config.cohort, **rule.settings)):
        remedy = "Raise participation or clients, lower aggregator.faulty or aggregator.select, or use median"
        yield FedfewError("E107", "aggregator", why, remedy)


def _vote(config: Config) -> Iterator[FedfewError]:
    if config.vote.prior == "server":
        return
    if not config.entry.takes("vote"):
        why = f"method {config.method_name} makes no pseudo-labels by vote, so vote.prior has no effect"
        yield FedfewError("E113", "vote.prior", why, f"These have a vote: {_methods_with('vote')}")
    elif config.entry.takes("objective") and not config.objective.labels:
        fits = [name for name, make in OBJECTIVES.items() if make().labels]
        why = f"objective {config.objective_name} makes no pseudo-labels, so vote.prior has no effect"
        yield FedfewError("E113", "vote.prior", why, f"These do: {', '.join(fits)}")


def unused_objective(config: Config) -> FedfewError | None:
    """Why an objective in the config would be ignored; None if it is used."""
    if config.entry.takes("objective"):
        return None
    why = f"method {config.method_name} has an objective of its own, so [objective] has no effect"
    return FedfewError("E113", "objective.name", why, f"These take one: {_methods_with('objective')}")


def _privacy(config: Config) -> Iterator[FedfewError]:
    privacy, method = config.privacy, config.method
    if privacy.unit == "image":
        yield from _image_noise(config)
        return
    if privacy.noise and not privacy.clip:
        why = "noise without clipping protects nothing: one client's change can be arbitrarily large"
        yield FedfewError("E113", "privacy.noise", why, "Set privacy.clip")
    if not privacy.clip:
        return
    if isinstance(method, Oracle) or unprotected(method.reply_schema(TOY)):
        why = f"method {config.method_name} sends more than a changed model, which clipping and noise do not cover"
        yield FedfewError("E113", "privacy.clip", why, "Use a method that sends models, e.g. fedmix or fedavg")
    if config.model.norm == "batch" and privacy.noise and config.norm.policy not in MEASURED:
        why = "noise can make a batch norm's running variance negative"
        yield FedfewError("E113", "model.norm", why, 'Set model.norm = "group", or norm.policy = "server-data"')


def _image_noise(config: Config) -> Iterator[FedfewError]:
    privacy = config.privacy
    if not config.entry.bounds_images:
        why = f"method {config.method_name} does not bound what one image changes in an update"
        yield FedfewError("E113", "privacy.unit", why, 'Use fedmoments, or set privacy.unit = "site"')
    elif not privacy.noise or privacy.clip:
        why = "noise hides single images in sums, which clipping would make depend on all images of a site"
        yield FedfewError("E113", "privacy.unit", why, "Set privacy.noise > 0 and privacy.clip = 0")


def _compression(config: Config) -> Iterator[FedfewError]:
    method, name = config.method, config.method_name
    if config.compression.kind == "none" or not config.entry.asks_clients:
        return
    if isinstance(method, Oracle):
        why = f"method {name} is a bound that only a simulation has: it sends nothing"
        yield FedfewError("E113", "compression.kind", why, "Remove the section [compression]")
    elif not vectors(method.reply_schema(TOY)):
        why = f"method {name} does not send whole models, so there is no vector to compress"
        yield FedfewError("E113", "compression.kind", why, "Remove the section [compression], or use another method")


def _norm(config: Config) -> Iterator[FedfewError]:
    model, method, policy = config.model, config.method, config.norm.policy
    stays = any(transform.keeps_norms for transform in config.entry.transforms)
    if model.norm == "none" and (stays or policy == "local"):
        why = f"model {model.name} has no normalisation layers, so clients have nothing to keep"
        yield FedfewError("E113", "norm.policy" if policy == "local" else "method.name", why, _remedy(model))
    if model.norm not in ("batch", "unknown") and policy in MEASURED:
        why = f"model {model.name} has no batch norm, so there are no statistics to measure"
        remedy = 'Set model.norm = "batch", or norm.policy = "average"' if "norm" in model.settings else _remedy(model)
        yield FedfewError("E113", "norm.policy", why, remedy)
    if policy == "clients" and config.remote:
        why = "statistics of all clients' images need them in one place, which only a simulation has"
        yield FedfewError("E113", "norm.policy", why, 'Use norm.policy = "server-data"')
    sends_models = not isinstance(method, Oracle) and vectors(method.reply_schema(TOY))[:1] == ["psi"]
    true_labels = isinstance(method, Oracle) and policy in MEASURED  # measured on ω; nothing is kept by clients
    if policy != "average" and config.entry.asks_clients and not sends_models and not true_labels:
        why = f"norm.policy = {policy!r} needs clients that send models, which method {config.method_name}'s do not"
        yield FedfewError("E113", "norm.policy", why, 'Use norm.policy = "average" or another method')
    rule = config.aggregator.name
    if model.norm == "batch" and policy == "average" and not stays and rule in STRETCH:
        why = f"aggregator {rule} can go beyond the clients' models, and a negative running variance is invalid"
        remedy = 'Use norm.policy = "local" or "server-data", or model.norm = "group"'
        yield FedfewError("E113", "model.norm", why, remedy)


def _remedy(model: ModelSettings) -> str:
    choice = 'Set model.norm = "batch" or "group", or use' if "norm" in model.settings else "Use"
    return f'{choice} another method and norm.policy = "average"'


def krum_misfit(cohort: int, *, faulty: int, select: int) -> str:
    """Why Krum cannot work with this many clients a round; empty if it can."""
    if cohort < 2 * faulty + 3:
        return f"krum with faulty = {faulty} needs at least {2 * faulty + 3} clients a round, there are {cohort}"
    if select > cohort - faulty:
        return (
            f"krum with select = {select} would include faulty clients: at most {cohort - faulty} of {cohort} clients"
        )
    return ""
