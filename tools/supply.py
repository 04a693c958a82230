"""What fedfew consists of: a bill of materials (SBOM), the licences, and reproducible distributions.

    python -m tools.supply sbom dist/fedfew.cdx.json
    python -m tools.supply licences dist/LICENCES.md
    python -m tools.supply dist dist

Packages are read from this installation: all that fedfew and its extras need, directly or indirectly.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
NAMES = {
    r"apache.*2|^apache": "Apache-2.0", r"^mit\b": "MIT", r"bsd.*3|3.clause": "BSD-3-Clause",
    r"bsd.*2|2.clause": "BSD-2-Clause", r"^\(?(new |modified )?bsd": "BSD", r"mpl|mozilla": "MPL-2.0",
    r"^(psf|python software)": "PSF-2.0", r"^isc": "ISC", r"unlicense": "Unlicense", r"hpnd": "HPND",
}  # fmt: skip
"""Spellings of licences, and their SPDX names."""


def materials() -> dict[str, tuple[Distribution, list[str]]]:
    """Every package in use with the names of its dependencies, fedfew first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lines = [*project["dependencies"], *(need for extra in project["optional-dependencies"].values() for need in extra)]
    waiting = [(canonicalize_name(need.name), frozenset(need.extras)) for need in map(Requirement, lines)]
    seen = set(waiting)
    own = distribution("fedfew")
    result: dict[str, tuple[Distribution, list[str]]] = {own.name: (own, sorted({name for name, _ in waiting}))}
    while waiting:
        name, wanted = waiting.pop(0)
        try:
            package = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform, or an extra that is not installed here
        asked = [(canonicalize_name(need.name), frozenset(need.extras)) for need in _needs(package, wanted)]
        before = result.get(name, (package, []))[1]
        result[name] = (package, sorted({*before, *(needed for needed, _ in asked)}))
        waiting += (fresh := [need for need in dict.fromkeys(asked) if need not in seen])
        seen |= set(fresh)
    return {name: (package, [need for need in needs if need in result]) for name, (package, needs) in result.items()}


def _needs(package: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for line in package.requires or ():
        need = Requirement(line)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield need


def licence(package: Distribution) -> str:
    """The SPDX name of the licence if the package states it clearly, else the package's own words."""
    about = package.metadata
    for expression in about.get_all("License-Expression") or ():
        return str(expression)
    trove = [c.rpartition(" :: ")[2] for c in about.get_all("Classifier") or () if c.startswith("License")]
    options = [words.strip().partition("\n")[0] for words in about.get_all("License") or ()]
    output = [words for words in (*trove, *options) if words not in ("", "UNKNOWN")]
    for words in output:
        for pattern, name in NAMES.items():
            if re.search(pattern, words, re.IGNORECASE):
                return name
    return output[0] if output else "not stated"


def bill() -> dict[str, object]:
    """CycloneDX 1.6."""
    parts = materials()
    refs = {name: f"pkg:pypi/{name}@{package.version}" for name, (package, _) in parts.items()}
    components = [
        {"type": "application" if name == "fedfew" else "library", "bom-ref": refs[name], "name": name,
         "version": package.version, "purl": refs[name], "licenses": [{"license": {"name": licence(package)}}]}
        for name, (package, _) in parts.items()
    ]  # fmt: skip
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": uuid5(NAMESPACE_URL, json.dumps(sorted(refs.values()))).urn,
        "metadata": {"component": components[0]}, "components": components[1:],
        "dependencies": [
            {"ref": refs[name], "dependsOn": [refs[need] for need in needs]} for name, (_, needs) in parts.items()
        ],
    }  # fmt: skip


def licences_page() -> str:
    """Every package with the licence it states, as Markdown."""
    rows = sorted((name, package.version, licence(package)) for name, (package, _) in materials().items())
    table = "\n".join(f"| {name} | {version} | {words.replace('|', '/')[:80]} |" for name, version, words in rows)
    return (
        "# Licences\n\n"
        "fedfew is Apache-2.0. These packages are installed with it and its extras, each with the licence that it\n"
        "states about itself in its metadata; `make sbom` writes the same list as CycloneDX.\n\n"
        f"| package | version | licence |\n|---|---|---|\n{table}\n"
    )


def build_twice(target: Path) -> dict[str, str]:
    """Wheel and sdist with their SHA-256, after a second build elsewhere gave the same bytes."""
    moment = subprocess.check_output(["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True).strip()
    with tempfile.TemporaryDirectory() as folder:
        sums = [_built(Path(folder) / name, moment) for name in ("first", "a-second-place")]
        if sums[0] != sums[1]:
            raise SystemExit(f"two builds differ: {sums[0]} and {sums[1]}")
        target.mkdir(exist_ok=True)
        for name in sums[0]:
            (Path(folder) / "first" / "out" / name).replace(target / name)
    (target / "SHA256SUMS").write_text("".join(f"{sum_}  {name}\n" for name, sum_ in sums[0].items()), "ascii")
    return sums[0]


def _built(target_folder: Path, moment: str) -> dict[str, str]:
    """A build of the committed state, from a separate checkout."""
    target_folder.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    (target_folder / "source").mkdir()
    subprocess.run(["tar", "x", "-C", str(target_folder / "source")], input=archive, check=True)
    command = [sys.executable, "-m", "uv", "build", "--quiet", "--build-constraints", "constraints.txt", "-o", "../out"]
    subprocess.run(command, cwd=target_folder / "source", env={**os.environ, "SOURCE_DATE_EPOCH": moment}, check=True)
    files = sorted(path for path in (target_folder / "out").iterdir() if path.suffix in (".whl", ".gz"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main(words: list[str]) -> None:
    action, target = words[0], Path(words[1])
    if action == "dist":
        sys.stdout.writelines(f"{sum_}  {name}\n" for name, sum_ in build_twice(target).items())
        return
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(bill(), indent=1) + "\n" if action == "sbom" else licences_page(), "utf-8")
    sys.stdout.write(f"{target}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
