"""A drawn figure: its SVG content and the height it takes."""

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Paper:
    """The content of an SVG element, and its height."""

    content: str
    height: int


def text(x: float, y: float, words: str, classes: str = "") -> str:
    """A text at a position."""
    look = f' class="{classes}"' if classes else ""
    return f'<text x="{x:g}" y="{y:g}"{look}>{escape(words)}</text>'
