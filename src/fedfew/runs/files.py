"""The content of a run folder's files, derived from the run itself; and the checks and repairs before it continues."""

import json
import tomllib
from typing import Any

import torch
from safetensors.torch import save as save_tensors

from fedfew.config.files import dumps
from fedfew.config.parts import Parts
from fedfew.core.engine import Engine
from fedfew.core.environment import fingerprint
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Vector
from fedfew.core.storage import Warn, digest, drop_temporaries, file_digest, write_atomically, writing
from fedfew.core.types import ServerState
from fedfew.data.federation import Federation
from fedfew.runs import folder as stored
from fedfew.runs.checkpoints import Checkpoint
from fedfew.runs.folder import RunFolder
from fedfew.runs.journal import go_on
from fedfew.runs.model_file import class_shares, is_intact, model_file, temperature
from fedfew.runs.statistics import Judged, evaluate, evenness
from fedfew.runs.summary import reason_to_stop, summarise
from fedfew.training.label_shift import own_class_mix

CHARTED_CLIENTS = 10_000
"""With more clients no chart shows them one by one, and counting them would cost more than the run."""


def static_files(parts: Parts, facts: dict[str, Any]) -> dict[str, bytes]:
    """The files that stay the same for the whole run; the manifest holds all that is needed to rewrite them."""
    return {
        stored.CONFIG: dumps(facts["document"]).encode(),
        stored.ENVIRONMENT: as_json(facts["environment"]),
        stored.PARTITION: parts.federation.partition.to_bytes(),
        stored.CLASSES: json.dumps(class_counts(parts.federation), ensure_ascii=False).encode(),
    }


def final_files(folder: RunFolder, parts: Parts, state: ServerState) -> dict[str, bytes]:
    """The files of a run that has finished its last round."""
    model = model_file(parts, state)
    files, measures = {stored.MODEL: model}, dict[str, Any]()
    if len(parts.federation.test):
        parts.network.load(state.evaluated)
        probabilities = parts.network.probabilities(parts.federation.test.samples).contiguous()
        labels = parts.federation.test.labels.contiguous()
        groups = {} if (known := parts.federation.test.groups) is None else {"groups": known.contiguous()}
        judged = Judged(labels.numpy(), probabilities.double().numpy(), groups["groups"].numpy() if groups else None)
        measures = evaluate(judged, parts.federation.classes) | {"sites": site_results(parts, state.evaluated)}
        measures |= by_client(parts, state.evaluated) if parts.config.evaluate.by_client else {}
        files |= {stored.PREDICTIONS: save_tensors({"labels": labels, "probabilities": probabilities} | groups)}
        files |= {stored.EVALUATION: as_json(measures)}
    return files | {stored.SUMMARY: as_json(summarise(folder.records(), parts.config, digest(model), measures))}


def has_ended(folder: RunFolder, parts: Parts, state: ServerState) -> bool:
    """Whether no round is left: all are done, or the records say that the run ends early."""
    config = parts.config
    if state.round >= config.rounds or config.evaluate.stop == "never":
        return state.round >= config.rounds
    return bool(reason_to_stop(folder.records(), config.evaluate, config.rounds))


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


def by_client(parts: Parts, vector: Vector) -> dict[str, Any]:
    """The model's accuracy on each client's images, by the client's number, where a simulation knows their classes."""
    federation = parts.federation
    if not len(federation.samples) or bool((federation.truth < 0).any()):
        return {}
    parts.network.load(vector)
    right = (parts.network.probabilities(federation.samples).argmax(1) == federation.truth).numpy()
    shares = (federation.partition.of(k) for k in range(federation.partition.clients))
    accuracies = [float(right[share].mean()) if len(share) else None for share in shares]
    return {"clients": accuracies} | evenness([value for value in accuracies if value is not None])


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


