"""From a checked config to its method, with the settings, aggregator and client objective it names."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from fedfew.aggregators import AGGREGATORS
from fedfew.config.names import find
from fedfew.core.settings import settings_of
from fedfew.core.types import Algorithm
from fedfew.methods import METHODS
from fedfew.objectives import OBJECTIVES
from fedfew.training.label_shift import Voting
from fedfew.training.sgd import LocalSGD, Supervised
from fedfew.transforms.compression import Compressed, Compression
from fedfew.transforms.norm_policy import NormPolicy
from fedfew.transforms.privacy import Privacy


def algorithm_of(document: Mapping[str, Any]) -> Algorithm:
    """The method of a resolved config, with its norm policy, privacy and compression around it."""
    algorithm = NormPolicy(**document["norm"]).around(plain_algorithm(document))
    algorithm = Privacy(**document["privacy"]).around(algorithm)
    compression = Compression(**document["compression"])
    codec = compression.codec()
    return algorithm if codec is None else Compressed(algorithm, codec, compression.feedback)


def plain_algorithm(document: Mapping[str, Any]) -> Algorithm:
    """The method by itself; raises where its settings contradict each other."""
    method, aggregator, server = dict(document["method"]), dict(document["aggregator"]), dict(document["server"])
    factory = find("method", method.pop("name"), METHODS)
    supervised = {key: server.pop(key) for key in settings_of(Supervised)}
    rounds = document["rounds"]
    parts: dict[str, Any] = {
        "server": Supervised(LocalSGD(**server, rounds=rounds), **supervised),
        "client": LocalSGD(**document["client"], rounds=rounds),
        "aggregator": partial(find("aggregator", aggregator.pop("name"), AGGREGATORS), **aggregator),
    }
    wanted = inspect.signature(factory).parameters
    if "vote" in wanted:
        parts["vote"] = Voting(**document["vote"], rounds=rounds)
    if "objective" in wanted:
        objective = dict(document["objective"])
        parts["objective"] = find("objective", objective.pop("name"), OBJECTIVES)(**objective)
    made: Algorithm = factory(**parts, **method)
    return made
