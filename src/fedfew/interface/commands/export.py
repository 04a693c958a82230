"""fedfew export: the model of a run as one file for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from fedfew.interface.options import Json


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    format: Annotated[str, typer.Option("--format", help="safetensors, onnx or torch-export.")] = "safetensors",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Default: RUN/export/model.safetensors, .onnx or .pt2.")
    ] = None,
    json: Json = False,
) -> None:
    """Export a model: images in, probabilities out, with its preprocessing and class names; compared with torch."""
    from fedfew.inference.export import TOLERANCE, export_model
    from fedfew.interface import console
    from fedfew.runs.run import Run

    done = export_model(Run.open(run), format, out)
    told = f"largest difference of a probability from torch: {done.difference:.2g} (allowed {TOLERANCE:g})"
    if json:
        console.print_json(
            {
                "path": str(done.path),
                "format": done.format,
                "max_difference": done.difference,
                "bytes": done.path.stat().st_size,
            }
        )
        return
    console.err.print(told)
    console.out.print(f"{done.path} ({console.size(done.path.stat().st_size)})", markup=False, soft_wrap=True)
