"""The example notebook, run cell by cell in one process: by a test, and to store its outputs.

python -m tools.notebook examples/quickstart.ipynb     # in an empty folder; writes what the cells gave
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from PIL import Image

Cell = dict[str, Any]


def run_cell(code: str, module: ModuleType) -> Any:
    """Run a cell as a notebook does: the value of its last expression is what is shown."""
    tree, shown = ast.parse(code), ast.Name("_shown", ast.Store())
    if isinstance(last := tree.body[-1], ast.Expr):
        tree.body[-1] = ast.Assign([shown], last.value)
    vars(module).pop("_shown", None)
    exec(compile(ast.fix_missing_locations(tree), "cell", "exec"), vars(module))
    return vars(module).get("_shown")


def code_cells(notebook: dict[str, Any]) -> list[Cell]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown_as(value: Any, count: int) -> list[Cell]:
    """A cell's value in the notebook's format: as a picture or HTML where it has one, and as text."""
    if value is None:
        return []
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if (html := getattr(value, "_repr_html_", None)) and (text := html()):
        data["text/html"] = text.splitlines(keepends=True)
    if hasattr(value, "savefig"):
        drawn, picture = io.BytesIO(), io.BytesIO()
        value.savefig(drawn, format="png", dpi=60)
        Image.open(drawn).convert("RGB").quantize(32, dither=Image.Dither.NONE).save(picture, "PNG", optimize=True)
        data["image/png"] = base64.b64encode(picture.getvalue()).decode()
    return [{"output_type": "execute_result", "execution_count": count, "metadata": {}, "data": data}]


def execute(path: Path) -> None:
    """Run all cells and store what each printed and gave."""
    notebook = json.loads(path.read_text("utf-8"))
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    for count, cell in enumerate(code_cells(notebook), 1):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            value = run_cell("".join(cell["source"]), module)
        printed = output.getvalue().splitlines(keepends=True)
        stream = [{"output_type": "stream", "name": "stdout", "text": printed}] if printed else []
        cell["execution_count"], cell["outputs"] = count, [*stream, *shown_as(value, count)]
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    import matplotlib

    matplotlib.use("Agg")
    target = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        execute(target)
        os.chdir(target.parent)