def refuse_foreign(folder: RunFolder, facts: dict[str, Any]) -> None:
    """A checkpoint whose config *and* start differ from the folder's own files belongs to another run.

    If only one differs it is damage or somebody's edit, and is restored from the checkpoint.
    """
    try:
        document = tomllib.loads((folder / stored.CONFIG).read_text("utf-8"))
        recorded = json.loads((folder / stored.ENVIRONMENT).read_text("utf-8"))
    except (OSError, ValueError):
        return
    if document != facts["document"] and recorded != facts["environment"]:
        problem = f"belong to another run than {stored.CONFIG} and {stored.ENVIRONMENT}"
        raise FedfewError("E307", str(folder.checkpoints), problem)


def compare_environment(
    path: str, checkpoint: Checkpoint, engine: Engine, warn: Warn, *, anyway: bool
) -> dict[str, Any]:
    """The run's environment, plus this one if it differs: then the bits may differ, and the folder says so."""
    recorded: dict[str, Any] = checkpoint.facts["environment"]
    before = [recorded, *recorded.get("resumed", [])][-1]["fingerprint"]
    now = fingerprint(engine.chosen_device())
    then, here = {"device": "cpu"} | before, {"device": "cpu"} | now
    other = [f"{key} was {then.get(key)}, is {here[key]}" for key in here if then.get(key) != here[key]]
    if not other:
        return recorded
    fault = FedfewError("E308", path, "; ".join(other))
    if not anyway:
        raise fault
    warn(fault)
    again = {"after_round": checkpoint.state.round, "fingerprint": now}
    return recorded | {"resumed": [*recorded.get("resumed", []), again]}


def refuse_misfit(folder: RunFolder, parts: Parts, checkpoint: Checkpoint) -> None:
    """Refuse a method's version, data or a model other than those the run was started with."""
    if checkpoint.facts.get("state_format", 1) != parts.config.method.state_format:
        problem = f"the state is of another version of {parts.config.method_name}, which this one cannot continue"
        remedy = f"Finish the run with the version of fedfew that {stored.ENVIRONMENT} names, or start a new run"
        raise FedfewError("E307", str(folder.checkpoints), problem, remedy)
    if parts.federation.partition.hash != checkpoint.facts["partition"]:
        problem = "the dataset gives another partition than at the start"
        raise FedfewError("E307", str(folder / stored.PARTITION), problem)
    if checkpoint.facts["images"] != parts.federation.fingerprint():
        which = "the images, or the backbone and its preprocessing, are" if parts.backbone else "the images are"
        problem = f"{which} not those the run was started with"
        raise FedfewError("E307", str(folder / stored.CONFIG), problem, "Put the files back, or start a new run")
    if checkpoint.state.omega.shape != parts.network.vector.shape:
        raise FedfewError("E307", str(folder.checkpoints), "the checkpoint belongs to another model")


def repair(folder: RunFolder, parts: Parts, checkpoint: Checkpoint, warn: Warn) -> None:
    """Rewrite every file that has changed; the changed file is kept next to it."""
    for directory in (folder.path, folder.checkpoints):
        drop_temporaries(directory)
    go_on(folder, checkpoint.facts["rounds"], warn)
    files = static_files(parts, checkpoint.facts)
    if not has_ended(folder, parts, checkpoint.state):  # a run that goes back from its end is not finished
        (folder / stored.SUMMARY).unlink(missing_ok=True)
    else:
        final = final_files(folder, parts, checkpoint.state)
        files |= {name: content for name, content in final.items() if (folder / name).exists()}
    if (folder / stored.BEST).exists() and not is_intact(folder / stored.BEST):
        _move_aside(folder, stored.BEST)
        problem = f"had changed and cannot be recreated; the changed file is now {stored.BEST}.changed"
        warn(FedfewError("E309", str(folder / stored.BEST), problem, ""))
    for name, content in files.items():
        if file_digest(folder / name) == digest(content):
            continue
        problem = "was missing and has been restored"
        if (folder / name).exists():
            problem = f"had changed and has been restored; the changed file is now {name}.changed"
            _move_aside(folder, name)
        write_atomically(folder / name, content)
        warn(FedfewError("E309", str(folder / name), problem, ""))


def _move_aside(folder: RunFolder, name: str) -> None:
    with writing(folder / name):
        (folder / name).replace(folder / f"{name}.changed")
