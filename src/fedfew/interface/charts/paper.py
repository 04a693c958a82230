"""A drawn figure: its SVG content and the height it takes."""

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
