"""Limits that a site sets for itself and checks before it answers, whatever a server asks for."""

import json
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Lt
from pydantic import ConfigDict, StringConstraints

from fedfew.core.errors import FedfewError
from fedfew.core.layout import Layout, Payload, Schema
from fedfew.core.settings import Count, Natural, NonNegative, Positive
from fedfew.core.storage import write_atomically
from fedfew.deploy.plan import read_settings

LIMITS = "limits.toml"
"""File in the site's folder with the limits that differ from the defaults."""
TIMES_THE_MODEL, _ROOM = 64, 1 << 22
"""Most entries of one tensor, in model sizes, with room for what is not a model: statistics, logits."""


@dataclass(frozen=True)
class SiteTerms:
    """Conditions that a site enforces, whatever a server's config says."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    min_noise: NonNegative = 0.0
    max_clip: NonNegative = 0.0
    """0: any."""
    unit: Literal["site", "image"] = "site"
    """What noise must hide, where one of these is set: all images of this site together, or each single one."""
    shared_noise: bool = False
    """Whether noise counts that the sites of a secure sum add together, of which this site adds a part."""
    max_epsilon: NonNegative = 0.0
    """Largest total ε of all updates in all runs; 0: no limit."""
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    """δ at which ε is computed."""
    allow_code: tuple[str, ...] = ()
    """Code outside fedfew, and sources of a backbone, that a server's config may name."""
    accept: Literal["all", "ask"] | tuple[Annotated[str, StringConstraints(pattern="^[0-9a-f]{12,64}$")], ...] = "all"
    """Runs that the site takes part in: all, those that somebody approves, or those of the plans listed by hash."""
    keep_content: bool = False
    """Whether the ledger keeps the content of messages, beside their hashes."""
    min_images: Count = 20
    """With fewer images the site does not answer: its sum would be nearly an image."""
    min_class: Natural = 5
    """A class with fewer images than this is left out of sums by class."""
    group: str = ""
    """Pattern of file names that tells which images are of one person; empty: the PatientID of DICOM files."""
    max_rounds: Count = 500
    """Most answers to one plan: many sums of the same images can be solved for single ones."""
    max_classes: Count = 10_000
    max_pixels: Count = 1 << 22
    """Most numbers of one image."""
    max_weight: Positive = 1e6
    """Largest entry of what a server sends; beyond it float32 has steps of 0.06, and a bounded change is lost."""
    max_memory: NonNegative = 0.0
    """Most memory of the process that trains, in GB; 0: three quarters of the machine's."""


def site_terms(folder: Path, options: Mapping[str, Any] | None = None) -> SiteTerms:
    """The terms in a site's folder; ``options`` on the command line come first. E511 if the file is not valid."""
    path, options = folder / LIMITS, options or {}
    stated = {name: value for name, value in options.items() if value not in (None, ())}
    return read_settings(SiteTerms, path, stated, None if path.exists() else b"")


def check_about(about: Mapping[str, Any], terms: SiteTerms) -> int:
    """The number of classes that a server names; E417 if it or the shape of a sample is beyond the site's limits."""
    classes, shape = int(about["classes"]), tuple(int(n) for n in about["samples"]["shape"])
    if not 1 <= classes <= terms.max_classes:
        raise FedfewError("E417", "limits", f"the run has {classes:,} classes; 1 to {terms.max_classes:,} are allowed")
    numbers = 1
    for size in shape:
        numbers *= size
    if not shape or min(shape) < 1 or numbers > terms.max_pixels or len(shape) > 3:
        asked = "×".join(map(str, shape[:4]))
        raise FedfewError("E417", "limits", f"samples of {asked}; at most {terms.max_pixels:,} numbers are allowed")
    return classes


def check_count(images: int, terms: SiteTerms) -> None:
    """E417 if the site has too few images to answer."""
    if images < terms.min_images:
        reason = f"there are {images} images, and this site answers from {terms.min_images} on (min_images)"
        remedy = f"Add images: what is sent for so few is nearly the images. {LIMITS} can lower the limit"
        raise FedfewError("E417", "images", reason, remedy)


def check_payload(payload: Payload, schema: Schema, layout: Layout, largest: float) -> None:
    """E419 unless every tensor is finite and bounded, and the vectors that replies start from are complete."""
    for name, tensor in payload.items():
        if tensor.numel() > TIMES_THE_MODEL * layout.size + _ROOM:
            raise FedfewError("E419", name, f"has {tensor.numel():,} entries")
        if tensor.is_floating_point() and tensor.numel():
            largest_entry = float(tensor.abs().max())  # NaN if one entry is
            if not largest_entry <= largest:
                raise FedfewError("E419", name, f"its largest entry is {largest_entry:g}; the limit is {largest:g}")
    for near in {expected.near for expected in schema.values() if expected.near}:
        if near not in payload or tuple(payload[near].shape) != (layout.size,) or not payload[near].is_floating_point():
            raise FedfewError("E419", near, f"is missing, or is not a vector of {layout.size:,} numbers")


def count_answer(path: Path, plan: str, most: int) -> None:
    """Count an answer to a plan before it is made, over restarts; E417 beyond the limit.

    Names of runs and numbers of rounds say nothing: a server may ask as often as it likes under new ones.
    """
    try:
        counts: dict[str, int] = json.loads(path.read_bytes()) if path.exists() else {}
        answers = int(counts.get(plan, 0)) + 1
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise FedfewError("E417", "limits", f"{path} cannot be read: {error}") from None
    if answers > most:
        raise FedfewError(
            "E417", "limits", f"plan {plan[:12]} has had {most} answers, as many as this site gives (max_rounds)"
        )
    write_atomically(path, json.dumps(counts | {plan: answers}).encode())


def bound_memory(gigabytes: float) -> None:
    """Bound what this process may allocate: a model or payload that needs more fails, and the machine does not."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    most = int(gigabytes * 1e9) or machine * 3 // 4
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
