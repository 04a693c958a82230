"""What a drawn figure consists of: its marks and how much room they take."""

from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Paper:
    """The inside of an SVG element, and its height."""

    content: str
    height: int


def text(x: float, y: float, words: str, classes: str = "") -> str:
    """Words at a place."""
    look = f' class="{classes}"' if classes else ""
    return f'<text x="{x:g}" y="{y:g}"{look}>{escape(words)}</text>'
