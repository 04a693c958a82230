"""The content of a run folder's files, derived from the run itself, so that each can be checked and rewritten."""

import json
from typing import Any

import torch
from safetensors.torch import save as save_tensors

from fedfew.config.files import dumps
from fedfew.config.parts import Parts
from fedfew.core.layout import Vector
from fedfew.core.storage import digest
from fedfew.core.types import ServerState
from fedfew.data.federation import Federation
from fedfew.runs.folder import (
    CLASSES,
    CONFIG,
    ENVIRONMENT,
    EVALUATION,
    MODEL,
    PARTITION,
    PREDICTIONS,
    SUMMARY,
    RunFolder,
)
from fedfew.runs.model_file import class_shares, model_file, temperature
from fedfew.runs.statistics import Judged, evaluate
from fedfew.runs.summary import summarise
from fedfew.training.label_shift import own_class_mix

CHARTED_CLIENTS = 10_000
"""With more clients no chart shows them one by one, and counting them would cost more than the run."""


def static_files(parts: Parts, facts: dict[str, Any]) -> dict[str, bytes]:
    """The files that stay the same for the whole run; the manifest holds all that is needed to rewrite them."""
    return {
        CONFIG: dumps(facts["document"]).encode(),
        ENVIRONMENT: as_json(facts["environment"]),
        PARTITION: parts.federation.partition.to_bytes(),
        CLASSES: json.dumps(class_counts(parts.federation), ensure_ascii=False).encode(),
    }


def final_files(folder: RunFolder, parts: Parts, state: ServerState) -> dict[str, bytes]:
    """The files of a run that has finished its last round."""
    model = model_file(parts, state)
    files, measures = {MODEL: model}, dict[str, Any]()
    if len(parts.federation.test):
        parts.network.load(state.evaluated)
        probabilities = parts.network.probabilities(parts.federation.test.samples).contiguous()
        labels = parts.federation.test.labels.contiguous()
        judged = Judged(labels.numpy(), probabilities.double().numpy())
        measures = evaluate(judged, parts.federation.classes) | {"sites": site_results(parts, state.evaluated)}
        files |= {PREDICTIONS: save_tensors({"labels": labels, "probabilities": probabilities})}
        files |= {EVALUATION: as_json(measures)}
    return files | {SUMMARY: as_json(summarise(folder.records(), parts.config, digest(model), measures))}


def site_results(parts: Parts, vector: Vector, *, simulated: bool = False) -> list[dict[str, Any]]:
    """For each site whose images are here: its class mix as the model sees it, and accuracy where classes are known.

    Clients of a simulation have no names and are many, so they are included only on request (``simulated``).
    """
    federation = parts.federation
    if not len(federation.samples) or not (federation.sites or simulated):
        return []
    parts.network.load(vector)
    prior = torch.tensor(class_shares(federation.server, len(federation.classes)))
    scale = temperature(parts.network, federation.validation)
    results = []
    for k in range(federation.partition.clients):
        index = torch.from_numpy(federation.partition.of(k))
        name = federation.sites[k] if federation.sites else f"client {k}"
        result: dict[str, Any] = {"site": name, "images": len(index)}
        if len(index):
            probabilities, truth = parts.network.probabilities(federation.samples.take(index)), federation.truth[index]
            _, mix = own_class_mix(probabilities, prior, scale)
            result |= {"mix": [round(share, 4) for share in mix.tolist()]}
            known = bool((truth >= 0).all())
            result |= {"accuracy": float((probabilities.argmax(1) == truth).double().mean()) if known else None}
        results.append(result)
    return results


def as_json(content: dict[str, Any]) -> bytes:
    """JSON for people to read."""
    return json.dumps(content, indent=1, ensure_ascii=False).encode()


def class_counts(federation: Federation) -> dict[str, Any]:
    """The classes' names and how many images of each the server and every client hold, for charts without the dataset.

    The clients' counts are known in a simulation only; if any image's class is unknown they are left out.
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
