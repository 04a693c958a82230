"""The paper's experiment as a whole: who takes part, how a round goes, what is reported, and with what values."""

import ast
import importlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.runs import tiny_config, tiny_rounds

import fedfew
from fedfew.config.files import flat, presets
from fedfew.config.parts import assemble
from fedfew.config.schema import load
from fedfew.core.streams import stream
from fedfew.core.types import ClientSite, ClientUpdate, ServerState
from fedfew.methods.entry import Entry
from fedfew.runs.summary import accuracies
from fedfew.runtime.exchange import Availability, cohort_size, draw_cohort
from fedfew.runtime.rounds import count, server_turn


def test_a_round_asks_f_times_k_clients_and_at_least_one() -> None:
    assert cohort_size(0.05, 100) == 5
    assert cohort_size(0.001, 100) == 1
    assert cohort_size(0.29, 10) == 3, "rounded: 2.9 clients are 3"
    assert cohort_size(1.0, 7) == 7


def test_clients_are_drawn_at_random_without_repetition() -> None:
    rounds = [draw_cohort(0, t, 20, 5, Availability()) for t in range(400)]
    assert all(len(set(cohort)) == 5 and cohort == sorted(cohort) for cohort in rounds)
    assert rounds == [draw_cohort(0, t, 20, 5, Availability()) for t in range(400)]
    asked = torch.bincount(torch.tensor(rounds).flatten(), minlength=20)
    # binomial, 400 draws at ¼: mean 100, deviation √(400·¼·¾) = 8.7
    assert int(asked.min()) > 100 - 4.5 * 8.7 and int(asked.max()) < 100 + 4.5 * 8.7


def test_biased_availability_makes_some_clients_frequent() -> None:
    """FedFreq is nearly uniform under uniform draws; this is the setting in which it has something to do."""
    rounds = [draw_cohort(0, t, 50, 3, Availability(kind="zipf", exponent=1.0)) for t in range(600)]
    asked = torch.bincount(torch.tensor(rounds).flatten(), minlength=50).sort(descending=True).values
    # the first of 50 ranks has a share 1/H_50 = 0.222, the last 0.0044 of every draw
    assert int(asked[0]) > 8 * max(int(asked[-1]), 1)


def test_only_clients_that_answered_are_counted_this_round_included() -> None:
    state = ServerState(3, torch.zeros(1), torch.zeros(1), participation={1: 4, 2: 1})
    updates = [ClientUpdate(k, {}, 1) for k in (1, 7)]
    assert count(state, updates) == {1: 5, 2: 1, 7: 1}
    assert state.participation == {1: 4, 2: 1}


def test_the_loop_is_algorithm_1() -> None:
    """Two rounds of the loop against the steps of Algorithm 1 taken one by one, bit for bit."""
    config = tiny_config("fedmix")
    looped = tiny_rounds(config)

    parts = assemble(config)
    method, seed = parts.algorithm, config.seed
    state = method.start(parts.network.snapshot())
    for t in range(2):
        trained = server_turn(method, state, parts.server, stream(seed, "server", t))
        assert torch.equal(trained.omega, state.omega)
        cohort = draw_cohort(seed, t, config.clients, cohort_size(config.participation, config.clients),
                             Availability())  # fmt: skip
        updates = []
        for k in cohort:
            index = torch.from_numpy(parts.federation.partition.of(k))
            site = ClientSite(k, parts.network, parts.federation.samples.take(index), 10)
            reply = method.train_client(method.broadcast(trained, k), site, stream(seed, "client", t, k)).reply
            updates.append(ClientUpdate(k, reply, len(index)))
        counted = replace(trained, participation=count(trained, updates))
        state, _ = method.after_clients(counted, updates, parts.server, stream(seed, "aggregate", t))
        state = replace(state, round=t + 1)
        assert torch.equal(looped[t][0].omega, state.omega)
        assert torch.equal(looped[t][0].sigma, state.sigma)
        assert looped[t][0].participation == state.participation
        assert looped[t][1]["cohort"] == cohort


def test_accuracy_is_reported_last_averaged_and_chosen_by_validation() -> None:
    tested = [0.10, 0.90, 0.30, 0.40, 0.50, 0.60, 0.20, 0.30, 0.40, 0.50, 0.45, 0.35]
    judged = [0.11, 0.20, 0.30, 0.40, 0.70, 0.60, 0.20, 0.30, 0.40, 0.50, 0.45, 0.40]
    records: list[Any] = [{"accuracy": a, "validation": v} for a, v in zip(tested, judged, strict=True)]
    found = accuracies(records)
    assert found["last"] == 0.35
    assert found["mean_last_10"] == pytest.approx(sum(tested[2:]) / 10)
    assert found["best_by_validation"] == 0.50, "round 5, where validation was best; not the 0.90 of the test set"


