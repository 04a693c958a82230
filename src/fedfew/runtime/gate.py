"""The update gate: everything a client sends is checked against the schema before it is aggregated."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import torch
from torch import Tensor

from fedfew.core.errors import Refusal
from fedfew.core.layout import Expected, Payload, Schema
from fedfew.core.settings import Count, Doc, Natural, NonNegative
from fedfew.core.types import ClientUpdate, Missing

Fault = tuple[Refusal, str]
"""Why an answer does not count: the reason, and in words."""
MOST_METRICS = 32
"""Metrics of a client besides the counts of its pseudo-labels by class."""
LARGEST_METRIC = 1e9
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,39}(/[a-z0-9_.-]{1,39})?")
_CLASS = re.compile(r"class/(0|[1-9][0-9]{0,6})")
_BOUNDS = {"coverage": 1.0, "status": 1.0, "steps": LARGEST_METRIC}
"""Metrics that lie between 0 and a bound; ``kept``, ``right`` and ``class/c`` count images."""


@dataclass(frozen=True)
class Gate:
    """Bounds on updates; names, shapes, dtypes, finiteness and counts are always checked."""

    max_norm: Annotated[NonNegative, Doc("bound on the norm of a client's change; 0: no bound")] = 0.0
    max_growth: Annotated[NonNegative, Doc("longest reply, as a multiple of what was sent; 0: no bound")] = 1000.0
    max_examples: Annotated[Count, Doc("most images a client may claim, where its size is unknown")] = 1_000_000
    max_times: Annotated[
        NonNegative,
        Doc("where sizes are unknown, a client counts for at most this many times the cohort's median; 0: no limit"),
    ] = 5.0
    clip: Annotated[
        NonNegative,
        Doc("a change is shortened if it exceeds this many times the usual median and the server's own step; 0: never"),
    ] = 3.0
    max_harm: Annotated[
        NonNegative, Doc("an update is refused if a quarter of it adds more than this to the server's loss; 0: never")
    ] = 0.5
    images: Annotated[Natural, Doc("labeled images that every update is tried on, at most; 0: none")] = 200

    def check(
        self,
        update: ClientUpdate,
        payload: Payload,
        schema: Schema,
        size: int | None = None,
        classes: int | None = None,
    ) -> Missing | None:
        """None if the update may pass, else why not. ``size``: the client's number of images, if known."""
        fault = (
            _count_fault(update.examples, self.max_examples if size is None else size)
            or _kind_fault(update.reply)
            or _name_fault(update.reply, schema)
            or _form_fault(update.reply, schema)
            or self._value_fault(update.reply, payload, schema, update.examples if size is None else size)
            or _rule_fault(update, payload, schema)
            or metric_fault(update.metrics, update.examples if size is None else size, classes)
        )
        return Missing(update.client, *fault) if fault else None

    def _value_fault(
        self, reply: Mapping[str, Tensor], payload: Payload, schema: Schema, examples: int
    ) -> Fault | None:
        for name, expected in schema.items():
            tensor = reply[name]
            if expected.index:
                if _bad_indices(tensor, expected.limit):
                    return Refusal.INDICES, f"{name} is not sorted, unique and below {expected.limit}"
                continue
            if not finite(tensor):
                return Refusal.NOT_FINITE, f"{name} holds NaN or infinity"
            fault = self._norm_fault(name, tensor, payload, expected)
            if fault:
                return fault
            if expected.per_example and _norm(tensor) > 1.01 * expected.per_example * examples:
                why = f"{name} has norm {_norm(tensor):.4g}, more than {examples} images can give"
                return Refusal.OUT_OF_BOUNDS, why
        lengths = {(expected.group, len(reply[name])) for name, expected in schema.items() if None in expected.shape}
        differ = len(lengths) > len({group for group, _ in lengths})
        return (Refusal.SHAPE, "tensors that belong together have different lengths") if differ else None

    def _norm_fault(self, name: str, tensor: Tensor, payload: Payload, expected: Expected) -> Fault | None:
        if expected.near:
            sent = payload[expected.near]
            change, grown, base = _norm(tensor - sent), _norm(tensor), _norm(sent)
        elif expected.delta:
            change = grown = _norm(tensor)
            base = max((_norm(t) for t in payload.values() if t.ndim == 1 and t.is_floating_point()), default=0.0)
        else:
            return None
        if not math.isfinite(change):
            return Refusal.OUT_OF_BOUNDS, f"the norm of {name}'s change is not finite"
        if self.max_norm and change > self.max_norm:
            return Refusal.OUT_OF_BOUNDS, f"{name} moved by {change:.4g}, the bound is {self.max_norm:g}"
        if self.max_growth and grown > self.max_growth * (base + 1):
            why = f"{name} has norm {grown:.4g}, over {self.max_growth:g} times what was sent ({base:.4g})"
            return Refusal.OUT_OF_BOUNDS, why
        return None


def _rule_fault(update: ClientUpdate, payload: Payload, schema: Schema) -> Fault | None:
    for name, expected in schema.items():
        if expected.rule and (why := expected.rule(update.reply[name], payload, update.examples)):
            return Refusal.OUT_OF_BOUNDS, why
    return None


