"""Config tables: a base, methods as published, the head's steps, the scale; and ``fedfew.from_arrays``."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from numpy.typing import NDArray

import fedfew
from fedfew.config.files import flat, parse, presets
from fedfew.config.schema import load
from fedfew.config.tables import HEAD, deviations, read, scaled
from fedfew.core.errors import FedfewError


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_base_with_what_differs_is_the_base_with_overrides(tmp_path: Path) -> None:
    mine = written(tmp_path / "mine.toml", 'base = "quick"\nrounds = 3\n[method]\nname = "fedavg"\n')
    assert load(mine).document == load("quick", {"rounds": 3, "method.name": "fedavg"}).document
    assert load({"base": "quick", "rounds": 3}).document == load("quick", {"rounds": 3}).document


def test_a_chain_of_files_in_several_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "shared" / "scene.toml", 'base = "quick"\nstart = "model.safetensors"\nlabels = 40\n')
    written(tmp_path / "shared" / "small.toml", 'base = "scene.toml"\nrounds = 2\nlabels = 30\n')
    file = written(tmp_path / "mine" / "run.toml", 'base = "../shared/small.toml"\nseed = 7\n')
    config = load(file)
    assert (config.seed, config.rounds, config.labels, config.clients) == (7, 2, 30, 20)
    assert Path(config.start).resolve() == tmp_path / "shared" / "model.safetensors"  # from the file that says it
    assert "base" not in config.document
    monkeypatch.chdir(tmp_path)
    assert load(file, {"start": "other"}).start == str(tmp_path / "other")


def test_a_path_of_images_is_meant_from_the_file_that_gives_it(tmp_path: Path) -> None:
    written(tmp_path / "base.toml", '[dataset]\nname = "folder"\npath = "images"\n')
    same = load(written(tmp_path / "a" / "same.toml", 'base = "../base.toml"\n'))
    own = load(written(tmp_path / "a" / "own.toml", 'base = "../base.toml"\n[dataset]\npath = "mine"\n'))
    assert Path(same.dataset.source.settings["path"]).resolve() == tmp_path / "images"
    assert Path(own.dataset.source.settings["path"]).resolve() == tmp_path / "a" / "mine"


@pytest.mark.parametrize(
    ("files", "code", "says"),
    [
        ({"a.toml": 'base = "a.toml"'}, "E118", "leads back to itself"),
        ({"a.toml": 'base = "b.toml"', "b.toml": 'base = "./a.toml"'}, "E118", "b.toml"),
        ({"a.toml": 'base = "missing.toml"'}, "E101", "missing.toml"),
        ({"a.toml": 'base = "quikc"'}, "E101", "neither a preset nor a readable TOML file"),
        ({"a.toml": "base = 3"}, "E103", "is not a name"),
        ({"a.toml": 'base = "b.toml"', "b.toml": "rounds = "}, "E102", "b.toml"),
        ({"a.toml": 'base = "quick"\nmethod = 3'}, "E103", "not a section"),
        ({"a.toml": 'base = "b.toml"\n[method]\nname = "fedmix"', "b.toml": "method = 3"}, "E103", "not a section"),
        ({"a.toml": f"rounds = {'9' * 5000}"}, "E102", "digits"),
    ],
)
def test_a_base_that_cannot_be_had(tmp_path: Path, files: dict[str, str], code: str, says: str) -> None:
    for name, text in files.items():
        written(tmp_path / name, text + "\n")
    with pytest.raises(FedfewError) as caught:
        load(tmp_path / "a.toml")
    assert caught.value.code == code
    assert says in str(caught.value)


def test_presets_say_only_what_differs_from_their_base() -> None:
    """A line that repeats its base would hide what a preset is about."""
    for name in presets():
        table = parse(name)[0]
        if base := table.pop("base", None):
            below = flat(read(base)[0])
            same = [key for key, value in flat(table).items() if below.get(key) == value]
            assert not same, f"{name} repeats {', '.join(same)}"


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


def test_another_objective_has_its_published_settings_and_those_that_differ_are_named() -> None:
    config = load("mean-teacher", {"objective.name": "freematch"})
    assert config.document["objective"] == {"name": "freematch", "decay": 0.999, "weight": 1.0}, "not weight 5"
    assert load("fixmatch", {"objective.name": "uda"}).document["objective"]["threshold"] == 0.8, "not 0.9"
    assert load("fixmatch", {"objective.name": "uda"}, keep_settings=True).document["objective"]["threshold"] == 0.9
    assert deviations(flat(load("fixmatch").document))["objective.threshold"] == (0.9, 0.95)
    unused = flat(load("quick").document) | {"objective.name": "fixmatch", "objective.threshold": 0.5}
    assert not any(key.startswith("objective") for key in deviations(unused)), "FedMix has none"


def test_what_the_overrides_say_counts_and_the_server_trains_alike() -> None:
    config = load("semifl", {"method.name": "fedmix", "method.threshold": 0.7, "aggregator.cap": 2.0})
    assert config.document["method"]["threshold"] == 0.7 and config.document["aggregator"]["cap"] == 2.0
    assert set(deviations(flat(config.document))) == {"method.threshold", "aggregator.cap"}
    assert load("semifl", {"method.name": "fl2"}).document["method"]["warmup"] == 50, "the server's part of the recipe"
    assert load("semifl", {"method.name": "semifl"}).document == load("semifl").document


@pytest.mark.parametrize("preset", ["semifl-full", "paper-literal", "fl2-full"])
def test_presets_that_say_so_are_as_published(preset: str) -> None:
    assert deviations(flat(load(preset).document)) == {}


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
    assert config.own_sites and (config.dataset.unlabeled, config.labels) == (0, 1000)


def test_the_split_follows_the_seed_unless_it_has_its_own() -> None:
    assert load("quick").document["dataset"]["seed"] == 0
    assert load("quick", {"seed": 3}).document["dataset"]["seed"] == 3
    assert load("quick", {"seed": 3, "dataset.seed": 1}).document["dataset"]["seed"] == 1


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


MEANS = 3 * np.eye(4, 6)


def drawn(count: int, seed: int, classes: tuple[int, ...] = (0, 1, 2, 3)) -> tuple[NDArray[Any], NDArray[Any]]:
    """Vectors of four classes that lie apart, each column with a unit of its own."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, count)
    x = MEANS[labels] + rng.normal(size=(count, 6))
    return (x * 10.0 ** np.arange(6)).astype(np.float32), labels


