"""The clients' data, as every process or site that trains clients has them, without the server's labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedfew.core.samples import LabeledSet, Samples
from fedfew.data.samples import samples_of
from fedfew.data.shares import Partition, VirtualPartition


@dataclass(frozen=True)
class Origin:
    """The source of features: what their images are, a hash of the content, and the backbone."""

    about: Mapping[str, Any]
    fingerprint: str = ""
    backbone: Mapping[str, Any] = field(default_factory=dict)
    classifier: Tensor | None = None
    """The weights of the backbone's own classifier, if they are known."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ClientsData:
    """What clients train on and models are scored on; client k's samples are those at ``partition.of(k)``."""

    samples: Samples
    """The unlabeled samples of all clients."""
    truth: Tensor
    """Their classes, int64: for the partition, the reports and the all-labels upper bound of a simulation only.
    −1 throughout where it is unknown, as with real sites."""
    partition: Partition | VirtualPartition
    classes: tuple[str, ...]
    validation: LabeledSet
    test: LabeledSet
    origin: Origin | None = None
    """Where the samples come from, if a backbone computed them from images."""

    @staticmethod
    def of_site(number: int, samples: Samples, classes: int) -> "ClientsData":
        """A real site under its number: its own samples, of unknown classes, and nothing to score a model on."""
        nothing = LabeledSet(samples.like(samples.data[:0]), torch.empty(0, dtype=torch.int64))
        return ClientsData(
            samples=samples,
            truth=torch.full((len(samples),), -1),
            partition=Partition(np.arange(len(samples)), np.array([0] * (number + 1) + [len(samples)])),
            classes=tuple(map(str, range(classes))),
            validation=nothing,
            test=nothing,
        )

    @property
    def about(self) -> Mapping[str, Any]:
        """What the sites' own samples are, before any backbone."""
        return self.origin.about if self.origin else self.samples.about()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one of the sites' own samples, such as C×H×W of an image."""
        return tuple(self.about["shape"])

    @property
    def sets(self) -> dict[str, Samples]:
        """All samples, by the name of their field."""
        return {"validation": self.validation.samples, "test": self.test.samples, "samples": self.samples}

    def with_sets(self, sets: Mapping[str, Samples]) -> Self:
        """The same with other samples."""
        changes: dict[str, Any] = dict(sets)
        for name, samples in sets.items():
            if isinstance(part := getattr(self, name), LabeledSet):
                changes[name] = replace(part, samples=samples)
        return replace(self, **changes)

    def fingerprint(self) -> str:
        """A hash of the content, where it must stay the same between processes; a site's own data need none."""
        return ""

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A description in JSON's types, and tensors: all that another process needs to unpack it."""
        tensors = {"samples": self.samples.data, "truth": self.truth}
        for name, part in (("validation", self.validation), ("test", self.test)):
            tensors |= {name: part.samples.data, f"{name}_labels": part.labels}
        virtual = self.partition.spec if isinstance(self.partition, VirtualPartition) else None
        if isinstance(self.partition, Partition):
            parts = {"order": self.partition.order, "offsets": self.partition.offsets}
            tensors |= {name: torch.from_numpy(array) for name, array in parts.items()}
        if self.origin and self.origin.classifier is not None:
            tensors["classifier"] = self.origin.classifier
        origin = self.origin and dict(self.origin.about)
        about = {"samples": self.samples.about(), "classes": list(self.classes), "virtual": virtual, "origin": origin}
        return about, tensors

    @staticmethod
    def unpack(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> "ClientsData":
        """The clients' data that another process packed."""
        samples, truth = samples_of(tensors["samples"], about["samples"]), tensors["truth"]
        test, validation = (
            LabeledSet(samples.like(tensors[name]), tensors[f"{name}_labels"]) for name in ("test", "validation")
        )
        partition: Partition | VirtualPartition
        if about["virtual"]:
            partition = VirtualPartition(**about["virtual"], labels=truth.numpy())
        else:
            partition = Partition(tensors["order"].numpy(), tensors["offsets"].numpy())
        origin = Origin(about["origin"], classifier=tensors.get("classifier")) if about["origin"] else None
        return ClientsData(
            samples=samples, truth=truth, partition=partition, classes=tuple(about["classes"]), validation=validation,
            test=test, origin=origin,
        )  # fmt: skip


D = TypeVar("D", bound=ClientsData)
"""The clients' data alone, or a whole federation."""
