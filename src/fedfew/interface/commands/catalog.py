"""fedfew methods, presets and explain: what can be named in a config, and what an error code means. No torch needed."""

import difflib

from fedfew.config import REGISTRIES
from fedfew.config.files import presets as known_presets
from fedfew.core.errors import CODES, FedfewError
from fedfew.interface.console import out, print_json

FLEETS = {
    "inline": "One client after another, in this process.",
    "pool": "Clients on several cores, one process each; bit-identical to inline.",
    "flower": "Clients on other machines, or a trial on this one; see `fedfew deploy`.",
}


def methods(name: str, json: bool) -> None:
    if name:
        from fedfew.interface.describe import describe  # noqa: PLC0415 - a method's settings need torch, names do not

        describe(name, json)
        return
    kinds = {f"{kind}s": {entry: known.summary(entry) for entry in known} for kind, known in REGISTRIES.items()}
    known = {entry for names in kinds.values() for entry in names}
    kinds |= {"fleets": FLEETS, "presets": {k: about for k, about in known_presets().items() if k not in known}}
    if json:
        print_json({kind: list(names) for kind, names in kinds.items()})
        return
    for kind, names in kinds.items():
        more = " made of these (`fedfew presets` lists all)" if kind == "presets" else ""
        out.print(f"\n[bold]{kind}[/]{more}")
        for entry, about in names.items():
            out.print(f"  {entry:20} {about}", markup=False, soft_wrap=True)


def presets(name: str, json: bool) -> None:
    if name:
        from fedfew.interface.describe import show_config  # noqa: PLC0415 - defaults are the methods' own, which need torch

        show_config(name, json)
        return
    known = known_presets()
    if json:
        print_json({"presets": known})
        return
    for preset, about in known.items():
        out.print(f"[bold]{preset:22}[/] {about}", soft_wrap=True)


def explain(code: str, json: bool) -> None:
    entries = CODES if not code else {code.upper(): CODES[code.upper()]} if code.upper() in CODES else {}
    if not entries:
        close = difflib.get_close_matches(code.upper(), CODES, 1)
        hint = f"Did you mean {close[0]}?" if close else "`fedfew explain` lists all codes"
        raise FedfewError("E105", "explain", f"there is no code {code!r}", hint)
    if json:
        print_json({name: {"title": e.title, "cause": e.cause, "remedy": e.remedy} for name, e in entries.items()})
        return
    for name, entry in entries.items():
        out.print(f"[bold]{name}[/]  {entry.title}")
        if code:
            out.print(f"{entry.cause}\n[green]What to do:[/] {entry.remedy}")
