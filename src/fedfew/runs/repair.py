"""Checks before a run continues: does the checkpoint belong here, will the bits be equal, is every file intact?"""

import json
import tomllib
from typing import Any

from fedfew.config.parts import Parts
from fedfew.core.engine import Engine
from fedfew.core.environment import fingerprint
from fedfew.core.errors import FedfewError
from fedfew.core.storage import Warn, digest, drop_temporaries, file_digest, write_atomically
from fedfew.runs.checkpoints import Checkpoint
from fedfew.runs.files import final_files, static_files
from fedfew.runs.folder import BEST, CONFIG, ENVIRONMENT, PARTITION, SUMMARY, RunFolder
from fedfew.runs.journal import go_on
from fedfew.runs.model_file import is_whole


def refuse_foreign(folder: RunFolder, facts: dict[str, Any]) -> None:
    """A checkpoint whose config *and* start differ from the folder's own files belongs to another run.

    If only one differs it is damage or somebody's edit, and is restored from the checkpoint.
    """
    try:
        document = tomllib.loads((folder / CONFIG).read_text("utf-8"))
        recorded = json.loads((folder / ENVIRONMENT).read_text("utf-8"))
    except (OSError, ValueError):
        return
    if document != facts["document"] and recorded != facts["environment"]:
        raise FedfewError("E307", str(folder.checkpoints), f"belong to another run than {CONFIG} and {ENVIRONMENT}")


def compare_environment(path: str, checkpoint: Checkpoint, warn: Warn, *, anyway: bool) -> dict[str, Any]:
    """The run's environment, plus this one if it differs: then the bits may differ, and the folder says so."""
    recorded: dict[str, Any] = checkpoint.facts["environment"]
    before = [recorded, *recorded.get("resumed", [])][-1]["fingerprint"]
    now = fingerprint(Engine(checkpoint.facts["document"]["engine"]["device"]).chosen_device())
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
    """Refuse data or a model other than those the run was started with."""
    if parts.federation.partition.hash != checkpoint.facts["partition"]:
        raise FedfewError("E307", str(folder / PARTITION), "the dataset gives another partition than at the start")
    if checkpoint.facts["images"] != parts.federation.fingerprint():
        which = "the images, or the backbone and its preprocessing, are" if parts.backbone else "the images are"
        problem = f"{which} not those the run was started with"
        raise FedfewError("E307", str(folder / CONFIG), problem, "Put the files back, or start a new run")
    if checkpoint.state.omega.shape != parts.network.vector.shape:
        raise FedfewError("E307", str(folder.checkpoints), "the checkpoint belongs to another model")


def repair(folder: RunFolder, parts: Parts, checkpoint: Checkpoint, warn: Warn) -> None:
    """Rewrite every file that has changed; the changed file is kept next to it."""
    for directory in (folder.path, folder.checkpoints):
        drop_temporaries(directory)
    go_on(folder, checkpoint.facts["rounds"], warn)
    files = static_files(parts, checkpoint.facts)
    if checkpoint.state.round < parts.config.rounds:  # a run that goes back from its end is not finished
        (folder / SUMMARY).unlink(missing_ok=True)
    else:
        final = final_files(folder, parts, checkpoint.state)
        files |= {name: content for name, content in final.items() if (folder / name).exists()}
    if (folder / BEST).exists() and not is_whole(folder / BEST):
        _move_aside(folder, BEST)
        problem = f"had changed and cannot be recreated; the changed file is now {BEST}.changed"
        warn(FedfewError("E309", str(folder / BEST), problem, ""))
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
    try:
        (folder / name).replace(folder / f"{name}.changed")
    except OSError as error:
        raise FedfewError("E305", str(folder / name), f"{error.strerror or error}") from error
