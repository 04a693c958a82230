"""Config tables before they are checked: read from presets, files and dicts, merged with their base and overrides."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedfew.config.files import flat, parse, presets
from fedfew.config.names import refuse_code
from fedfew.config.published import adapted
from fedfew.config.tree import NAMED, is_known, settings_for
from fedfew.core.errors import FedfewError
from fedfew.data import DATASETS

Table = dict[str, Any]


def read(
    source: str | Path | Table, allow_code: Collection[str] | None = None, above: tuple[str, ...] = ()
) -> tuple[Table, str]:
    """The table of a preset, a TOML file or a dict, merged with its base, and its name for errors.

    With ``allow_code``, no table may name other code of the user's own. ``above`` are the files that led to this one.
    """
    table, where, folder = (dict(source), "config", Path()) if isinstance(source, dict) else parse(source)
    if allow_code is not None:
        refuse_code(table, allow_code, where)
    base = table.pop("base", None)
    if base is None:
        return absolute_paths(table, folder), where
    if not isinstance(base, str):
        why = f"base = {base!r} is not a name"
        raise FedfewError("E103", where, why, "Give the name of a preset or TOML file in quotes")
    chain = (*above, str(Path(where).resolve()) if Path(where).is_file() else where)
    below = base if base in presets() else str(folder / Path(base).expanduser())
    if below in chain or str(Path(below).resolve()) in chain:
        raise FedfewError("E118", where, f"base = {base!r} leads back to itself")
    own, table = flat(table), adapted(read(below, allow_code, chain)[0], flat(table), where in presets())
    return absolute_paths(apply_overrides(table, own), folder), where


def absolute_paths(table: Table, folder: Path) -> Table:
    """Paths in a config file are relative to its folder, others to the current one; run.toml has absolute paths."""
    if isinstance(start := table.get("start"), str) and start:
        table = table | {"start": str((folder / Path(start).expanduser()).absolute())}
    match table.get("model"):
        case {"name": "transformers" | "sentence" | "onnx", "source": str(source)} if source:
            local = folder / Path(source).expanduser()
            if local.exists():  # anything else is a name on the hub
                table = table | {"model": {**table["model"], "source": str(local.absolute())}}
    match table.get("dataset"):
        case {"name": str(name), "path": str(path)} if name in DATASETS and path:
            local = folder / Path(path).expanduser()
            return table | {"dataset": {**table["dataset"], "path": str(local.absolute())}}
    return table


def apply_overrides(table: Table, overrides: Mapping[str, Any]) -> Table:
    """The table with dotted keys replaced.

    Naming another method (model, partition, …) drops those settings of the old one that the new one does not have;
    settings that both have stay, so that methods can be compared with all else equal.
    """
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in table.items()}
    for path, value in overrides.items():
        section, _, key = path.rpartition(".")
        if not section:
            merged[key] = value
            continue
        target = merged.setdefault(section, {})
        if not isinstance(target, dict):
            raise FedfewError("E103", path, f"{section} is a value, not a section")
        names = NAMED.get(section)
        if names and key == names[0] and target.get(key, names[2]) != value and is_known(section, value):
            known = settings_for(section, value) if value != "auto" else {}
            asked = {name.rpartition(".")[2] for name in overrides if name.rpartition(".")[0] == section}
            for old in set(target) - set(known) - asked:
                del target[old]
        target[key] = value
    return merged
