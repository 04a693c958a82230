"""Samples of none of the classes: how many there are, how often chance is taken for them, and what commands say."""

import csv
import json
from pathlib import Path

import pytest
import torch
from tests.inference.digits_run import digits_run
from tests.interface.fedfew_command import Capture, fedfew
from tests.interface.test_rows import patients
from torch import Tensor

from fedfew.inference.unlike import angles, angles_within, chance, judged, nearest

MEANS = torch.randn(12, 40, generator=torch.Generator().manual_seed(0)).double()
"""Eight classes, and four kinds of samples that are of none."""


def drawn(kinds: Tensor, rng: torch.Generator) -> Tensor:
    return 1.0 + MEANS[kinds] + 0.8 * torch.randn(len(kinds), 40, generator=rng).double()


def answers(labels: int, share: float, mix: Tensor, times: int = 120) -> Tensor:
    """What is said of 200 samples with this mix, a share of them of no class: the share, p, marked, marked rightly."""
    rows = []
    for seed in range(times):
        rng = torch.Generator().manual_seed(seed)
        own = torch.arange(labels) % 8
        known = torch.multinomial(mix, round(200 * (1 - share)), True, generator=rng)
        kinds = torch.cat([known, 8 + torch.arange(200 - len(known)) % 4])
        mine, theirs = drawn(own, rng), drawn(kinds, rng)
        weights = (mix / torch.bincount(own, minlength=8))[own].double()
        found = judged(nearest(angles_within(mine)), nearest(angles(theirs, mine)), weights)
        rows.append([found.share, found.probability, float(found.odd.sum()), float(found.odd[len(known) :].sum())])
    return torch.tensor(rows)


def test_the_chance_of_so_many_is_that_of_uniform_chances() -> None:
    """With a chance from Beta(1, 1) every number of hits is as likely as any other."""
    assert chance(7, 10, 1.0, 1.0) == pytest.approx(4 / 11)
    assert chance(0, 10, 2.0, 5.0) == pytest.approx(1.0)
    assert chance(1, 1, 2.0, 6.0) == pytest.approx(2 / 8)


def test_a_labeled_sample_is_as_far_off_as_if_it_were_new() -> None:
    x = drawn(torch.arange(16) % 8, torch.Generator().manual_seed(1))
    apart = [nearest(angles(x[i : i + 1], torch.cat([x[:i], x[i + 1 :]])))[0] for i in range(16)]
    assert torch.allclose(nearest(angles_within(x)), torch.stack(apart), atol=1e-12)


@pytest.mark.parametrize("labels", [24, 40, 160])
@pytest.mark.parametrize("skewed", [False, True])
def test_chance_is_seldom_taken_for_other_classes(labels: int, skewed: bool) -> None:
    mix = torch.tensor([20.0, 5, 1, 1, 1, 1, 1, 1]) if skewed else torch.ones(8)
    said = answers(labels, 0.0, mix / mix.sum())
    assert float((said[:, 0] > 0).double().mean()) <= 0.1, "5 % are meant; 120 draws"
    assert bool((said[said[:, 0] == 0, 2] == 0).all()), "nobody is marked where nothing is significant"


def test_a_fifth_of_other_classes_is_found_and_not_overstated() -> None:
    few, many = (answers(labels, 0.2, torch.ones(8) / 8) for labels in (24, 160))
    found = many[many[:, 0] > 0]
    assert len(found) > 0.95 * len(many) and len(found) > float((few[:, 0] > 0).sum())
    assert 0.1 < float(found[:, 0].mean()) < 0.22
    assert float(found[:, 3].sum() / found[:, 2].sum()) > 0.6, "most that are marked are of no class"


def test_rows_like_none_of_the_classes_are_marked(tmp_path: Path, capsys: Capture) -> None:
    table = patients(tmp_path / "patients.csv")
    rows = list(csv.DictReader(table.open()))
    quick = ("--set", "rounds=2", "--set", "fleet.kind=inline", "--no-baseline")
    assert fedfew(capsys, "init", table).status == 0
    run = tmp_path / "run"
    assert fedfew(capsys, "run", tmp_path / "patients.toml", *quick, "--out", run).status == 0
    odd = [{**row, "patient_id": f"x{row['patient_id']}", "age": "5", "pulse": "200"} for row in rows[100:220]]
    for name, content in (("plain", rows), ("mixed", rows + odd)):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows({**row, "diagnosis": ""} for row in content)
    plain = json.loads(fedfew(capsys, "evaluate", run, tmp_path / "plain.csv", "--unlabeled", "--json").out)
    assert plain["images"] == 420 and plain["unlike"]["share"] == 0 and sum(plain["mix"].values()) == pytest.approx(1)
    mixed = json.loads(fedfew(capsys, "label-next", run, tmp_path / "mixed.csv", "-n", "540", "--json").out)

    assert 0.1 < mixed["unlike"]["share"] < 0.3
    marked = [int(row["row"].rpartition(" ")[2]) - 2 for row in mixed["chosen"] if row["unlike"]]
    assert set(range(420, 540)) <= set(marked) and len(marked) < 180
    said = fedfew(capsys, "label-next", run, tmp_path / "mixed.csv").out
    assert "of the rows look like none of your classes, or were taken in another way" in " ".join(said.split())
    said = fedfew(capsys, "evaluate", run, tmp_path / "plain.csv", "--unlabeled").out
    assert "420 rows without labels" in said and "no sign of rows" in said
    table.unlink()
    gone = json.loads(fedfew(capsys, "evaluate", run, tmp_path / "plain.csv", "--unlabeled", "--json").out)
    assert gone["unlike"] is None, "the labels are not there"


def test_learned_features_say_nothing(capsys: Capture) -> None:
    images, run = digits_run()
    said = fedfew(capsys, "evaluate", run, images / "clients", "--unlabeled")
    assert said.status == 0 and "it takes a frozen backbone" in " ".join(said.out.split())
    refused = fedfew(capsys, "evaluate", run, "--unlabeled")
    assert refused.status == 2 and "E103" in refused.err
