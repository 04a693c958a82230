"""Text from outside, made safe for a terminal, a journal and a page."""

LONGEST = 200
"""Characters of a reason that are kept."""


def plain(text: object, longest: int = LONGEST) -> str:
    """One line of printable characters, cut to a length; control and direction characters become spaces."""
    words = str(text)[: longest + 1]
    line = "".join(letter if letter.isprintable() else " " for letter in words)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
