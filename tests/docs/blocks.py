"""Code blocks of the pages, the built site, and presets made small so that a page's commands take a second each.

A block is run if its language is bash or python. With ``title="NAME"`` it is a file of that name instead, written where
the later blocks find it. A comment ``<!-- no-run: REASON -->`` on the line above says why a block cannot be run.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfew.config import schema, tables

FENCE = re.compile(r"^(?P<indent>\s*)```(?P<language>[\w-]*)(?P<more>[^`]*)$")
TITLE = re.compile(r'title="([^"]+)"')
EXCUSE = re.compile(r"^\s*<!-- no-run: (.+?) -->\s*$")


@dataclass(frozen=True)
class Block:
    """A fenced block and where it stands."""

    page: str
    line: int
    language: str
    code: str
    title: str = ""
    excuse: str = ""

    @property
    def position(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path, name: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    lines = page.read_text("utf-8").splitlines()
    result, i = [], 0
    while i < len(lines):
        opening = FENCE.match(lines[i])
        if not opening:
            i += 1
            continue
        end = next(j for j in range(i + 1, len(lines)) if lines[j].strip() == "```")
        indent = len(opening["indent"])
        excuse = EXCUSE.match(lines[i - 1]) if i else None
        title = TITLE.search(opening["more"])
        result.append(
            Block(
                page=name,
                line=i + 1,
                language=opening["language"],
                code="\n".join(line[indent:] for line in lines[i + 1 : end]) + "\n",
                title=title[1] if title else "",
                excuse=excuse[1] if excuse else "",
            )
        )
        i = end + 1
    return result


ROOT = Path(__file__).parents[2]


def build_site(folder: Path) -> Path:
    """The built pages; fails with what the builder says about broken links and anchors."""
    for name in ("docs", "tools"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "mkdocs.yml", folder)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


Table = dict[str, Any]


def smaller(table: Table) -> Table:
    """Two rounds at most, a few hundred images, a narrow network, small images for a backbone, one process."""
    built = table | {"rounds": min(table.get("rounds", 2), 2)}
    dataset = dict(table.get("dataset", {}))
    if dataset.get("name") == "mini-mnist":
        dataset |= {"unlabeled": 240, "test": 100, "validation": 50}
    elif dataset.get("name") == "mini-cifar":
        dataset |= {"unlabeled": 400, "test": 100}
    model = table.get("model", {})
    sections = {
        "dataset": dataset,
        "model": model | {"cnn": {"width": 4}, "efficientnet-lite0": {"size": 32}}.get(model.get("name", ""), {}),
        "method": table.get("method", {}) | ({"warmup": 2} if "warmup" in table.get("method", {}) else {}),
        "server": table.get("server", {}) | {"epochs": 1},
        "client": table.get("client", {}) | {"epochs": 1},
        "fleet": {"kind": "inline"},
    }
    return built | sections


def shrink(monkeypatch: Any) -> None:
    """From here on, presets and config files are read small; a run folder's run.toml is what it is."""

    def read(source: str | Path | Table, *more: Any) -> tuple[Table, str]:
        table, origin = tables.read(source, *more)
        as_it_is = isinstance(source, dict) or Path(origin).name == "run.toml"
        return (table, origin) if as_it_is else (smaller(table), origin)

    monkeypatch.setattr(schema, "read", read)
