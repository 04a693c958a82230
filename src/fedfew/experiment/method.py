"""From a checked config to its method, with the settings, aggregator and client objective it names."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

from fedfew.algorithms import AGGREGATORS, ALGORITHMS, OBJECTIVES
from fedfew.algorithms.local import LocalSGD, Supervised
from fedfew.core.types import Algorithm


def algorithm_of(document: Mapping[str, Any]) -> Algorithm:
    """The method of a resolved config; raises where its settings contradict each other."""
    method, aggregator, server = dict(document["method"]), dict(document["aggregator"]), dict(document["server"])
    factory = ALGORITHMS[method.pop("name")]
    augment = server.pop("augment")
    parts: dict[str, Any] = {
        "server": Supervised(LocalSGD(**server, rounds=document["rounds"]), augment),
        "client": LocalSGD(**document["client"], rounds=document["rounds"]),
        "aggregator": partial(AGGREGATORS[aggregator.pop("name")], **aggregator),
    }
    if "objective" in inspect.signature(factory).parameters:
        objective = dict(document["objective"])
        parts["objective"] = OBJECTIVES[objective.pop("name")](**objective)
    return factory(**parts, **method)
