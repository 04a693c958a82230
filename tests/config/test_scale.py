"""Scales and the presets they apply to: a smaller network and fewer images, and nothing else."""

from typing import Any

import pytest

from fedfew.config.files import flat
from fedfew.config.schema import load
from fedfew.config.tables import scaled
from fedfew.core.errors import FedfewError

PAPER = ("paper-literal", "paper-tuned", "reference-code")


@pytest.mark.parametrize("preset", PAPER)
def test_full_is_the_paper_and_laptop_changes_width_and_images_alone(preset: str) -> None:
    plain, small = flat(load(preset).document), flat(load(preset, scaled(preset, "laptop")[0]).document)
    changed = {key: (plain[key], small[key]) for key in plain if plain[key] != small[key]}
    assert changed == {"model.width": (64, 16), "dataset.unlabeled": (55_000, 11_000)}
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


LAPTOP = {"model.width": 16, "dataset.unlabeled": 11_000}


@pytest.mark.parametrize(
    ("preset", "scale", "own", "changes", "note"),
    [
        ("paper-tuned", None, {"seed": 1}, {"seed": 1}, ""),
        ("paper-tuned", "laptop", {"model.width": 8, "rounds": 3}, LAPTOP | {"model.width": 8, "rounds": 3}, ""),
        ("paper-literal", "full", {"dataset.split": "standard"},  # it has no 55,000 images to give
         {"model.width": 64, "dataset.unlabeled": 0, "dataset.split": "standard"}, ""),
        ("quick", "laptop", {"rounds": 1}, {"rounds": 1}, "mini-mnist"),
        ("paper-literal", "laptop", {"dataset.name": "mini-mnist"}, {"dataset.name": "mini-mnist"}, "mini-mnist"),
        ("paper-literal", "laptop", {"model.name": "wrn"}, {"dataset.unlabeled": 11_000, "model.name": "wrn"}, "wrn"),
    ],
)  # fmt: skip
def test_overrides_have_the_last_word_and_what_a_scale_leaves_is_said(
    preset: str, scale: str | None, own: dict[str, Any], changes: dict[str, Any], note: str
) -> None:
    made, said = scaled(preset, scale, own)
    assert made == changes
    assert note in said and bool(note) == bool(said)


def test_an_unknown_scale_is_refused() -> None:
    with pytest.raises(FedfewError, match=r"E103.*full, laptop"):
        scaled("paper-tuned", "huge")
