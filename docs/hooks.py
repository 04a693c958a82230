"""Equations of the pages: a block marked ``eq`` becomes lines with indices above and below, without a script."""

import re
from html import escape
from typing import Any

BLOCK = re.compile(r"^```eq\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDEX = re.compile(r"([_^])(\{[^}]*\}|\([^)]*\)|L1|l1|l2|fix|mix|\w)")
LETTER = re.compile(r"(?<![A-Za-z&])(?<! (?=a ))([a-zA-Zŷα-ωΔ])(?![A-Za-z;])")


def equation(line: str) -> str:
    """One line: single letters in italics, what follows _ or ^ below or above the line."""
    made, place = "", 0
    for found in INDEX.finditer(line):
        tag, inner = ("sub" if found[1] == "_" else "sup"), equation(found[2].strip("{}()"))
        made += _italic(line[place : found.start()]) + f"<{tag}>{inner}</{tag}>"
        place = found.end()
    return made + _italic(line[place:])


def _italic(text: str) -> str:
    return LETTER.sub(r"<i>\1</i>", escape(text, quote=False))


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs for every page."""

    def drawn(block: re.Match[str]) -> str:
        lines = "".join(f"<div>{equation(line)}</div>" for line in block[1].splitlines() if line.strip())
        return f'<div class="eq">{lines}</div>'

    return BLOCK.sub(drawn, markdown)
