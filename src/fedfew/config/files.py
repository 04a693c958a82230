"""Presets and TOML files: their names, what each is for, and their text as a table."""

import difflib
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError

PRESETS = resources.files("fedfew.config") / "presets"


def presets() -> dict[str, str]:
    """The presets' names and what each is for (the first comment line of its file)."""
    files = sorted((f for f in PRESETS.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {f.name.removesuffix(".toml"): f.read_text("utf-8").partition("\n")[0].lstrip("# ") for f in files}


def parse(source: str | Path) -> tuple[dict[str, Any], str, Path]:
    """The table in a preset or a TOML file as written, its name for errors, and the folder its paths start from."""
    known, place, folder = presets(), str(source), Path()
    if place in known:
        text = (PRESETS / f"{place}.toml").read_text("utf-8")
    else:
        try:
            text, folder = Path(source).read_text("utf-8"), Path(source).parent
        except (OSError, UnicodeDecodeError) as error:
            close = difflib.get_close_matches(place, known, 1)
            hint = f"Did you mean {close[0]}? " if close else ""
            fault = "" if isinstance(error, FileNotFoundError) else f" ({error})"
            what = f"is neither a preset nor a readable TOML file{fault}"
            raise FedfewError("E101", place, what, f"{hint}Presets: {', '.join(known)}") from None
    try:
        return tomllib.loads(text), place, folder
    except tomllib.TOMLDecodeError as error:
        raise FedfewError("E102", place, str(error)) from None
    except RecursionError:
        raise FedfewError("E102", place, "lists are nested too deeply") from None
    except ValueError as error:  # an integer of thousands of digits
        raise FedfewError("E102", place, str(error)) from None


def parse_set(text: str) -> tuple[str, Any]:
    """``partition.mu=0.1`` → ("partition.mu", 0.1); a value that is not TOML is taken as a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise FedfewError("E102", f"--set {text}", "is not of the form key=value", "Write e.g. --set partition.mu=0.1")
    try:
        return key.strip(), tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
