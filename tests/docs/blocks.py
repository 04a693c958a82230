"""The code blocks of a Markdown page: which are to be run, which are files to be written, which are only shown.

A block is run if its language is bash or python. With ``title="NAME"`` it is a file of that name instead, written where
the later blocks find it. A comment ``<!-- no-run: REASON -->`` on the line above says why a block cannot be run.
"""

import re
from dataclasses import dataclass
from pathlib import Path

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
