"""The model card that goes with every export: what the model is, what it was trained on, how good it is, its limits."""

from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template

from fedfew.core.storage import file_digest, write_atomically
from fedfew.core.text import percent
from fedfew.data import noun_of
from fedfew.runs.run import Run

NAME = "MODEL_CARD.md"
TASKS = {"images": "image-classification", "rows": "tabular-classification", "texts": "text-classification"}
MARK = "<!-- written by fedfew export -->"


def write_card(run: Run, about: dict[str, Any], file: Path, baseline: float | None) -> Path:
    """Put the card beside an exported file; a card that somebody else wrote there stays."""
    path = file.parent / NAME
    if path.exists() and MARK not in path.read_text("utf-8", errors="replace"):
        path = file.parent / f"{file.stem}.{NAME}"
    write_atomically(path, model_card(run, about, file, baseline).encode())
    return path


def model_card(run: Run, about: dict[str, Any], file: Path, baseline: float | None = None, *, hub: bool = False) -> str:
    """The text of the card, for the ``hub`` of Hugging Face with its header and an example of use.

    ``baseline`` is the accuracy of server-only training, if it is known.
    """
    noun = noun_of(run.dataset)
    text = (resources.files("fedfew.inference") / "model_card.md.j2").read_text("utf-8")
    card: str = Template(text, trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True).render(
        run=run,
        about=about,
        file=file,
        sha256=file_digest(file),
        baseline=baseline,
        hub=hub,
        mark=MARK,
        accuracies={name: value for name, value in run.accuracies.items() if value is not None},
        labels=run.classes.get("server") or [],
        unlabeled=sum(map(sum, run.classes.get("clients") or [])),
        versions=run.environment.get("fingerprint", {}),
        percent=percent,
        noun=noun,
        task=TASKS[noun],
    )
    return card
