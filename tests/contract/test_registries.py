"""Every name in a registry: its settings are explained and have defaults that pass their own checks, and it runs."""

import inspect
import re
import sys
import typing
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest
import torch
from annotated_types import Ge, Gt, Le, Lt
from pydantic import TypeAdapter
from tests.config import own_parts
from tests.contract.runs import TINY, tiny_config, tiny_rounds
from tests.interface.fedfew_command import fedfew

from fedfew.aggregators import AGGREGATORS
from fedfew.config import REGISTRIES
from fedfew.config.schema import load
from fedfew.config.tree import NAMED, PLAIN, settings_for
from fedfew.core.layout import Layout
from fedfew.core.network import Network
from fedfew.core.settings import Registry, settings_of
from fedfew.core.streams import stream
from fedfew.core.types import Contribution
from fedfew.data import PARTITIONS
from fedfew.data.samples import Images
from fedfew.methods import METHODS
from fedfew.models import MODELS, TAKES
from fedfew.models.build import build_model
from fedfew.runtime.record import left_out

ENTRIES = [(section, name) for section, registry in REGISTRIES.items() for name in registry]
SMALL_MODEL = {"width": 4, "depth": 10}


ALWAYS = [(section, NAMED[section][2] if section in NAMED else "") for section in ("", "fleet", *PLAIN)]


@pytest.mark.parametrize(("section", "name"), [*ALWAYS, *ENTRIES])
def test_settings_have_a_type_bounds_a_valid_default_and_a_text(section: str, name: str) -> None:
    assert re.fullmatch(r"([a-z0-9]+(-[a-z0-9]+)*)?", name)
    for setting in settings_for(section, name).values():
        kind, *notes = typing.get_args(setting.annotation)
        bounded = any(isinstance(note, Ge | Gt | Le | Lt) for note in notes)
        assert bounded or kind not in (int, float), f"{setting.name} has no bounds"
        assert setting.default is not inspect.Parameter.empty, f"{setting.name} has no default"
        TypeAdapter(setting.annotation).validate_python(setting.default, strict=True)
        assert len(setting.doc.split()) > 1 and not setting.doc.endswith("."), f"{setting.name}: {setting.doc}"


@pytest.mark.parametrize(("section", "name"), ENTRIES)
def test_everything_says_what_it_is_and_where_it_comes_from(section: str, name: str) -> None:
    entry = METHODS[name].method if section == "method" else REGISTRIES[section][name]
    told = inspect.getdoc(entry) or ""
    module = sys.modules[entry.__module__].__doc__ or ""
    assert len(told) > 20 and len(module.splitlines()[0]) > 20
    if section in ("aggregator", "objective"):
        assert re.search(r"\b(19|20)\d\d\b|the paper|[Σ∝]", told + module), "a citation or an equation"


def contributions(m: int, size: int) -> list[Contribution]:
    noise = torch.randn(m, size, generator=stream(0, "contract", "vectors"))
    return [Contribution(3 * k, noise[k], k + 1, k + 2, steps=float(k + 1)) for k in range(m)]


NOT_HERE = ("resnet50",)
"""Models whose weights must be fetched."""
WITHOUT_SOURCE = [
    name for name, make in MODELS.items() if "source" not in settings_of(make) and name not in (*TAKES, *NOT_HERE)
]
"""Models that need no folder or hub; tests/models has folders for the others."""


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize("m", [1, 2, 3, 7])
def test_an_aggregator_is_pure_finite_and_weighs_to_one(name: str, m: int) -> None:
    omega, sigma = torch.randn(2, 50, generator=stream(0, "contract", "models"))
    parts = contributions(m, 50)
    held = [part.vector.clone() for part in parts] + [omega.clone(), sigma.clone()]

    result = AGGREGATORS[name](parts, omega, sigma)

    assert result.vector.shape == (50,) and result.vector.dtype == torch.float32
    assert bool(torch.isfinite(result.vector).all())
    assert torch.equal(result.vector, AGGREGATORS[name](parts, omega, sigma).vector)
    assert set(result.weights) <= {part.client for part in parts}
    if result.weights:
        weighed = omega + sum(result.weights.get(p.client, 0) * (p.vector - omega) for p in parts)
        whole = sum(result.weights.values())
        assert min(result.weights.values()) >= 0
        assert whole == pytest.approx(1) or torch.allclose(result.vector, weighed, atol=1e-5), (
            "weights that say nothing"
        )
    assert all(torch.equal(a, b) for a, b in zip([*(p.vector for p in parts), omega, sigma], held, strict=True))


