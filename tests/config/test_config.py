"""The config: every mistake by name and all at once, overrides, presets, and TOML that comes back as it was written."""

import json
import re
import tomllib
import typing
from pathlib import Path
from typing import Any

import pytest
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runtime.tiny_run import TINY

from fedfew.config.files import dumps, parse_set, presets
from fedfew.config.schema import check, load
from fedfew.config.tables import apply_overrides
from fedfew.config.tree import NAMED, SECTIONS, settings_for
from fedfew.core.errors import ConfigErrors, FedfewError
from fedfew.core.settings import Setting


def faults(table: dict[str, Any], overrides: dict[str, Any] | None = None) -> list[FedfewError]:
    with pytest.raises(ConfigErrors) as caught:
        load(table, overrides)
    return caught.value.errors


@pytest.mark.parametrize(
    ("path", "value", "code", "says"),
    [
        ("partition.dirichlet_mu", 0.1, "E104", "unknown key partition.dirichlet_mu .*did you mean partition.mu"),
        ("partision", {"kind": "iid"}, "E104", "unknown key partision; did you mean partition"),
        ("round", 3, "E104", "did you mean rounds"),
        ("mu", 0.1, "E104", r"did you mean partition.mu\?$"),
        ("method.aplha", 0.5, "E104", "did you mean method.alpha"),
        ("client.learning", 0.5, "E104", "unknown key client.learning"),
        ("gate.zzz", 0.5, "E104", "Known here: max_norm, max_growth"),
        ("rounds", "many", "E103", "rounds = 'many' should be a valid integer"),
        ("rounds", True, "E103", "rounds = True"),
        ("rounds", 0, "E103", "rounds = 0 should be greater than or equal to 1"),
        ("client.lr", "0.1", "E103", "client.lr = '0.1'"),
        ("client.lr", float("inf"), "E103", "client.lr = inf should be a finite number"),
        ("client.momentum", 1.5, "E103", "client.momentum = 1.5 should be less than or equal to 1"),
        ("client.nesterov", 1, "E103", "client.nesterov = 1"),
        ("participation", 1.01, "E103", "participation = 1.01 should be less than or equal to 1"),
        ("method", "fedmix", "E103", "method = 'fedmix' is not a section"),
        ("method.name", 3, "E103", "method.name = 3 is not a name"),
        ("method.name", "fedmixx", "E105", r"'fedmixx' is unknown; did you mean fedmix\? Known"),
        ("partition.kind", "dirichlet_by_class", "E105", "did you mean dirichlet-by-class"),
        ("model.name", "no_such_package:net", "E111", "cannot be imported"),
        ("model.name", "json:__name__", "E111", "json:__name__"),
        ("method.alpha", 0.6, "E106", "1.1"),
        ("aggregator.name", "fltrust", "", ""),
    ],
)
def test_a_mistake_is_named(path: str, value: Any, code: str, says: str) -> None:
    section, _, key = path.rpartition(".")
    table = {name: dict(part) if isinstance(part, dict) else part for name, part in TINY.items()}
    if section:
        table[section] = table.get(section, {}) | {key: value}
    else:
        table[key] = value
    if not code:
        load(table)
        return
    found = faults(table)
    assert [fault.code for fault in found] == [code]
    assert re.search(says, str(found[0])), str(found[0])


def test_all_mistakes_are_told_at_once() -> None:
    wrong = {"rounds": "x", "sed": 1, "client.lr": -1.0, "method.name": "fedmixx", "gate.norm": 2, "fleet.workers": 1.5}
    with pytest.raises(ConfigErrors) as caught:
        load(TINY, wrong)
    assert sorted(fault.code for fault in caught.value.errors) == ["E103", "E103", "E103", "E104", "E104", "E105"]
    assert str(caught.value).count("\n") == 5


