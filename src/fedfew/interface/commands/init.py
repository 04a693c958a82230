"""fedfew init: look at a folder of images and write a config for it."""

from pathlib import Path
from typing import Annotated

import typer

from fedfew.interface.options import Json

NAME = "fedfew.toml"


def register(app: typer.Typer) -> None:
    app.command("init")(init)


def init(
    folder: Annotated[Path, typer.Argument(help="Folder with server/<class>/, clients/<site>/ and test/<class>/.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help=f"Default: FOLDER/{NAME}.")] = None,
    network: Annotated[bool, typer.Option("--network", help="The sites' images are on other machines.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")] = False,
    json: Json = False,
) -> None:
    """Look at a folder of images and write a commented config for it."""
    from fedfew.config.first_config import first_config, next_steps
    from fedfew.config.schema import load
    from fedfew.core.errors import FedfewError
    from fedfew.core.storage import write_atomically
    from fedfew.interface.console import err, print_json

    target = out or folder / NAME
    text = first_config(folder, target, network)
    if target.exists() and not force:
        remedy = "Add --force to overwrite it, or give another place with --out"
        raise FedfewError("E301", str(target), "is there already", remedy)
    if not target.parent.is_dir():
        raise FedfewError("E305", str(target), f"the folder {target.parent} does not exist", "Create it first")
    write_atomically(target, text.encode())
    load(target, {"clients": 1} if network else None)  # what is written must be a config
    if json:
        print_json({"config": str(target)})
        return
    err.print(f"wrote {target}; look at it, then:", markup=False, soft_wrap=True)
    for line in next_steps(target, network):
        err.print(f"  {line}", markup=False, soft_wrap=True)
