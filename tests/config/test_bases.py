"""Configs that name a base: what they take from it, where its paths start, and bases that cannot be had."""

from pathlib import Path

import pytest

from fedfew.config.files import flat, parse, presets
from fedfew.config.schema import load
from fedfew.config.tables import read
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
