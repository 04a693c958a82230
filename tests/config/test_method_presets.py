"""Every method, objective and special aggregator has a preset of its name, and every such preset runs."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.runs import tiny_rounds

from fedfew.aggregators import AGGREGATORS
from fedfew.config.files import flat, presets
from fedfew.config.parts import assemble
from fedfew.config.schema import load
from fedfew.config.tree import Config
from fedfew.core.settings import settings_of
from fedfew.methods import METHODS
from fedfew.methods.entry import Entry
from fedfew.objectives import OBJECTIVES
from fedfew.runtime.record import left_out

COMBINED = ["rc-ssfl", "label-shift", "labels-at-clients"]
OF_METHODS = [*METHODS, *OBJECTIVES, "fednova", "median", "trimmed-mean", "krum", "fltrust", *COMBINED]
SMALL_ENOUGH = [name for name in OF_METHODS if name in presets() and name != "fedmix"]
SMALL = {
    "rounds": 2,
    "dataset.validation": 20,
    "dataset.test": 40,
    "dataset.unlabeled": 160,
    "model.width": 4,
    "server.epochs": 1,
    "client.epochs": 1,
    "fleet.kind": "inline",
}


def small(name: str) -> Config:
    """A preset cut down to a second's work."""
    known = load(name).document["method"]
    quick = {"subset": 20, "warmup": 1}
    changes = SMALL | {f"method.{key}": value for key, value in quick.items() if key in known}
    if "width" not in load(name).model.settings:  # a backbone has the width it has; small digits instead of photographs
        changes = {key: value for key, value in changes.items() if key != "model.width"}
        changes |= {"dataset.name": "mini-mnist", "model.size": 32, "clients": 10}
    return load(name, changes | ({"dataset.open": 30} if "subset" in known else {}))


@pytest.mark.parametrize("name", [name for name in OF_METHODS if name != "fedmix"])
def test_a_preset_of_that_name_uses_it(name: str) -> None:
    config = load(name)
    named = {config.method_name, config.objective_name, config.aggregator.name}
    assert name in named or name in COMBINED
    assert presets()[name], "its first line says what it is for"


@pytest.mark.parametrize("name", SMALL_ENOUGH)
def test_a_preset_runs_on_small_data(name: str) -> None:
    torch.set_num_threads(1)
    config = small(name)
    rounds = tiny_rounds(config)
    for state, record in rounds:
        assert left_out(record) == []
        assert math.isfinite(record["loss"])
        assert bool(torch.isfinite(state.omega).all())
        method = config.method_name
        asked = METHODS[method].asks_clients
        assert bool(record["bytes_down"]) == asked
        # FedMatch sends what changed, so maybe nothing; fedmoments surveys a client once
        if not name.startswith("fedmatch") and (method != "fedmoments" or state.round == 1):
            assert bool(record["bytes_up"]) == asked
    if name == "grouping":
        assert rounds[0][1]["metrics"]["gradient_diversity"] >= 0
    assert not torch.equal(rounds[0][0].omega, assemble(config).network.snapshot())


def test_what_travels_up_is_what_the_method_promises() -> None:
    """Bytes of one round and one client, worked out from the model's size."""

    def up(name: str) -> float:
        (state, record), _ = tiny_rounds(small(name))
        sizes[name] = len(state.omega)
        return float(record["bytes_up"]) / len(record["cohort"])

    sizes: dict[str, int] = {}
    assert up("fixmatch") == 4 * sizes["fixmatch"]
    assert up("fedsiam-mt") == 2 * 4 * sizes["fedsiam-mt"]
    assert up("ds-fl") == 20 * 10 * 4
    d = sizes["fixmatch"]
    assert up("rc-ssfl") == -(-d // 5) + 4 * -(-d // 1024)


@pytest.mark.parametrize(("name", "labels"), [("semifl-full", 4000), ("fl2-full", 40)])
def test_full_scale_presets_have_the_published_settings(name: str, labels: int) -> None:
    config = load(name)
    published: dict[str, Any] = {
        "rounds": 800, "clients": 100, "participation": 0.1, "labels": labels, "norm.policy": "clients",
        "model.name": "wrn", "model.depth": 28, "model.width": 2,
        "method.server_momentum": 0.5, "method.momentum_lasts": True, "method.shift": 4, "method.hole": 0.0,
        "method.warmup": {"semifl-full": 0, "fl2-full": 50}[name],
        "server.shift": 4, "server.augment": "weak", "server.batch": 250 if labels > 1000 else 10,
        "client.batch": {"semifl-full": 10, "fl2-full": 32}[name],
    }  # fmt: skip
    for site in ("server", "client"):
        for key, value in (("epochs", 5), ("lr", 0.03), ("momentum", 0.9), ("weight_decay", 5e-4), ("clip", 1.0)):
            published[f"{site}.{key}"] = value
        published |= {f"{site}.schedule": "cosine", f"{site}.nesterov": True}
    settings = flat(config.document)
    assert {key: settings[key] for key in published} == published


def test_laptop_presets_differ_in_the_method_alone() -> None:
    configs = [load(f"{name}-laptop") for name in ("fedfew", "semifl", "fl2")]
    for section in ("dataset", "partition", "model", "server", "fleet"):
        assert len({str(config.document[section]) for config in configs}) == 1
    for config in configs:
        assert (config.model.settings["width"], config.dataset.unlabeled) == (16, 11_000)
        assert (config.rounds, config.participation) == (40, 0.1)
        assert (config.client.epochs, config.client.batch) == (2, 16)


VARIANTS = ("fedprox", "fedbn", "fedadam", "fedyogi", "scaffold", "fedmatch-lite", "fedsiam-pi")
"""Their entries refer to another one."""


def entries() -> dict[str, str]:
    """The entries of docs/understand/methods.md by their name; fedavg has two, a method's and an aggregator's."""
    text = (Path(__file__).parents[2] / "docs" / "understand" / "methods.md").read_text("utf-8")
    found: dict[str, str] = {}
    for entry in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        name, _, rest = entry.partition("\n")
        found[name.strip("`")] = found.get(name.strip("`"), "") + rest
    return found


@pytest.mark.parametrize("name", [*METHODS, *OBJECTIVES, *AGGREGATORS])
def test_every_name_has_an_entry_in_the_docs_with_its_equation(name: str) -> None:
    entry = entries()[name]
    assert "```eq" in entry and "**settings:**" in entry and "**use it when:**" in entry


@pytest.mark.parametrize(
    ("name", "made"),
    [*METHODS.items(), *OBJECTIVES.items(), *((n, a) for n, a in AGGREGATORS.items() if n != "fedavg")],
)
def test_an_entry_names_every_setting(name: str, made: Any) -> None:
    told = entries()[name]
    if name in VARIANTS:
        return
    settings = made.settings if isinstance(made, Entry) else settings_of(made)
    assert all(f"`{setting}`" in told for setting in settings), sorted(settings)
