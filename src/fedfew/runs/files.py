"""What the files of a run folder hold, worked out from the run itself: so each can be checked and written again."""

import json
from typing import Any

import torch

from fedfew.build.parts import Parts
from fedfew.core import toml
from fedfew.core.storage import digest
from fedfew.core.types import ServerState
from fedfew.data import Federation
from fedfew.runs.folder import CLASSES, CONFIG, ENVIRONMENT, MODEL, PARTITION, SUMMARY, RunFolder
from fedfew.runs.model_file import model_file
from fedfew.runs.summary import summarise

CHARTED_CLIENTS = 10_000
"""Beyond this many clients no chart shows them one by one, and counting them would cost more than the run."""


def static_files(parts: Parts, facts: dict[str, Any]) -> dict[str, bytes]:
    """The files that stay the same for the whole run; the manifest holds all that is needed to write them again."""
    return {
        CONFIG: toml.dumps(facts["document"]).encode(),
        ENVIRONMENT: as_json(facts["environment"]),
        PARTITION: parts.federation.partition.to_bytes(),
        CLASSES: json.dumps(class_counts(parts.federation), ensure_ascii=False).encode(),
    }


def final_files(folder: RunFolder, parts: Parts, state: ServerState) -> dict[str, bytes]:
    """The files of a run that has done its last round."""
    model = model_file(parts, state)
    return {MODEL: model, SUMMARY: as_json(summarise(folder.records(), parts.config, digest(model)))}


def as_json(content: dict[str, Any]) -> bytes:
    """JSON for people to read."""
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def class_counts(federation: Federation) -> dict[str, Any]:
    """The classes' names and how many images of each the server and every client hold, for charts without the dataset.

    The clients' counts are known in a simulation only; where any image's class is not known they are left out.
    """
    width, truth = len(federation.classes), federation.truth.numpy()
    few = federation.partition.clients <= CHARTED_CLIENTS
    known = few and len(truth) > 0 and bool((truth >= 0).all())
    return {
        "classes": list(federation.classes),
        "server": label_counts(federation),
        "clients": federation.partition.histogram(truth, width).tolist() if known else [],
        "sites": list(federation.sites),
    }


def label_counts(federation: Federation) -> list[int]:
    """How many labels of each class the server has."""
    return [int(n) for n in torch.bincount(federation.server.labels, minlength=len(federation.classes))]
