"""Parts of an SVG that all figures share: its size, texts and a legend."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Paper:
    """The content of an SVG element, its height and its axes."""

    content: str
    height: int
    axes: str
    """Where its values are, for the script that shows them: the kind of figure, then numbers in the SVG's units."""


def text(x: float, y: float, words: str, classes: str = "") -> str:
    """A text at a position."""
    look = f' class="{classes}"' if classes else ""
    return f'<text x="{x:g}" y="{y:g}"{look}>{escape(words)}</text>'


def legend(entries: Sequence[tuple[str, str]], width: int) -> tuple[str, float]:
    """Names, each with the SVG of its key, in as many rows as needed, and their height."""
    parts, x, y = [], 8.0, 12.0
    for name, key in entries:
        need = 28 + 7.1 * len(name)
        if x > 8 and x + need > width:
            x, y = 8.0, y + 17
        parts.append(f'<g transform="translate({x:g} {y:g})">{key}{text(18, 0, name)}</g>')
        x += need + 4
    return f'<g aria-hidden="true">{"".join(parts)}</g>', y + 12
