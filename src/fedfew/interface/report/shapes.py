"""The shapes of a run folder's files: what a chart counts on, checked once when a file is read."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, TypeAdapter, ValidationError

from fedfew.core.errors import FedfewError

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Known = Number | None
Client = Annotated[StrictInt, Field(ge=0)]
Count = Annotated[StrictInt, Field(ge=0)]


class Rejected(BaseModel):
    """An update that was left out."""

    client: Client
    code: StrictStr
    reason: StrictStr


class Update(BaseModel):
    """How far a client moved, where that is known."""

    client: Client
    norm: Known = None
    cosine: Known = None


class Round(BaseModel):
    """A line of rounds.jsonl."""

    round: Count
    accuracy: Known
    loss: Known
    validation: Known
    cohort: list[Client]
    weights: dict[Annotated[str, Field(pattern=r"^\d+$")], Known]
    coverage: Known
    correct: Known
    pseudo_classes: list[Count]
    bytes_up: Number
    bytes_down: Number
    rejected: list[Rejected]
    skipped: StrictBool
    norm_server: Known
    norm_clients: Known
    updates: list[Update]
    seconds: dict[str, Number]


class Classes(BaseModel):
    """classes.json; an older run has none."""

    classes: list[StrictStr] = []
    server: list[Count] = []
    clients: list[list[Count]] = []


class Named(BaseModel):
    """A section of the config that names what it is about."""

    name: StrictStr


class Data(Named):
    """Which images, and the seed of their split."""

    seed: StrictInt


class Settings(BaseModel):
    """run.toml, as far as every run has it."""

    seed: StrictInt
    rounds: Count
    clients: Count
    method: Named
    aggregator: Named
    dataset: Data


class Surroundings(BaseModel):
    """environment.json."""

    model_config = ConfigDict(extra="allow")
    fingerprint: dict[str, Any] = {}
    command: StrictStr = ""


class Privacy(BaseModel):
    """What was done to updates, and the ε it gave; unknown without noise."""

    clip: Number
    noise: Number
    delta: Number
    rounds_of_a_client: Count
    epsilon: Known


class Summary(BaseModel):
    """summary.json; a run that has not finished has none."""

    model_sha256: StrictStr = ""
    privacy: Privacy | None = None


ROUNDS_SHAPE = TypeAdapter(list[Round])


def check(shape: type[BaseModel] | TypeAdapter[Any], content: object, place: str) -> None:
    """E309 with the first thing that is not as it must be."""
    try:
        if isinstance(shape, TypeAdapter):
            shape.validate_python(content)
        else:
            shape.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FedfewError("E309", place, f"is not what a run writes ({where}: {first['msg']})") from None