def test_a_run_in_three_lines_and_its_predictions(tmp_path: Path) -> None:
    clients = [drawn(80, 10 + k, (k, (k + 1) % 4))[0] for k in range(4)]
    x, y = drawn(300, 2)
    config = fedfew.from_arrays(drawn(24, 1), clients, (torch.from_numpy(x), torch.from_numpy(y)), path=tmp_path / "x")
    run = fedfew.run(config, {"rounds": 6, "fleet.kind": "inline"}, out=tmp_path / "run", progress=False)
    accuracy = run.accuracy()
    assert accuracy is not None and accuracy > 0.85
    x.flags.writeable = False  # as the columns of a data frame are
    probabilities = fedfew.predict(run, x)
    assert probabilities.shape == (300, 4)
    assert float((probabilities.argmax(1).numpy() == y).mean()) == pytest.approx(accuracy, abs=0.03)
    assert run.config.method.population == run.document["method"]["population"] == 4  # type: ignore[attr-defined]
    assert run.document["dataset"]["validation"] == 0 and run.evaluation["images"] == 300


def test_frames_names_of_clients_and_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path))
    x, y = drawn(24, 1)
    frame, names = pandas.DataFrame(x), pandas.Series([f"class {c}" for c in y])
    first, second = (fedfew.from_arrays((frame, names), {"north": frame, "south": frame}) for _ in range(2))
    assert first == second, "the same content is saved in the same place"
    parts = fedfew.Experiment.load(first).start(tmp_path / "run").parts
    assert parts.federation.sites == ("north", "south")
    assert parts.federation.classes == ("class 0", "class 1", "class 2", "class 3")


def test_one_column_of_numbers_is_enough(tmp_path: Path) -> None:
    x, y = drawn(24, 1, (0, 1))
    masked = np.ma.masked_array(x[:, :1], [[True]] + [[False]] * 23)
    config = fedfew.from_arrays((masked, y), [x[:, :1]] * 3, (x[:, :1], y), path=tmp_path / "x")
    with pytest.raises(FedfewError, match="row 0, column x: is missing"):
        fedfew.run(config, out=tmp_path / "refused")
    changes = {"rounds": 2, "fleet.kind": "inline", "dataset.missing": "mean"}
    run = fedfew.run(config, changes, out=tmp_path / "run", progress=False)
    assert run.network().layout.size == 4 and [record["missing"] for record in run.records] == [[], []]


@pytest.mark.parametrize(
    ("server", "client", "message"),
    [
        ((np.eye(4), [0, 1, 0]), np.eye(4), "server: 4 samples have 3 labels"),
        ((np.eye(4), [0, 1, 0, 1]), None, "clients: there are none"),
        ((pandas.DataFrame(np.eye(4), columns=list("abca")), [0, 1, 0, 1]), np.eye(4), "server: it has the column a"),
        ((np.eye(4), [0, 1, 0, 1]), np.ones((2, 5)), r"client 0: has vectors of shape \(5,\), the server of \(4,\)"),
        ((np.array([["a"], ["b"]]), [0, 1]), np.eye(1), "server: holds <U1 of shape"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(server: Any, client: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(FedfewError, match=message):
        fedfew.from_arrays(server, [] if client is None else [client], path=tmp_path / "x")
    assert not list(tmp_path.iterdir()), "nothing is written"
