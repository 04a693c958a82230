"""Equations of the pages: a block marked ``eq`` becomes lines with indices above and below, without a script."""

import re
from html import escape
from typing import Any

INDEX = re.compile(r"([_^])(\{[^}]*\}|\([^)]*\)|L1|l1|l2|fix|mix|\w)")
LETTER = re.compile(r"(?<![A-Za-z&])(?<! (?=a ))([a-zA-Zŷα-ωΔ])(?![A-Za-z;])")


def equation(line: str) -> str:
    """One line: single letters in italics, what follows _ or ^ below or above the line."""
    html, end = "", 0
    for index in INDEX.finditer(line):
        tag, inner = ("sub" if index[1] == "_" else "sup"), equation(index[2].strip("{}()"))
        html += _italic(line[end : index.start()]) + f"<{tag}>{inner}</{tag}>"
        end = index.end()
    return html + _italic(line[end:])


def _italic(text: str) -> str:
    return LETTER.sub(r"<i>\1</i>", escape(text, quote=False))


def fence(source: str, *_: Any, **__: Any) -> str:
    """A block marked ``eq`` as HTML; superfences calls it while the site is built."""
    lines = "".join(f"<div>{equation(line)}</div>" for line in source.splitlines() if line.strip())
    return f'<div class="eq">{lines}</div>'
