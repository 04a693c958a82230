"""What a site accepts from its server: numbers that are finite and of a sane size, in the form the method expects."""

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Layout, Payload, Schema

LARGEST = 1e6
"""Largest absolute value of an entry. Beyond it float32 has steps of 0.06, and a bounded change is lost in rounding."""
TIMES_THE_MODEL = 64
"""Most entries of one tensor, in model sizes, with room for what is not a model: statistics, logits."""
_ROOM = 1 << 22


def check_payload(payload: Payload, schema: Schema, layout: Layout) -> None:
    """E419 unless every tensor is finite and bounded, and the vectors that replies start from are complete."""
    for name, tensor in payload.items():
        if tensor.numel() > TIMES_THE_MODEL * layout.size + _ROOM:
            raise FedfewError("E419", name, f"has {tensor.numel():,} entries")
        if tensor.is_floating_point() and tensor.numel():
            largest = float(tensor.abs().max())  # NaN if one entry is
            if not largest <= LARGEST:
                raise FedfewError("E419", name, f"its largest entry is {largest:g}; the limit is {LARGEST:g}")
    for near in {expected.near for expected in schema.values() if expected.near}:
        if near not in payload or tuple(payload[near].shape) != (layout.size,) or not payload[near].is_floating_point():
            raise FedfewError("E419", near, f"is missing, or is not a vector of {layout.size:,} numbers")