def _count_fault(examples: object, limit: int) -> Fault | None:
    if not isinstance(examples, int) or isinstance(examples, bool) or not 0 <= examples <= limit:
        return Refusal.COUNT, f"claims {str(examples)[:40]} examples; 0 to {limit} is possible"
    return None


def _kind_fault(reply: object) -> Fault | None:
    """Plain tensors only: anything else from a client's code could fail during the aggregation."""
    if not isinstance(reply, Mapping) or not all(isinstance(name, str) for name in reply):
        return Refusal.NAMES, f"is not a dict of named tensors but {type(reply).__name__}"
    for name, tensor in reply.items():
        if not isinstance(tensor, Tensor):
            return Refusal.TYPE, f"{name} is not a tensor but {type(tensor).__name__}"
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized or tensor.requires_grad:
            return Refusal.TYPE, f"{name} is not a plain tensor of numbers"
    return None


def _name_fault(reply: Mapping[str, Tensor], schema: Schema) -> Fault | None:
    lacking, extra = sorted(set(schema) - set(reply)), sorted(set(reply) - set(schema))
    if lacking or extra:
        lacks = f"lacks {', '.join(lacking)}" if lacking else ""
        known = f"reply_schema names {', '.join(sorted(schema)) or 'none'}"
        return Refusal.NAMES, lacks or f"has {len(extra)} tensors too many, e.g. {extra[0][:40]}; {known}"
    return None


def reply_limit(schema: Schema) -> int:
    """Bytes above which a reply is not even read: twice what is possible, so that smaller faults keep their codes."""
    entries = (math.prod(expected.limit if d is None else d for d in expected.shape) * expected.dtype.itemsize
               for expected in schema.values())  # fmt: skip
    return 2 * sum(entries) + (1 << 16)


def _form_fault(reply: Mapping[str, Tensor], schema: Schema) -> Fault | None:
    for name, expected in schema.items():
        tensor, wanted = reply[name], expected.shape
        most = expected.limit if None in wanted else math.prod(d or 0 for d in wanted)
        if tensor.numel() > most:
            return Refusal.TOO_LARGE, f"{name} has {tensor.numel()} entries, at most {most} are possible"
        if tensor.dim() != len(wanted) or any(
            d not in (have, None) for have, d in zip(tensor.shape, wanted, strict=True)
        ):
            shown = tuple("any" if d is None else d for d in wanted)
            return Refusal.SHAPE, f"{name} has shape {tuple(tensor.shape)}, expected {shown}"
        if tensor.dtype != expected.dtype:
            return Refusal.TYPE, f"{name} is {tensor.dtype}, expected {expected.dtype}"
    return None


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))


def finite(tensor: Tensor) -> bool:
    """A finite norm has only finite entries; checking each, which takes four copies, is for norms that overflow."""
    if not tensor.is_floating_point():
        return True
    return math.isfinite(_norm(tensor)) or bool(torch.isfinite(tensor).all())


def _bad_indices(index: Tensor, limit: int) -> bool:
    if not len(index):
        return False
    return bool(int(index[0]) < 0 or int(index[-1]) >= limit or (index[1:] <= index[:-1]).any())


def metric_fault(metrics: object, images: int, classes: int | None) -> Fault | None:
    """None if the metrics may be recorded, else a code and why not.

    ``images``: how many a client has or claims; ``classes``: how many there are, where that is known.
    """
    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
        return Refusal.TOO_LARGE, "metrics are not a dict of numbers"
    by_class = [name for name in metrics if name.startswith("class/")]
    if len(metrics) - len(by_class) > MOST_METRICS or (classes is not None and len(by_class) > classes):
        return Refusal.TOO_LARGE, f"{len(metrics):,} metrics are too many"
    for name, value in metrics.items():
        if not (_is_class(name, classes) if name.startswith("class/") else _NAME.fullmatch(name)):
            return Refusal.NAMES, "a metric has an invalid name"
        if not isinstance(value, float | int) or isinstance(value, bool) or not abs(value) <= LARGEST_METRIC:
            return Refusal.NOT_FINITE, f"metric {name} is {str(value)[:40]}"
        if name in _BOUNDS and not 0 <= value <= _BOUNDS[name]:
            return Refusal.NOT_FINITE, f"metric {name} is {value:g}; 0 to {_BOUNDS[name]:g} is possible"
    return _label_count_fault(metrics, by_class, images)


def _is_class(name: str, classes: int | None) -> bool:
    return bool(_CLASS.fullmatch(name)) if classes is None else name in class_names(classes)


@cache
def class_names(classes: int) -> dict[str, None]:
    """The metrics that count the pseudo-labels of each class, in order."""
    return dict.fromkeys(f"class/{c}" for c in range(classes))


def _label_count_fault(metrics: Mapping[str, float], by_class: list[str], images: int) -> Fault | None:
    """Pseudo-labels are whole, at most one for each image, at most all of them right, and each of one class."""
    counts = {name: metrics[name] for name in ("kept", "right", *by_class) if name in metrics}
    for name, value in counts.items():
        if not 0 <= value <= images or value != int(value):
            return Refusal.COUNT, f"metric {name} is {value:g}; 0 to {images} is possible"
    kept = counts.get("kept", 0.0)
    if counts.get("right", 0.0) > kept or (by_class and sum(metrics[name] for name in by_class) != kept):
        return Refusal.COUNT, "the counts of pseudo-labels do not add up"
    return None
