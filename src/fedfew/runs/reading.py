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
from fedfew.runtime.record import Natural, RoundRecord

STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="allow")
RESUME = "`fedfew resume` restores it"
HEADER = 1 << 16
"""Upper limit for the header of a warm-up file, in bytes."""


class Content(BaseModel):
    """The part of a file's content that is relied on."""

    model_config = STRICT


class Section(Content):
    """A section of the config with a name."""

    name: str


class DatasetSection(Section):
    """The dataset, and the seed of its split."""

    seed: int


class Document(Content):
    """run.toml, and the config in a manifest."""

    seed: int
    rounds: Natural
    clients: Natural
    labels: Natural = 0
    method: Section
    aggregator: Section
    dataset: DatasetSection
    engine: dict[str, Any]
    fleet: dict[str, Any]


class Classes(Content):
    """classes.json; without the clients' counts where their classes are unknown."""

    classes: list[str]
    server: list[Natural]
    clients: list[list[Natural]]


class Resumed(Content):
    """An environment that computed a part of a run."""

    fingerprint: dict[str, Any]


class Environment(Resumed):
    """environment.json."""

    command: str
    resumed: list[Resumed] = []


class Summary(Content):
    """summary.json; a run that has not finished has none."""

    model_sha256: str = ""
    accuracy: dict[str, float | None] | None = None
    rounds: Natural = 0
    coverage: float | None = None
    correct: float | None = None
    bytes_up: float = 0
    bytes_down: float = 0
    seconds: float = 0
    privacy: dict[str, float | str | None] | None = None


class Measures(Content):
    """evaluation.json; a run without test images has none."""

    images: Natural
    balanced_accuracy: float | None
    auroc: float | None
    ece: float | None
    classes: list[dict[str, Any]]
    confusion: list[list[Natural]]
    calibration: list[dict[str, float]]
    sites: list[dict[str, Any]]


class Seal(Content):
    """How much of a journal a checkpoint covers."""

    bytes: Natural
    sha256: str


class Facts(Content):
    """The facts in a manifest besides the state."""

    document: Document
    environment: Environment
    partition: str
    images: str
    rounds: Seal
    state_format: Natural = 1


class Files(Content):
    """A checkpoint's files with their hashes."""

    state: Annotated[list[str], Len(2, 2)]
    parts: dict[str, Annotated[list[str], Len(2, 2)]]


class Manifest(Content):
    """checkpoints/round-N.json."""

    round: Natural
    files: Files
    facts: dict[str, Any]


class Warmed(Content):
    """The metadata in checkpoints/warmup.safetensors."""

    done: Natural
    total: Natural
    seconds: float
    stream: str

    @property
    def left(self) -> float:
        """Estimated seconds for the remaining passes."""
        return self.seconds / max(self.done, 1) * (self.total - self.done)


class About(Content):
    """The metadata of a model file."""

    model: Section
    classes: list[str]
    shape: Annotated[list[Natural], Len(1, 3)]
    mean: list[float]
    std: list[float]
    encoder: dict[str, Any] = {}


RECORDS = TypeAdapter(list[RoundRecord], config=STRICT)


def check(shape: type[BaseModel] | TypeAdapter[Any], content: object, path: Path) -> None:
    """E309 with the first error."""
    try:
        shape.validate_python(content) if isinstance(shape, TypeAdapter) else shape.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FedfewError("E309", str(path), f"is not what a run writes ({where}: {first['msg']})") from None


def fits(shape: type[BaseModel], content: object) -> bool:
    """Whether the content is valid."""
    try:
        shape.model_validate(content)
    except ValidationError:
        return False
    return True


def read_config(path: Path) -> dict[str, Any]:
    """run.toml; do not modify the result: runs share equal sections."""
    try:
        config = _parsed(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FedfewError("E309", str(path), f"is damaged ({error})") from None
    check(Document, config, path)
    return config


def _parsed(text: str) -> dict[str, Any]:
    """Parsed section by section: the runs of a sweep share most of them, and TOML is slow."""
    sections = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    try:
        config = {key: value for section in sections for key, value in _section(section).items()}
    except tomllib.TOMLDecodeError:  # a value of several lines, some of which begin with a bracket
        return tomllib.loads(text)
    return config if len(config) == sum(len(_section(section)) for section in sections) else tomllib.loads(text)


_section = lru_cache(4096)(tomllib.loads)


def read_json(path: Path, shape: type[BaseModel]) -> dict[str, Any] | None:
    """The content of a JSON file; None if it does not exist (yet)."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise FedfewError("E309", str(path), f"is damaged ({error})") from None
    check(shape, content, path)
    return content


def read_warmup(path: Path) -> Warmed | None:
    """The progress of a warm-up, from the file's header alone; None if there is none that can be read."""
    try:
        with path.open("rb") as file:
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


def read_rounds(path: Path, known: Rounds | None = None) -> Rounds:
    """The rounds so far; if the file has only grown since ``known``, only the new lines are read.

    A line still being written is left out. Going back to a checkpoint replaces the file.
    """
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            before = known if known and known.inode == about.st_ino and known.end <= about.st_size else Rounds([])
            file.seek(before.end)
            content = file.read()
    except FileNotFoundError:
        return Rounds([])
    except OSError as error:
        raise FedfewError("E309", str(path), f"cannot be read: {error.strerror or error}") from None
    content = content[: content.rfind(b"\n") + 1]
    fresh = _records(content.split(b"\n")[:-1], path)
    return Rounds(before.records + fresh, before.end + len(content), about.st_ino)


def _records(lines: list[bytes], path: Path) -> list[RoundRecord]:
    try:
        records: list[RoundRecord] = json.loads(b"[" + b",".join(lines) + b"]")  # at once: a sixth faster
    except (ValueError, RecursionError) as error:
        raise FedfewError("E309", str(path), f"holds a line that is not JSON ({error})", RESUME) from None
    if len(records) != len(lines) or not all(isinstance(record, dict) for record in records):
        raise FedfewError("E309", str(path), "holds a line that is not the record of a round", RESUME)
    check(RECORDS, records, path)
    return records