@pytest.mark.parametrize("content", ["rounds = ", "[method\nname = 1", "a = 1\na = 2", "x = " + "[" * 5_000, "\x00"])
def test_bad_toml_is_named(content: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(content)
    with pytest.raises(FedfewError) as caught:
        load(path)
    assert (caught.value.code, caught.value.where) == ("E102", str(path))


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    for source in ("quikc", tmp_path / "nothing.toml", tmp_path):
        with pytest.raises(FedfewError) as caught:
            load(source)
        assert caught.value.code == "E101"
    with pytest.raises(FedfewError, match=r"Did you mean quick\?"):
        load("quikc")
    (tmp_path / "latin.toml").write_bytes("name = 'ü'".encode("latin-1"))
    with pytest.raises(FedfewError, match="E101"):
        load(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("partition.mu=0.1", ("partition.mu", 0.1)),
        ("seed=3", ("seed", 3)),
        (" seed = 3 ", ("seed", 3)),
        ("client.nesterov=true", ("client.nesterov", True)),
        ("method.name=fedavg", ("method.name", "fedavg")),
        ('method.name="fedavg"', ("method.name", "fedavg")),
        ("a=b=c", ("a", "b=c")),
        ("x=[1, 2]", ("x", [1, 2])),
        ("x=", ("x", "")),
        ("x=1e-3", ("x", 0.001)),
        (f"seed={2**63 - 1}", ("seed", 2**63 - 1)),
    ],
)
def test_set(text: str, expected: tuple[str, Any]) -> None:
    assert parse_set(text) == expected


@pytest.mark.parametrize("text", ["seed", "=3", "  =3", ""])
def test_set_without_key_or_value_is_named(text: str) -> None:
    with pytest.raises(FedfewError, match=r"E102.*key=value"):
        parse_set(text)


@pytest.mark.parametrize("key", ["method.name", "objective.name", "model.name"])
def test_only_an_aggregator_may_be_auto(key: str) -> None:
    assert "E105" in [fault.code for fault in faults(TINY, {key: "auto"})]


def test_a_dict_may_have_dotted_keys() -> None:
    dotted = {key: value for key, value in TINY.items() if key != "method"} | {"method.name": "fedmix"}
    assert load(dotted | {"method.alpha": 0.4, "method.beta": 0.4}).document["method"]["alpha"] == 0.4
    assert [fault.code for fault in faults(dotted | {"method.alpah": 0.4})] == ["E104"]
    assert load({"base": "quick", "method.name": "fedavg"}).method_name == "fedavg"


def test_another_method_keeps_the_settings_it_knows() -> None:
    table = TINY | {"method": {"name": "fedmix", "alpha": 0.4, "beta": 0.4, "lambda_s": 2.0}}
    kept = load(table, {"method.name": "fedavg"})
    assert kept.document["method"]["lambda_s"] == 2.0
    assert "alpha" not in kept.document["method"]
    # what was asked for in the same breath is never dropped, and what another section asks for protects nothing here
    (fault,) = faults(table, {"method.name": "fedavg", "method.alpha": 0.4})
    assert fault.code == "E104"
    (other,) = {apply_overrides(table, {"method.name": "fedavg", "gate.alpha": 1})["method"].get("alpha", "dropped")}
    assert other == "dropped"
    assert table["method"]["alpha"] == 0.4, "the table given is left alone"


def test_another_method_s_server_trains_with_the_same_weight() -> None:
    weights = {
        own: load(TINY | {"method": {"name": own}}, {"method.name": "fedmatch"}).document["method"]["lambda_s"]
        for own in ("server-only", "fedmix", "fedmoments")
    }
    assert set(weights.values()) == {1.0}, "published 10: ten times the step of the methods beside it"
    table = TINY | {"method": {"name": "fedmatch"}}
    assert load(table).document["method"]["lambda_s"] == 10.0
    assert load(table, {"method.name": "fedmix"}).document["method"]["lambda_s"] == 10.0


def test_the_same_name_drops_nothing() -> None:
    table = TINY | {"aggregator": {"name": "fedfreq", "cap": 2.0}}
    assert load(table, {"aggregator.name": "fedfreq"}).aggregator.settings["cap"] == 2.0
    assert "cap" not in load(table, {"aggregator.name": "median"}).document["aggregator"]
    assert load(table, {"aggregator.name": "auto"}).aggregator.name == "fedfreq"


def test_an_override_of_a_value_s_part_is_named() -> None:
    with pytest.raises(FedfewError, match=r"E103.*rounds is a value, not a section"):
        load(TINY, {"rounds.more": 3})