@pytest.mark.parametrize("name", AGGREGATORS)
def test_where_nobody_moved_nothing_moves(name: str) -> None:
    omega = torch.randn(20, generator=stream(0, "contract", "models"))
    parts = [Contribution(k, omega.clone(), 5, 1) for k in range(5)]
    torch.testing.assert_close(AGGREGATORS[name](parts, omega, omega).vector, omega)


@pytest.mark.parametrize("name", WITHOUT_SOURCE)
@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32)])
def test_a_models_every_parameter_is_trained(name: str, channels: int, size: int) -> None:
    options = {key: value for key, value in SMALL_MODEL.items() if key in settings_of(MODELS[name])}
    module = build_model(name, channels, size, 10, options, stream(0, "contract"))
    network = Network.of(module)
    images = torch.randint(0, 256, (6, channels, size, size), dtype=torch.uint8, generator=stream(0, "images"))

    logits = network(Images(images))
    logits.log_softmax(1)[:, 0].sum().backward()

    assert logits.shape == (6, 10) and bool(torch.isfinite(network.gradient).all())
    for tensor, slope in network.layout.views(network.gradient).items():
        if tensor in dict(network.module.named_parameters()):
            assert slope.any(), f"{tensor} has no gradient"
    assert Layout.of(network.module) == network.layout


@pytest.mark.parametrize("name", WITHOUT_SOURCE)
def test_a_model_runs_by_its_name_in_the_config(name: str) -> None:
    options = {key: value for key, value in SMALL_MODEL.items() if key in settings_of(MODELS[name])}
    small = TINY | {"dataset": TINY["dataset"] | {"unlabeled": 12, "test": 10, "open": 0}, "labels": 10, "rounds": 1}
    rounds = tiny_rounds(load(small | {"model": {"name": name} | options, "method": {"name": "fedmix"}}))
    assert len(rounds) == 1 and bool(torch.isfinite(rounds[0][0].omega).all())


@pytest.mark.parametrize("kind", [kind for kind in PARTITIONS if kind not in ("users", "flower")])
def test_a_partition_runs_by_its_name_in_the_config(kind: str) -> None:
    options = {"per_client": 5} if "per_client" in settings_of(PARTITIONS[kind]) else {}
    table = TINY | {"partition": {"kind": kind} | options, "model": {"name": "cnn", "width": 4}, "rounds": 1}
    rounds = tiny_rounds(load(table))
    assert left_out(rounds[0][1]) == [] and len(rounds[0][1]["cohort"]) == 5


@pytest.mark.parametrize(("section", "name"), ENTRIES)
def test_a_registry_has_a_line_about_each_name(section: str, name: str) -> None:
    registry = REGISTRIES[section]
    line = registry.summary(name)
    assert line.endswith(".") and 15 < len(line) <= 105
    if section != "partition":
        assert registry.group == f"fedfew.{section}s"


def test_an_installed_package_adds_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        [
            EntryPoint("mine", "fedfew.aggregators.weighted:uniform", "fedfew.aggregators"),
            EntryPoint("fedavg", "os:abort", "fedfew.aggregators"),
            EntryPoint("other", "os:abort", "fedfew.methods"),
        ]
    )
    monkeypatch.setattr("fedfew.core.settings.entry_points", lambda group: points.select(group=group))
    known = Registry[Any]("fedfew.aggregators", AGGREGATORS.table)
    assert list(known) == [*AGGREGATORS.table, "mine"] and len(known) == len(AGGREGATORS.table) + 1
    assert known["mine"] is AGGREGATORS["uniform"] and known["fedavg"] is AGGREGATORS["fedavg"]
    assert "mine" in known and "other" not in known
    assert known.summary("mine") == "From an installed package."


LINE = {"halfway": ("halfway:HALFWAY", "Halfway between the server's model and the clients'.")}


@pytest.fixture(autouse=True)
def one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fedfew.methods.halfway", own_parts)
    monkeypatch.setattr(METHODS, "table", {**METHODS.table, **LINE})


def test_a_config_names_it_and_it_is_listed_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    document = tiny_config("halfway").document
    assert document["method"] == {"name": "halfway", "share": 0.4}
    assert document["aggregator"]["name"] == f"{own_parts.__name__}:by_root"
    rounds = tiny_rounds(tiny_config("halfway", {"method.share": 0.0}))
    assert len(rounds) == 2 and all(torch.equal(state.omega, state.sigma) for state, _ in rounds)
    assert "halfway " in fedfew(capsys, "methods").out
    assert "weight of the clients" in fedfew(capsys, "methods", "halfway").out