def test_paper_literal_has_every_value_the_paper_states() -> None:
    config = load("paper-literal")
    stated = {
        "rounds": 150, "clients": 100, "participation": 0.05, "labels": 1000,
        "dataset.name": "cifar10", "dataset.split": "paper", "dataset.unlabeled": 55_000,
        "model.name": "resnet9", "model.width": 64, "model.norm": "none",
        "method.name": "fedmix", "method.alpha": 0.5, "method.beta": 0.3, "method.gamma": 0.2,
        "method.views": 5, "method.threshold": 0.8, "method.anchor": "trained",
        "aggregator.name": "fedfreq", "aggregator.cap": 0.0, "aggregator.by": "frequency",
        "server.epochs": 1, "server.batch": 64, "server.lr": 1e-3, "server.momentum": 0.0, "server.weight_decay": 0.0,
        "client.epochs": 1, "client.batch": 64, "client.lr": 1e-3, "client.momentum": 0.0, "client.weight_decay": 0.0,
    }  # fmt: skip
    settings = flat(config.document)
    assert {path: settings[path] for path in stated} == stated
    silent = {"lambda_s": 1.0, "lambda_ce": 1.0, "lambda_consistency": 1.0, "lambda_anchor": 0.01}
    assert {name: settings[f"method.{name}"] for name in silent} == silent
    # 55,000 + 1,000 + 2,000 test + 2,000 validation are all of CIFAR-10's 60,000
    assert config.dataset.unlabeled + config.labels + 2000 + config.dataset.validation == 60_000


ROOT = Path(__file__).parents[2]
PACKAGE = Path(fedfew.__file__).parent
MAP = (ROOT / "paper" / "README.md").read_text("utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in MAP.splitlines() if line.startswith("| ")]
NAMED = sorted(set(re.findall(r"`([\w/-]+\.py):([\w.]+)`", MAP)))
FUNCTIONS = [(file, name) for file, name in NAMED if not file.startswith("tests/")]
TESTS = [(file, name) for file, name in NAMED if file.startswith("tests/")]


def numbers(title: str) -> list[int]:
    """The numbers in the first column of the section's table, ranges and lists included."""
    section = MAP.split(f"## {title}", 1)[1].split("\n## ", 1)[0]
    cells = [line.strip("|").split("|")[0] for line in section.splitlines() if line.startswith("| ")]
    return sorted({int(n) for cell in cells for n in re.findall(r"\bR?(\d+)(?!\w)", cell)})


@pytest.mark.parametrize(("file", "name"), FUNCTIONS)
def test_every_function_named_in_the_map_exists(file: str, name: str) -> None:
    of_the_study = file.startswith("paper/")
    assert ((ROOT if of_the_study else PACKAGE) / file).is_file()
    module = file.removesuffix(".py").replace("/", ".")
    named: object = importlib.import_module(module if of_the_study else f"fedfew.{module}")
    for part in name.split("."):
        named = getattr(named, part)
    assert callable(named) or isinstance(named, Entry)


@pytest.mark.parametrize("file", sorted({file for file, _ in TESTS}))
def test_every_test_named_in_the_map_exists(file: str) -> None:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert {name for of, name in TESTS if of == file} <= there


def test_every_preset_and_file_named_in_the_map_exists() -> None:
    assert set(re.findall(r"`config/presets\.toml:([\w-]+)`", MAP)) == {"paper-literal"} <= presets().keys()
    for path in re.findall(r"`(tests/[\w/]+\.py)`", MAP):
        assert (ROOT / path).is_file(), path


def test_the_map_covers_the_paper() -> None:
    assert numbers("Equations")[:12] == list(range(1, 13))
    assert numbers("Algorithm 1, line by line") == list(range(1, 26))
    assert numbers("What the paper leaves open, and how it is read here") == list(range(1, 18))
    assert set(map(int, re.findall(r"\(R(\d+)", MAP))) <= set(range(1, 18))


def test_every_row_names_code_and_a_test() -> None:
    tables = [row for row in ROWS if "---" not in row[0] and row[0] not in ("Eq.", "line", "section", "#")]
    assert len(tables) > 60
    for row in tables:
        assert re.search(r"`tests/[\w/]+\.py:test_", " ".join(row)), f"{row[0]}: no test"
        if not re.match(r"R\d", row[0]):
            assert re.search(r"`[\w/-]+\.(py:\w|toml)", row[2]), f"{row[0]}: no function"
            assert len(row) == 5, row[0]
