"""A method that is named over a config is as published; what differs from that is found; defaults suit the model."""

from pathlib import Path
from typing import Any

import pytest

from fedfew.config.files import flat
from fedfew.config.schema import load
from fedfew.config.tables import HEAD, deviations

SEMIFL = {"threshold": 0.95, "beta": 0.75, "server_momentum": 0.5, "momentum_lasts": True, "shift": 4, "hole": 0.0}
"""Diao et al. 2022, section 4 and the official code."""


def test_another_method_has_its_published_settings_and_aggregator() -> None:
    config = load("quick", {"method.name": "semifl"})
    assert {key: config.document["method"][key] for key in SEMIFL} == SEMIFL
    assert config.document["aggregator"] == {"name": "uniform"}
    assert deviations(flat(config.document)) == {}
    own = load("quick")
    for shared in ("dataset", "partition", "model", "server", "client", "rounds", "clients", "participation", "labels"):
        assert config.document[shared] == own.document[shared], shared


def test_settings_are_kept_on_request_and_named() -> None:
    kept = load("quick", {"method.name": "semifl"}, keep_settings=True)
    assert kept.document["method"]["threshold"] == 0.8 and kept.aggregator.name == "fedfreq"
    found = deviations(flat(kept.document))
    assert found["method.threshold"] == (0.8, 0.95) and found["aggregator.name"] == ("fedfreq", "uniform")


def test_what_the_overrides_say_counts_and_the_server_trains_alike() -> None:
    config = load("semifl", {"method.name": "fedmix", "method.threshold": 0.7, "aggregator.cap": 2.0})
    assert config.document["method"]["threshold"] == 0.7 and config.document["aggregator"]["cap"] == 2.0
    assert set(deviations(flat(config.document))) == {"method.threshold", "aggregator.cap"}
    assert load("semifl", {"method.name": "fl2"}).document["method"]["warmup"] == 50, "the server's part of the recipe"
    assert load("semifl", {"method.name": "semifl"}).document == load("semifl").document


@pytest.mark.parametrize("preset", ["semifl-full", "paper-literal", "fl2-full"])
def test_presets_that_say_so_are_as_published(preset: str) -> None:
    assert deviations(flat(load(preset).document)) == {}


def test_a_file_on_a_base_is_as_published_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "quick"\n[method]\nname = "semifl"\n')
    assert load(file).document == load("quick", {"method.name": "semifl"}).document


def frozen(**sections: Any) -> dict[str, Any]:
    data = {"name": "mini-cifar", "validation": 0}
    return {"labels": 40, "dataset": data, "model": {"name": "efficientnet-lite0"}} | sections


def test_a_head_is_trained_with_steps_that_suit_it() -> None:
    config = load(frozen(method={"name": "server-only"}))
    for section, steps in HEAD.items():
        assert {key: config.document[section][key] for key in steps} == steps
    assert load(frozen(server={"lr": 0.3})).document["server"]["lr"] == 0.3
    few = load("few-labels").document
    assert few["server"] == load({**few, "server": {}}).document["server"], "as in the preset"
    whole = load(frozen(model={"name": "efficientnet-lite0", "train": "all"}, method={"name": "server-only"}))
    assert whole.document["server"]["epochs"] == load("paper-literal").document["server"]["epochs"]


def test_a_preset_adapts_to_own_folders(tmp_path: Path) -> None:
    config = load("few-labels", {"dataset.name": "folder", "dataset.path": str(tmp_path)})
    assert config.own_sites


def test_the_split_follows_the_seed_unless_it_has_its_own() -> None:
    assert load("quick").document["dataset"]["seed"] == 0
    assert load("quick", {"seed": 3}).document["dataset"]["seed"] == 3
    assert load("quick", {"seed": 3, "dataset.seed": 1}).document["dataset"]["seed"] == 1
