"""Reads the files of a run folder; each is validated once, so charts and tables meet only what a run writes."""

import json
import os
import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Len
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from fedfew.core.errors import FedfewError
from fedfew.runtime.record import Natural, RoundRecord, apart, complete

STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")
RESUME = "`fedfew resume` restores it"
HEADER = 1 << 16
"""Upper limit for the header of a warm-up file, in bytes."""
KEYS = frozenset({"round", "accuracy"})
"""Keys of every record since the first version."""


class Shape(BaseModel):
    """The part of a file's content that is relied on."""

    model_config = STRICT


class Named(Shape):
    """A section of the config with a name."""

    name: str


class Data(Named):
    """The dataset, and the seed of its split."""

    seed: int


class Settings(Shape):
    """run.toml, as far as every run has it."""

    seed: int
    rounds: Natural
    clients: Natural
    method: Named
    aggregator: Named
    dataset: Data


class Classes(Shape):
    """classes.json; an older run has none."""

    classes: list[str] = []
    server: list[Natural] = []
    clients: list[list[Natural]] = []


class Environment(Shape):
    """environment.json."""

    fingerprint: dict[str, Any] = {}
    command: str = ""


class Resumed(Shape):
    """The environment that computed a run, or a part of it."""

    fingerprint: dict[str, Any]


class Started(Resumed):
    """The environment in a manifest."""

    resumed: list[Resumed] = []


class Privacy(Shape):
    """How updates were protected, and the resulting ε; unknown without noise."""

    clip: float
    noise: float
    delta: float
    rounds_of_a_client: Natural
    epsilon: float | None


class Accuracies(Shape):
    """The accuracies of a run."""

    last: float | None
    mean_last_10: float | None
    best_by_validation: float | None


class Summary(Shape):
    """summary.json; a run that has not finished has none."""

    model_sha256: str = ""
    accuracy: Accuracies | None = None
    rounds: Natural = 0
    coverage: float | None = None
    correct: float | None = None
    bytes_up: float = 0
    bytes_down: float = 0
    seconds: float = 0
    privacy: Privacy | None = None


class Evaluation(Shape):
    """evaluation.json; a run without test images has none, and runs of older versions neither."""

    images: Natural
    balanced_accuracy: float | None
    auroc: float | None
    ece: float | None
    classes: list[dict[str, Any]]
    confusion: list[list[Natural]]
    calibration: list[dict[str, float]]
    sites: list[dict[str, Any]] = []


class Seal(Shape):
    """How much of a journal a checkpoint covers."""

    bytes: Natural
    sha256: str


class Document(Settings):
    """The config in a manifest."""

    engine: dict[str, Any] = {}
    fleet: dict[str, Any]


class Facts(Shape):
    """The facts in a manifest besides the state."""

    document: Document
    environment: Started
    partition: str
    rounds: Seal


class Files(Shape):
    """A checkpoint's files with their hashes."""

    state: Annotated[list[str], Len(2, 2)]
    parts: dict[str, Annotated[list[str], Len(2, 2)]]


class Manifest(Shape):
    """checkpoints/round-N.json."""

    round: Natural
    files: Files
    facts: dict[str, Any]


class Warmed(Shape):
    """The metadata in checkpoints/warmup.safetensors."""

    done: Natural
    total: Natural
    seconds: float
    stream: str

    @property
    def left(self) -> float:
        """Estimated seconds for the remaining passes."""
        return self.seconds / max(self.done, 1) * (self.total - self.done)


class About(Shape):
    """The metadata of a model file."""

    model: Named
    classes: list[str]
    shape: Annotated[list[Natural], Len(3, 3)]
    mean: list[float]
    std: list[float]


RECORDS = TypeAdapter(list[RoundRecord], config=STRICT)


def check(shape: type[BaseModel] | TypeAdapter[Any], content: object, place: Path) -> None:
    """E309 with the first error."""
    try:
        if isinstance(shape, TypeAdapter):
            shape.validate_python(content)
        else:
            shape.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FedfewError("E309", str(place), f"is not what a run writes ({where}: {first['msg']})") from None