@pytest.mark.parametrize("name", presets())
def test_every_preset_loads_and_says_what_it_is_for(name: str) -> None:
    assert len(presets()[name]) > 20
    document = load(name).document
    assert check(tomllib.loads(dumps(document))).document == document


@pytest.mark.parametrize("value", ["plain", 'with "quotes" and \\', "ü ∑ \U0001f600", "a\nb\tc\r", "\x00\x1f\x7f", ""])
def test_strings_come_back_from_toml(value: str) -> None:
    document = {"text": value, "section": {"list": [value, 1, 2.5, True], "empty": []}}
    assert tomllib.loads(dumps(document)) == document


def drawn(setting: Setting) -> st.SearchStrategy[Any]:
    """Any value a setting accepts."""
    kind, notes = setting.annotation.__origin__, setting.annotation.__metadata__
    lows: list[Any] = [(note.ge, False) for note in notes if isinstance(note, Ge)]
    lows += [(note.gt, True) for note in notes if isinstance(note, Gt)]
    highs: list[Any] = [(note.le, False) for note in notes if isinstance(note, Le)]
    highs += [(note.lt, True) for note in notes if isinstance(note, Lt)]
    (low, above), (high, below) = [*lows, (None, False)][0], [*highs, (None, False)][0]
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    if kind is int:
        return st.integers(low if low is None else low + above, high if high is None else high - below)
    if kind is float:
        return st.floats(
            low, high, exclude_min=above, exclude_max=below, allow_nan=False, allow_infinity=False
        )  # fmt: skip
    others: dict[Any, st.SearchStrategy[Any]] = {bool: st.booleans(), str: st.text(max_size=20)}
    return others.get(kind, st.just(setting.default))


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Any config that is valid key by key; names and settings are left out at random."""
    document: dict[str, Any] = {}
    for section in ["", *SECTIONS]:
        key, registry, _ = NAMED.get(section, ("", {}, ""))
        name = draw(st.sampled_from(sorted(set(registry) - {"folder", "virtual"}))) if registry else ""
        if (section, name) == ("fleet", "flower"):
            name = "pool"
        known = settings_for(section, name)
        chosen = draw(st.lists(st.sampled_from(sorted(known)), unique=True, max_size=5)) if known else []
        chosen = [k for k in chosen if k not in ("alpha", "beta", "gamma", "augment", "network", "path")]
        values = {k: draw(drawn(known[k])) for k in chosen}
        document |= {section: ({key: name} if key else {}) | values} if section else values
    return document


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(documents())
def test_a_valid_config_comes_back_from_toml_and_json_as_it_was(table: dict[str, Any]) -> None:
    try:
        document = check(table).document
    except ConfigErrors as caught:  # two settings may exclude each other, but no single one may be refused
        assert all(fault.code != "E103" or fault.where != "config" for fault in caught.errors), str(caught)
        assert {fault.code for fault in caught.errors} <= {"E103", "E107", "E113"}, str(caught)
        return
    again = check(tomllib.loads(dumps(document))).document
    assert again == document
    assert json.loads(json.dumps(document)) == document
    assert dumps(again) == dumps(document)
    assert list(again) == list(document)


@pytest.mark.parametrize("text", ["9" * 5_000, "0x" + "f" * 5_000, "9" * 20, f"[1, {'9' * 20}]", "-" + "9" * 20])
def test_an_integer_of_absurd_size_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(f'base = "quick"\nseed = {text}\n')
    with pytest.raises(FedfewError, match=r"^E102 .*(64 bits|thousands of digits)") as caught:
        load(file)
    assert len(str(caught.value)) < 300
    with pytest.raises(FedfewError, match=r"^E102 --set seed: "):
        parse_set(f"seed={text}")


@pytest.mark.parametrize(
    ("overrides", "chosen"),
    [
        ({}, "fedmoments"),
        ({"model.train": "last"}, "fedfew"),  # features change: there are no class moments to keep
        ({"method.steps": 10}, "fedfew"),  # its own settings are its own method
        ({"model.name": "resnet9"}, "fedfew"),
    ],
)
def test_fedfew_on_a_frozen_backbone_is_fedmoments(overrides: dict[str, Any], chosen: str) -> None:
    assert load("few-labels", {"method.name": "fedfew"} | overrides).method_name == chosen
