"""Generates the reference page of the Python API from signatures and docstrings."""

import inspect
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from tools.reference_commands import NOTE

import fedfew
from fedfew import extend, flower, plots
from fedfew.studies.compare import Comparison

TOP = f"""# Python API

{NOTE}
Everything that `import fedfew` offers. [Compare methods](../how-to/compare.md#from-python) shows how the parts work
together. Names that are not on this page may change at any time."""
CLASSES = (fedfew.Experiment, fedfew.Run, Comparison, fedfew.FedfewError, fedfew.ConfigErrors)
"""Classes whose methods are listed, without those that are internal."""
INSIDE = {"with_", "cut", "again", "fault", "held", "flat", "document", "newest", "traffic", "folder"}


def api_page() -> str:
    """Functions, classes with their methods and properties, plots, and the names for extensions."""
    lines = [TOP, "", "## Functions"]
    for name in sorted(n for n in fedfew.__all__ if inspect.isfunction(getattr(fedfew, n))):
        lines += _entry(f"fedfew.{name}", getattr(fedfew, name))
    for kind in CLASSES:
        own = f"fedfew.{kind.__name__}" if kind.__name__ in fedfew.__all__ else kind.__name__
        lines += ["", f"## {own}", "", _words(kind)]
        for name, member in vars(kind).items():
            lines += _member(name, member)
    lines += ["", "## fedfew.plots", "", "Each function returns a matplotlib figure of a `Run` or of a run folder.", ""]
    lines += [f"- `{name}`: {_words(getattr(plots, name))}" for name in plots.__all__]
    lines += ["", "## fedfew.flower", "", _words(flower)]
    lines += [*_entry("fedfew.flower.run", flower.run), *_entry("fedfew.flower.train", flower.train)]
    lines += ["", "## fedfew.extend", "", _words(extend), "", ", ".join(f"`{name}`" for name in extend.__all__) + "."]
    return "\n".join(lines) + "\n"


def _member(name: str, member: Any) -> Iterator[str]:
    if name.startswith("_") or name in INSIDE:
        return
    if isinstance(member, property | cached_property):
        target = member.fget if isinstance(member, property) else member.func
        yield from ("", f"**`{name}`**", "", _words(target))
    elif inspect.isfunction(target := getattr(member, "__func__", member)):
        yield from _entry(name, target, "**")


def _entry(name: str, target: Any, mark: str = "### ") -> list[str]:
    title = f"{mark}`{name}`{mark if mark == '**' else ''}"
    return ["", title, "", f"`{name}({_parameters(target)})`", "", _words(target)]


def _parameters(target: Any) -> str:
    """Names and defaults; types are in the code, and editors show them."""
    options = [p for p in inspect.signature(target).parameters.values() if p.name != "self"]
    words = []
    for position, parameter in enumerate(options):
        keyword = parameter.kind is parameter.KEYWORD_ONLY
        if keyword and (position == 0 or options[position - 1].kind is not parameter.KEYWORD_ONLY):
            words.append("*")
        default = getattr(parameter.default, "__name__", repr(parameter.default))
        stars = str(parameter).partition(parameter.name)[0]
        words.append(f"{stars}{parameter.name}" + ("" if parameter.default is parameter.empty else f"={default}"))
    return ", ".join(words)


def _words(target: Any) -> str:
    """The docstring in Markdown."""
    return (inspect.getdoc(target) or "").replace("``", "`").replace("<", "&lt;")
