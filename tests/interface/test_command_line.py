"""The command line itself: the source says what the modules have, nothing waits for torch, hints help."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch
from tests.interface.fedfew_command import fedfew

from fedfew import __version__
from fedfew.interface.cli import app
from fedfew.interface.commands import doctor
from fedfew.interface.commands.catalog import REGISTRIES
from fedfew.interface.lazy import COMMANDS, LazyGroup
from fedfew.interface.outline import registry, summary

Capture = pytest.CaptureFixture[str]


def targets(group: LazyGroup = app, *above: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every command as it is typed, and the ``module:function`` it stands for."""
    for name, target in group.targets.items():
        if isinstance(target, str):
            yield (*above, name), f"{COMMANDS}.{target}"
        else:
            yield from targets(target, *above, name)


EVERY = dict(targets())
LOADED = """
import sys
from fedfew.interface.cli import main
for words in {commands!r}:
    sys.argv = ["fedfew", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
heavy = {{"torch", "numpy", "scipy", "matplotlib", "PIL", "safetensors", "plotly", "flwr"}}
print("loaded:", sorted(heavy & set(sys.modules)))
"""


@pytest.mark.parametrize("target", EVERY.values())
def test_the_source_says_what_the_module_has(target: str) -> None:
    module, _, name = target.partition(":")
    real = getattr(import_module(module), name)
    assert summary(target) == (inspect.getdoc(real) or "").partition("\n")[0] != ""


@pytest.mark.parametrize("target", REGISTRIES.values())
def test_registries_are_read_as_they_are(target: str) -> None:
    module, _, variable = target.partition(":")
    real, read = getattr(import_module(module), variable), registry(target)
    assert list(read) == list(real)
    for name, place in read.items():
        home, _, attribute = place.partition(":")
        # tests/conftest.py wraps the digits, so that they are read once
        assert getattr(import_module(home), attribute) is getattr(real[name], "__wrapped__", real[name])
        assert summary(place), f"{name} says nothing about itself"


def test_nothing_that_only_shows_text_waits_for_torch() -> None:
    commands = [["--help"], ["--version"], ["methods"], ["presets"], ["ls"], ["explain", "E104"], ["data", "--help"]]
    script = LOADED.format(commands=commands)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"
    assert done.stdout.count("Usage: fedfew") == 2


def test_version(capsys: Capture) -> None:
    assert fedfew(capsys, "--version").out == f"fedfew {__version__}\n"
    module = subprocess.run([sys.executable, "-m", "fedfew", "--version"], capture_output=True, text=True, check=True)
    assert module.stdout == f"fedfew {__version__}\n"


@pytest.mark.parametrize(
    ("words", "says", "never"),
    [
        (["run", "quick", "--rounds", "3"], "did you mean --set rounds=3?", "--out"),
        (["run", "quick", "--client.lr=0.1"], "did you mean --set client.lr=0.1?", "Did you mean"),
        (["sweep", "quick", "--min-updates"], "did you mean --set min_updates=VALUE?", "Did you mean"),
        (["run", "quick", "--round", "3"], "did you mean --set rounds=3?", "--out"),
        (["run", "quick", "--mu", "0.1"], "did you mean --set partition.mu=0.1?", "--out"),
        (["run", "quick", "--method=fedmix"], "did you mean --set method.name=fedmix?", "--out"),
        (["run", "quick", "--sede", "1"], "did you mean --set seed=1?", "--out"),
        (["run", "quick", "--zzzzzz", "1"], "are given with --set KEY=VALUE.", "mean"),
        (["run", "quick", "--outt", "x"], "Did you mean --out?", "--set"),
        (["explain", "--rounds", "3"], "No such option: --rounds.", "mean"),
        (["rnu", "quick"], "No such command: rnu. Did you mean run?", "run'"),
        (["deploy", "docter"], "Did you mean doctor?", "doctor'"),
        (["zzz"], "No such command: zzz.", "mean"),
    ],
)
def test_a_word_that_is_not_known(words: list[str], says: str, never: str, capsys: Capture) -> None:
    said = fedfew(capsys, *words)
    text = " ".join(said.err.replace("│", " ").split())
    assert said.status == 2
    assert says in text
    assert never not in text
    assert text.count("mean") <= 1


def test_arguments_have_their_help(capsys: Capture) -> None:
    assert "A preset's name or a TOML file." in fedfew(capsys, "run", "--help").out


def test_doctor(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDFEW_DATA", str(tmp_path / "cache"))
    said = fedfew(capsys, "doctor", "--json")
    facts = said.json
    assert (said.status, facts["problems"]) == (0, [])
    assert facts["torch"]["version"] == torch.__version__
    assert facts["cache"]["folder"] == str(tmp_path / "cache")
    assert {"flower", "export", "data", "privacy", "sweep", "track"} <= facts["extras"].keys()
    lines = fedfew(capsys, "doctor").out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [name for name in facts if name != "problems"]


def test_doctor_names_what_is_wrong(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ROOM", 1 << 60)
    said = fedfew(capsys, "doctor", "--json")
    assert said.status == 2
    assert "free for temporary files" in said.json["problems"][1]
    assert "problem:" in fedfew(capsys, "doctor").out


def test_an_extra_that_is_not_installed_is_said_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["numpy>=2", "no-such-package>=1; extra == 'flower'", 'numpy; extra == "flower"', "numpy; extra == 'data'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: needs)
    assert doctor.extras() == {"flower": "lacks no-such-package", "data": "installed"}


def test_memory_that_is_not_there_is_no_traceback(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000,000,000 clients ask NumPy for 14.9 GiB."""

    def full(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 14.9 GiB")

    monkeypatch.setattr("fedfew.build.parts.federation_of", full)
    said = fedfew(capsys, "run", "quick", "--set", "clients=2000000000", "--set", "partition.empty=true")
    assert said.status == 2 and said.err.startswith("E119 memory: Unable to allocate 14.9 GiB")
