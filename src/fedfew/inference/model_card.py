"""The model card that goes with every export: what the model is, what it was trained on, how good it is, its limits."""

from pathlib import Path
from typing import Any

from fedfew.core.storage import file_digest, write_atomically
from fedfew.core.text import percent
from fedfew.runs.run import Run

NAME = "MODEL_CARD.md"
MARK = "<!-- written by fedfew export -->"
LIMITS = """\
- It knows the classes below and no others: an image of anything else still gets one of them.
- The accuracy holds for images like the test images: other cameras, sites or years can be worse.
- It was trained with few labels. A mistake in them, or a kind of image they lack, is learned or missed.
- A probability is not a diagnosis, and fairness between groups of people was not tested.
"""


def write_card(run: Run, about: dict[str, Any], file: Path, baseline: float | None) -> Path:
    """Put the card beside an exported file; a card that somebody else wrote there stays."""
    path = file.parent / NAME
    if path.exists() and MARK not in path.read_text("utf-8", errors="replace"):
        path = file.parent / f"{file.stem}.{NAME}"
    write_atomically(path, model_card(run, about, file, baseline).encode())
    return path


def model_card(run: Run, about: dict[str, Any], file: Path, baseline: float | None = None) -> str:
    """The text of the card; ``baseline`` is the accuracy of server-only training, if it is known."""
    parts = [
        f"# {run.title} on {run.dataset}\n\n{MARK}",
        f"An image classifier of {len(about['classes'])} classes, trained by federated learning with fedfew: a server "
        "that holds a few labels, and clients whose unlabeled images never leave them.",
        f"## Accuracy\n\n{_accuracy(run, baseline)}",
        f"## Data\n\n{_data(run, about)}",
        f"## Training\n\n{_training(run, about)}",
        f"## Input and output\n\n{_input(about)}",
        f"## Limits\n\n{LIMITS.rstrip()}",
        f"## File\n\n{_file(run, file)}",
    ]
    return "\n\n".join(parts) + "\n"


def _accuracy(run: Run, baseline: float | None) -> str:
    rows = [f"| {_words(key)} | {percent(value)} |" for key, value in run.accuracies.items() if value is not None]
    if not rows:
        return "Not known: there were no test images."
    table = "\n".join(["| on the test images | accuracy |", "|---|---|", *rows])
    mine = run.accuracy()
    if baseline is None or mine is None:
        return f"{table}\n\nWhat the same labels reach without the clients' images was not measured."
    gain = 100 * (mine - baseline)
    return f"{table}\n\nThe same labels without the clients' images reach {percent(baseline)} ({gain:+.1f} points)."


def _words(key: str) -> str:
    return key.replace("_", " ").capitalize()


def _data(run: Run, about: dict[str, Any]) -> str:
    server, clients = run.classes.get("server") or [], run.classes.get("clients") or []
    sites = run.classes.get("sites") or []
    lines = [
        f"- Dataset: `{run.dataset}`",
        f"- Labels at the server: {sum(server):,}" if server else "- Labels: not known",
    ]
    lines.append(f"- Clients: {len(sites) or run.document.get('clients', 'not known')}")
    if clients:
        lines.append(f"- Images at the clients, without labels: {sum(map(sum, clients)):,}")
    lines.append(f"- Labels held out for validation and calibration: {about.get('calibrated_on', 0):,}")
    names = [f"| {name} | {count:,} |" for name, count in zip(about["classes"], server, strict=False)]
    table = "\n".join(["| class | labels |", "|---|---|", *(names or [f"| {name} | |" for name in about["classes"]])])
    return "\n".join(lines) + f"\n\n{table}"


def _training(run: Run, about: dict[str, Any]) -> str:
    model = ", ".join(f"{key} {value}" for key, value in about["model"].items())
    lines = [f"- Method: `{run.title}`, {run.done} rounds, seed {run.seed}", f"- Model: {model}"]
    if backbone := about.get("backbone"):
        lines.append(f"- Backbone: {backbone['name']}, SHA-256 `{backbone['sha256']}`")
    privacy = run.final.get("privacy")
    if privacy:
        lines.append(f"- Differential privacy of a client: ε {privacy['epsilon']} at δ {privacy['delta']}")
    return "\n".join(lines)


def _input(about: dict[str, Any]) -> str:
    keys = ("input", "resize", "normalisation", "inside", "output")
    lines = [f"- {key.capitalize()}: {about[key]}" for key in keys if key in about]
    lines.append(f"- Mean {about['mean']}, standard deviation {about['std']} (ONNX and torch-export apply them inside)")
    lines.append(f"- Temperature found on held-out labels: {about.get('temperature', 1.0)} (not applied)")
    return "\n".join(lines)


def _file(run: Run, file: Path) -> str:
    versions = run.environment.get("fingerprint", {})
    used = ", ".join(f"{name} {versions[name]}" for name in ("fedfew", "torch") if name in versions)
    weights = run.final.get("model_sha256", "not known")
    lines = [f"`{file.name}`, SHA-256 `{file_digest(file)}`", f"Weights of the run, SHA-256 `{weights}`"]
    return "\n".join(f"- {line}" for line in [*lines, f"Trained with {used}"])
