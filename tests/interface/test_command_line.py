"""The command line itself: declared as it is called, no help text waits for torch, hints, completion by shells."""

import ast
import inspect
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

import click
import httpx
import pytest
import torch
from tests.interface.fedfew_command import Capture, fedfew, record, written_run

from fedfew import __version__
from fedfew.core.errors import CODES
from fedfew.interface.cli import app
from fedfew.interface.cli.declare import SETTING
from fedfew.interface.commands import doctor


def commands(group: click.Group = app, *above: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command, with the words that call it."""
    for name, command in group.commands.items():
        yield from commands(command, *above, name) if isinstance(command, click.Group) else [((*above, name), command)]


EVERY = dict(commands())
HEAVY = {"torch", "numpy", "scipy", "matplotlib", "PIL", "pydantic", "safetensors", "flwr", "jinja2", "starlette"}
LOADED = """
import sys
from fedfew.interface.cli import main
for words in {commands!r}:
    sys.argv = ["fedfew", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
print("loaded:", sorted({heavy!r} & set(sys.modules)))
"""


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_a_command_is_declared_as_its_function_is_called(words: tuple[str, ...]) -> None:
    command = EVERY[words]
    assert isinstance(command.callback, partial)
    module, _, function = command.callback.args[0].partition(":")
    real = getattr(import_module(f"fedfew.interface.commands.{module}"), function)
    declared = {"overrides" if str(p.name).startswith(SETTING) else p.name for p in command.params}
    assert declared - {"json"} == inspect.signature(real).parameters.keys() - {"json"}


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_help_says_everything_and_fits(words: tuple[str, ...]) -> None:
    command = EVERY[words]
    assert command.get_short_help_str(60).endswith(".") and "..." not in command.get_short_help_str(60)
    for parameter in command.params:
        assert getattr(parameter, "help", None), parameter.name


HELP = [[*words, "--help"] for words in [(), ("data",), ("deploy",), ("deploy", "doctor"), *EVERY]]
TEXTS = [["--version"], ["methods"], ["presets"], ["ls"], ["explain", "E104"]]


@pytest.mark.parametrize(("shown", "heavy"), [(HELP, HEAVY), (TEXTS, HEAVY - {"pydantic"})], ids=["help", "texts"])
def test_nothing_that_only_shows_text_waits_for_torch(shown: list[list[str]], heavy: set[str]) -> None:
    script = LOADED.format(commands=shown, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"
    assert done.stdout.count("Usage: fedfew") == sum("--help" in words for words in shown)


def completed(shell: str, line: str) -> list[str]:
    """What a shell offers after a line, by the script that ``_FEDFEW_COMPLETE=bash_source fedfew`` prints."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words = line.split(" ")
    script = {
        "bash": f"""
            eval "$(_FEDFEW_COMPLETE=bash_source fedfew)"
            COMP_WORDS=({line}) COMP_CWORD={len(words) - 1}
            complete -p fedfew | grep -q _fedfew_completion && _fedfew_completion fedfew
            printf '%s\n' "${{COMPREPLY[@]}}"
        """,
        "zsh": f"""
            autoload -Uz compinit; compinit -D
            eval "$(_FEDFEW_COMPLETE=zsh_source fedfew)"
            [[ ${{_comps[fedfew]}} == _fedfew_completion ]] || exit 1
            _describe() {{ print -l -- "${{(@P)3}}" }}
            compadd() {{ shift; while [[ $1 == -* ]]; do shift; done; print -l -- "${{(@P)1}}" }}
            words=({line}) CURRENT={len(words)}
            _fedfew_completion
        """,
    }[shell]
    place = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": "/nowhere"}
    done = subprocess.run(
        [shell, *(["-f"] if shell == "zsh" else ["--norc"]), "-c", script], capture_output=True, text=True, env=place
    )
    assert done.returncode == 0, done.stderr
    return [found.partition(":")[0] for found in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("line", "offers"),
    [("fedfew la", "label-next"), ("fedfew run --no", "--no-baseline"), ("fedfew run qui", "quick"),
     ("fedfew deploy doctor cl", "client"), ("fedfew explain E10", "E104")],
)  # fmt: skip
def test_shells_complete(shell: str, line: str, offers: str) -> None:
    assert offers in completed(shell, line)


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
        (["rnu", "quick"], "No such command 'rnu'. Did you mean 'run'?", "--"),
        (["deploy", "docter"], "'doctor'", "--set"),
        (["zzz"], "No such command 'zzz'.", "mean"),
    ],
)
def test_a_word_that_is_not_known(words: list[str], says: str, never: str, capsys: Capture) -> None:
    said = fedfew(capsys, *words)
    text = " ".join(said.err.split()).partition("Error: ")[2]
    assert said.status == 2
    assert says in text
    assert never not in text
    assert text.count("mean") <= 1


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

    monkeypatch.setattr("fedfew.config.parts.federation_of", full)
    said = fedfew(capsys, "run", "quick", "--set", "clients=2000000000", "--set", "partition.empty=true")
    assert said.status == 2 and said.err.startswith("E119 memory: Unable to allocate 14.9 GiB")


def test_a_run_imports_what_it_needs(tmp_path: Path) -> None:
    """A first FedMix run on the included digits: no other method, no network, no chart."""
    words = ["run", "quick", "--set", "rounds=1", "--out", str(tmp_path / "run")]
    script = LOADED.format(commands=[words], heavy={"flwr", "matplotlib", "jinja2", "starlette", "onnx"})
    script += "print(sorted(name for name in sys.modules if name.partition('.')[0] == 'fedfew'))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy, own = done.stdout.splitlines()[-2:]
    assert heavy == "loaded: []"
    modules = ast.literal_eval(own)
    assert [name for name in modules if name.startswith("fedfew.deploy")] == []
    assert len(modules) <= 91, "\n".join(modules)


def test_watch_tells_its_address_serves_and_ends_on_request(tmp_path: Path) -> None:
    written_run(tmp_path / "run", [record(1)])
    command = [sys.executable, "-m", "fedfew", "watch", str(tmp_path), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        place = json.loads(process.stdout.readline())["url"]
        for _ in range(50):
            try:
                answer = httpx.get(place)
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        assert answer.status_code == 200 and "token" not in place
        with httpx.Client() as http, http.stream("GET", place + "live"):
            process.send_signal(signal.SIGINT)
            assert process.wait(10) in (0, 130)
        assert "Traceback" not in process.stderr.read()


def test_watch_refuses_what_is_no_folder_and_a_port_in_use(tmp_path: Path, capsys: Capture) -> None:
    said = fedfew(capsys, "watch", tmp_path / "nowhere")
    assert said.status == 2 and said.err.startswith("E302")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = fedfew(capsys, "watch", tmp_path, "--port", taken.getsockname()[1])
    assert said.status == 2 and said.err.startswith("E504")


def test_explain(capsys: Capture) -> None:
    every = fedfew(capsys, "explain").out
    assert all(code in every for code in CODES)
    said = fedfew(capsys, "explain", "e104").out
    assert CODES["E104"].title in said
    assert "What to do" in said
    assert fedfew(capsys, "explain", "E104", "--json").json["E104"]["title"] == CODES["E104"].title


def test_data_ls(capsys: Capture) -> None:
    datasets = {entry["name"]: entry for entry in fedfew(capsys, "data", "ls", "--json").json["datasets"]}
    assert datasets["mini-mnist"]["fetched"]
    assert datasets["mini-mnist"]["images"] == 7_000
    assert {"cifar10", "mnist", "fashion-mnist"} <= datasets.keys()
    assert "mini-mnist" in fedfew(capsys, "data", "ls").out
