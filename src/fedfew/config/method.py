"""From a checked config to its method, with the settings, aggregator and client objective it names."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from fedfew.aggregators import AGGREGATORS
from fedfew.config.names import entry_of, find, imported, is_own
from fedfew.core.samples import OwnView
from fedfew.core.settings import settings_of
from fedfew.core.types import Method, Transform
from fedfew.data.shares import ClientLabels
from fedfew.objectives import OBJECTIVES
from fedfew.training.label_shift import Voting
from fedfew.training.sgd import ClientViews, LocalSGD, Supervised
from fedfew.transforms.compression import Compression
from fedfew.transforms.norm_policy import NormPolicy
from fedfew.transforms.privacy import Privacy


def transforms_of(document: Mapping[str, Any]) -> tuple[Transform, ...]:
    """The transforms of a resolved config, innermost first: the method's own, norms, privacy, codec."""
    asked = (
        NormPolicy(**document["norm"]).transform(),
        Privacy(**document["privacy"]).transform(),
        Compression(**document["compression"]).transform(),
    )
    own = entry_of(document["method"]["name"]).transforms
    return (*own, *(transform for transform in asked if transform is not None))


def own_view_of(document: Mapping[str, Any]) -> OwnView | None:
    """The user's own strong augmentation, if the config names one."""
    name = document["client"].get("augment", "standard")
    return OwnView(imported(name, "client.augment"), "client.augment") if is_own(name) else None


def method_of(document: Mapping[str, Any]) -> Method:
    """The method of a resolved config; raises where its settings contradict each other."""
    method, aggregator, server = dict(document["method"]), dict(document["aggregator"]), dict(document["server"])
    entry = entry_of(method.pop("name"))
    supervised = {key: server.pop(key) for key in settings_of(Supervised)}
    if is_own(supervised["augment"]):
        supervised["own"] = OwnView(imported(supervised["augment"], "server.augment"), "server.augment")
    rounds, client = document["rounds"], document["client"]
    parts: dict[str, Any] = {
        "server": Supervised(LocalSGD(**server, rounds=rounds), **supervised),
        "client": LocalSGD(
            **{key: client[key] for key in client if key not in settings_of(ClientViews)}, rounds=rounds
        ),
        "aggregator": partial(find("aggregator", aggregator.pop("name"), AGGREGATORS), **aggregator),
    }
    if entry.takes("vote"):
        parts["vote"] = Voting(**document["vote"], rounds=rounds)
    if entry.takes("client_labels"):
        parts["client_labels"] = ClientLabels(**document["client_labels"])
    if entry.takes("objective"):
        objective = dict(document["objective"])
        parts["objective"] = find("objective", objective.pop("name"), OBJECTIVES)(**objective)
    made: Method = entry.build(**parts, **method)
    return made
