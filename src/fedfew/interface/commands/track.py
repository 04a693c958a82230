"""fedfew track: send a run's rounds to TensorBoard or MLflow."""

from pathlib import Path
from typing import Annotated

import typer

from fedfew.core.errors import FedfewError
from fedfew.interface.console import out as console
from fedfew.interface.console import print_json
from fedfew.interface.options import Json, Runs
from fedfew.interface.sinks import to_mlflow, to_tensorboard
from fedfew.runs.folder import named_runs
from fedfew.runs.run import Run


def track(
    runs: Runs,
    to: Annotated[str, typer.Option(metavar="tensorboard|mlflow", help="Where the rounds go.")],
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="Folder for the event files; mlflow: or a server's address.")
    ] = "tracking",
    json: Json = False,
) -> None:
    """Send a run's new rounds to TensorBoard or MLflow; safe to repeat during the run."""
    if to not in ("tensorboard", "mlflow"):
        raise FedfewError("E105", "--to", f"{to!r} is unknown", "Known: tensorboard, mlflow")
    written = {}
    for path in named_runs(runs):
        run = Run.open(path)
        written[str(path)] = to_tensorboard(run, Path(out)) if to == "tensorboard" else to_mlflow(run, out)
    if json:
        print_json({"to": to, "out": out, "rounds": written})
        return
    for name, rounds in written.items():
        console.print(f"{name}: {rounds} new rounds", soft_wrap=True)
    show = f"tensorboard --logdir {out}" if to == "tensorboard" else f"mlflow ui --backend-store-uri {out}"
    console.print(f"open them with: {show}", soft_wrap=True)