def fits(shape: type[BaseModel], content: object) -> bool:
    """Whether the content is valid."""
    try:
        shape.model_validate(content)
    except ValidationError:
        return False
    return True


def read_config(place: Path) -> dict[str, Any]:
    """run.toml; do not modify the result: runs share equal sections."""
    try:
        config = _parsed(place.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FedfewError("E309", str(place), f"is damaged ({error})") from None
    check(Settings, config, place)
    return config


def _parsed(text: str) -> dict[str, Any]:
    """Parse section by section, a new one line by line: a sweep's runs differ in few of them, and TOML is slow."""
    config: dict[str, Any] = {}
    try:
        for part in re.split(r"^(?=\[)", text, flags=re.MULTILINE):
            section = _section(part)
            if section.keys() & config.keys():
                return tomllib.loads(text)
            config |= section
    except tomllib.TOMLDecodeError:  # a value has several lines, some of which begin with a bracket
        return tomllib.loads(text)
    return config


@lru_cache(4096)
def _section(part: str) -> dict[str, Any]:
    title = re.match(r"\[([a-z_]+)\]\n", part)
    if part.startswith("[") and title is None:
        return tomllib.loads(part)
    lines = part[title.end() if title else 0 :].split("\n")
    found: dict[str, Any] = {}
    try:
        for one in map(_line, lines):
            if one.keys() & found.keys():
                return tomllib.loads(part)
            found |= one
    except tomllib.TOMLDecodeError:
        return tomllib.loads(part)
    return {title[1]: found} if title else found


_line = lru_cache(1 << 14)(tomllib.loads)


def read_json(place: Path, shape: type[BaseModel]) -> dict[str, Any] | None:
    """The content of a JSON file; None if it does not exist (yet)."""
    try:
        content: dict[str, Any] = json.loads(place.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise FedfewError("E309", str(place), f"is damaged ({error})") from None
    check(shape, content, place)
    return content


def read_warmup(place: Path) -> Warmed | None:
    """The progress of a warm-up, from the file's header alone; None if there is none that can be read."""
    try:
        with place.open("rb") as file:
            header = file.read(min(int.from_bytes(file.read(8), "little"), HEADER))
        return Warmed.model_validate(json.loads(json.loads(header)["__metadata__"]["fedfew"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


@dataclass(frozen=True, eq=False)
class Rounds:
    """The records in a rounds.jsonl up to a byte offset."""

    records: list[RoundRecord]
    end: int = 0
    inode: int = 0


def read_rounds(place: Path, known: Rounds | None = None) -> Rounds:
    """The rounds so far; if the file has only grown since ``known``, only the new lines are read.

    A line still being written is left out. Going back to a checkpoint replaces the file.
    """
    try:
        with place.open("rb") as file:
            about = os.fstat(file.fileno())
            before = known if known and known.inode == about.st_ino and known.end <= about.st_size else Rounds([])
            file.seek(before.end)
            content = file.read()
    except FileNotFoundError:
        return Rounds([])
    except OSError as error:
        raise FedfewError("E309", str(place), f"cannot be read: {error.strerror or error}") from None
    content = content[: content.rfind(b"\n") + 1]
    fresh = _records(content.split(b"\n")[:-1], place)
    return Rounds(before.records + fresh, before.end + len(content), about.st_ino)


def _records(lines: list[bytes], place: Path) -> list[RoundRecord]:
    try:
        read = json.loads(b"[" + b",".join(lines) + b"]")  # at once: a sixth faster than line by line
    except (ValueError, RecursionError) as error:
        raise FedfewError("E309", str(place), f"holds a line that is not JSON ({error})", RESUME) from None
    if len(read) != len(lines) or not all(isinstance(line, dict) and line.keys() >= KEYS for line in read):
        raise FedfewError("E309", str(place), "holds a line that is not the record of a round", RESUME)
    records: Any = [complete(line) for line in read]
    check(RECORDS, records, place)
    return [apart(record) for record in records]
