"""Scales and the presets they apply to: a smaller network and fewer images, and nothing else."""

import pytest

from fedfew.config.files import flat
from fedfew.config.scale import scaled
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError

PAPER = ("paper-literal", "paper-tuned", "reference-code")


@pytest.mark.parametrize("preset", PAPER)
def test_laptop_changes_width_and_images_and_nothing_else(preset: str) -> None:
    plain, small = flat(load(preset).document), flat(load(preset, scaled(preset, "laptop")[0]).document)
    changed = {key: (plain[key], small[key]) for key in plain if plain[key] != small[key]}
    assert changed == {"model.width": (64, 16), "dataset.unlabeled": (55_000, 11_000)}


@pytest.mark.parametrize("preset", PAPER)
def test_full_is_the_paper_as_it_is(preset: str) -> None:
    assert load(preset, scaled(preset, "full")[0]).document == load(preset).document


@pytest.mark.parametrize("preset", PAPER)
def test_the_presets_differ_in_what_the_paper_leaves_open_alone(preset: str) -> None:
    literal, other = flat(load("paper-literal").document), flat(load(preset).document)
    open_ = {"server.lr", "client.lr", *(f"method.lambda_{name}" for name in ("s", "ce", "consistency", "anchor"))}
    open_ |= {"server.clip", "client.clip", "dataset.normalize"}  # how a net without normalisation is made to learn
    open_ |= {"server.schedule", "client.schedule"}  # "initial learning rate" is all that is said
    open_ |= {"server.augment"}  # nothing is said of the labeled images
    open_ |= {"partition.skew", "partition.largest"}  # two examples are all that is said of client sizes
    assert {key for key in literal if literal[key] != other[key]} <= open_


def test_the_reference_codes_server_step_is_64_times_the_stated_one() -> None:
    config = load("reference-code")
    assert config.document["method"]["lambda_s"] * config.server.sgd.lr == pytest.approx(64 * 1e-3)
    assert config.document["method"]["lambda_consistency"] == pytest.approx(0.1 * config.client.batch)
    assert config.document["method"]["lambda_anchor"] == 0


def test_set_has_the_last_word() -> None:
    changes, note = scaled("paper-tuned", "laptop", {"model.width": 8, "rounds": 3})
    assert changes == {"model.width": 8, "dataset.unlabeled": 11_000, "rounds": 3}
    assert not note


def test_the_official_split_has_no_55000_to_give() -> None:
    changes, _ = scaled("paper-literal", "full", {"dataset.split": "standard"})
    assert changes["dataset.unlabeled"] == 0


def test_another_dataset_stays_as_it_is_and_says_so() -> None:
    changes, note = scaled("quick", "laptop", {"rounds": 1})
    assert changes == {"rounds": 1}
    assert "mini-mnist" in note
    assert scaled("paper-literal", "laptop", {"dataset.name": "mini-mnist"})[0] == {"dataset.name": "mini-mnist"}


def test_another_model_keeps_its_width() -> None:
    changes, note = scaled("paper-literal", "laptop", {"model.name": "wrn"})
    assert changes == {"dataset.unlabeled": 11_000, "model.name": "wrn"}
    assert "wrn" in note


def test_no_scale_changes_nothing_and_an_unknown_one_is_refused() -> None:
    assert scaled("paper-tuned", None, {"seed": 1}) == ({"seed": 1}, "")
    with pytest.raises(FedfewError, match=r"E103.*full, laptop"):
        scaled("paper-tuned", "huge")
