"""Text: from outside, made safe for a terminal, a journal and a page; and numbers as people write them."""

LONGEST = 200
"""Characters of a reason that are kept."""
UNITS = ("B", "kB", "MB", "GB", "TB")


def plain(text: object, longest: int = LONGEST) -> str:
    """One line of printable characters, cut to a length; control and direction characters become spaces."""
    words = str(text)[: longest + 1]
    line = "".join(letter if letter.isprintable() else " " for letter in words)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def percent(value: float | None, digits: int = 1) -> str:
    """0.4753 → 47.5 %, and a dash for an unknown value."""
    return "–" if value is None else f"{100 * value:.{digits}f} %"


def size(count: float | None) -> str:
    """Bytes in a readable form."""
    if count is None:
        return "–"
    power = next((p for p in range(len(UNITS)) if abs(count) < 999.5 * 1000**p), len(UNITS) - 1)
    shown = count / 1000**power
    return f"{shown:.{0 if power == 0 or abs(shown) >= 100 else 1}f} {UNITS[power]}"


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours."""
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
