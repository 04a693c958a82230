"""The main function of a ServerApp: any method of fedfew on the nodes of a Flower project, in fedfew's round loop."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedfew.config.names import own_code
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.deploy.server.members import Membership
from fedfew.deploy.server.network import PROJECT, is_unfinished, site_names
from fedfew.deploy.server.server_app import advance, warn
from fedfew.runs.run import Run
from fedfew.runs.session import Session, reopen, start

_FLEET = {"fleet.kind": "flower", "fleet.network": PROJECT}


def run(grid: Grid, out: str | Path, settings: Mapping[str, Any], preset: str = "") -> Run:
    """Train on the nodes of ``grid`` and write the run folder ``out``; an unfinished run in it is continued.

    ``settings`` are dotted keys of the config, such as ``{"method.name": "fedmix", "server.epochs": 5}``; ``preset`` is
    a preset or a TOML file to start from. ``model.name`` and ``dataset.name`` name your own functions
    (``package.module:name``): one returns the model, the other a `Dataset` with the server's labels and its test
    images. ``clients`` is the number of nodes; the first round waits for all of them.
    """
    config = load(preset or {}, dict(settings) | _FLEET)
    if config.privacy.sums == "secure":
        why = "nodes of a Flower project do not know each other's keys"
        raise FedfewError("E113", "privacy.sums", why, 'Use "open", or a network of `fedfew deploy`')
    folder = Path(out)
    if is_unfinished(folder):
        session = reopen(folder, warn, _FLEET, allow_code=tuple(own_code(config.document).values()))
        _refuse_other_settings(session, settings)
    else:
        session = start(config, folder)
    advance(grid, session, Membership(site_names(session.parts.config), session.parts.config.clients))
    return Run(session.folder)


def _refuse_other_settings(session: Session, settings: Mapping[str, Any]) -> None:
    """E307 if a run that is continued was started with other settings."""
    for key, value in settings.items():
        was: Any = session.parts.config.document
        for part in key.split("."):
            was = was.get(part)
        if not key.startswith("fleet.") and was != value:
            reason = f"{key} is {value!r} here, but {was!r} in the run that would be continued"
            raise FedfewError("E307", str(session.folder.path), reason, "Give the new run another folder")
