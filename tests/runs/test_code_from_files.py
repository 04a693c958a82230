"""No file names code: what a file asks to import runs only if the person who runs the command has named it.

Every reader of files and messages is given the names of importable things, in every section that can name code.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save
from tests.inference.digits_run import digits_run
from tests.runtime.tiny_run import TINY, tiny

import fedfew
from fedfew.config.files import dumps
from fedfew.config.names import NAMING, own_code, refused_code
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.deploy.plan import CONFIG as NETWORK_CONFIG
from fedfew.deploy.plan import make_network, open_server
from fedfew.deploy.server.network import start_or_resume
from fedfew.deploy.site.build import checked_config, trial_site
from fedfew.deploy.site.limits import SiteTerms
from fedfew.deploy.versions import versions
from fedfew.inference.evaluate import evaluate_run
from fedfew.interface.cli.commands import app
from fedfew.runs.checkpoints import Checkpoints
from fedfew.runs.folder import CONFIG, RunFolder
from fedfew.runs.model_file import load_model, read_weights
from fedfew.runs.run import Run
from fedfew.runs.session import Experiment, reopen, start

IMPORTABLE = (
    "subprocess:run", "timeit:main", "os:system", "builtins:exec", "os:path.join", "sys:modules.clear",
    "fedfew.config.names:importlib.import_module", "tests.runs.trap:spring", "tests.runs.trap:", ":exec",
)  # fmt: skip
OWN = "tests.config.own_parts"


def ignore(fault: FedfewError) -> None:
    pass


def forged_model(run: Path, out: Path, model: dict[str, Any]) -> Path:
    """A model file as an attacker would write it: real weights, other metadata."""
    tensors, about = read_weights(run / "model.safetensors")
    out.write_bytes(save(tensors, metadata={"fedfew": json.dumps(about | {"model": model})}))
    return out


def forged_run(run: Path, out: Path, document: dict[str, Any]) -> Path:
    """A run folder whose config says something else, in run.toml and in the newest checkpoint alike."""
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(run, out)
    (out / CONFIG).write_text(dumps(document))
    store = Checkpoints(RunFolder(out).checkpoints)
    found = store.newest(lambda facts: True, ignore)
    store.commit(found.state.round, store.write_state(found.state, found.memory), found.facts | {"document": document})
    return out


def changed(document: dict[str, Any], section: str, key: str, name: str) -> dict[str, Any]:
    """A config that names something else in one of its sections."""
    return {**document, section: {**document[section], key: name}}


def read_by(reader: str, stopped: Path, tmp: Path) -> Callable[[str, str, str], Any]:
    """A reader of files or messages that somebody else may have written, given one name in one place of them."""
    digits, document = digits_run()[1], Run.open(stopped).document

    def model(section: str, key: str, name: str) -> Any:
        return load_model(forged_model(digits, tmp / "model.safetensors", {"name": name, "args": ["true"]}))

    def hub(section: str, key: str, name: str) -> Any:
        (tmp / "hub").mkdir(exist_ok=True)
        forged_model(digits, tmp / "hub" / "model.safetensors", {"name": name})
        return load_model(tmp / "hub")

    def resume(section: str, key: str, name: str) -> Any:
        return reopen(forged_run(stopped, tmp / "run", changed(document, section, key, name)), ignore)

    def evaluate(section: str, key: str, name: str) -> Any:
        forged = forged_run(digits, tmp / "run", changed(Run.open(digits).document, section, key, name))
        return evaluate_run(Run.open(forged), sites=True)

    def network(section: str, key: str, name: str) -> Any:
        text = dumps(changed(document, section, key, name))
        make_network(tmp / "network", ["a"], config=text, force=True)
        assert (tmp / "network" / "server" / NETWORK_CONFIG).read_text() == text
        return start_or_resume(open_server(tmp / "network"), ignore, "", {}, None)

    def folder(section: str, key: str, name: str) -> Any:
        (tmp / "base.toml").write_text(dumps({section: {key: name}}))
        (tmp / "fedfew.toml").write_text('base = "base.toml"\nrounds = 1\n')
        return app(["check", str(tmp)], standalone_mode=False)

    def message(section: str, key: str, name: str) -> Any:
        return checked_config(changed(document, section, key, name), [])

    def trial(section: str, key: str, name: str) -> Any:
        head = {"versions": versions(), "config": changed(document, section, key, name)}
        return trial_site(0, 1, SiteTerms(), Path())(head)

    found: Callable[[str, str, str], Any] = vars()[reader]
    return found


READERS = ("model", "hub", "resume", "evaluate", "network", "folder", "message", "trial")
CASES = [
    (reader, *place)
    for reader in READERS
    for place in NAMING
    if not (reader in ("model", "hub") and place[0] != "model")  # a model file names nothing else
    and not (reader == "message" and place[0] in ("dataset", "partition"))  # a site ignores these two
]


@pytest.mark.parametrize(("reader", "section", "key"), CASES)
def test_no_reader_imports_what_a_file_names(
    reader: str, section: str, key: str, stopped: Path, tmp_path: Path
) -> None:
    read = read_by(reader, stopped, tmp_path)
    for name in IMPORTABLE:
        with pytest.raises(FedfewError) as caught:
            read(section, key, name)
        assert caught.value.code in ("E125", "E417"), caught.value
        assert name in caught.value.message and f"--allow-code {name}" in caught.value.remedy
    assert "tests.runs.trap" not in sys.modules


def test_a_model_file_runs_no_command(tmp_path: Path) -> None:
    """The attack itself: the name is a function that starts a process, the options are its arguments."""
    mark = tmp_path / "mark"
    options = {"name": "subprocess:run", "args": ["touch", str(mark)], "cwd": str(tmp_path)}
    file = forged_model(digits_run()[1], tmp_path / "model.safetensors", options)
    with pytest.raises(FedfewError, match="subprocess:run"):
        load_model(file)
    assert not mark.exists()


@pytest.mark.parametrize("options", [{"width": 0}, {"width": "8"}, {"widht": 8}, {"name": "cnn2"}])
def test_options_from_a_model_file_are_checked_like_those_of_a_config(options: dict[str, Any], tmp_path: Path) -> None:
    file = forged_model(digits_run()[1], tmp_path / "model.safetensors", {"name": "cnn", "width": 8} | options)
    with pytest.raises(FedfewError) as caught:
        load_model(file)
    assert caught.value.code in ("E103", "E104", "E105") and str(file) in str(caught.value)


def test_a_module_allows_what_is_defined_in_it_and_not_what_it_imports() -> None:
    asked = {"model": {"name": f"{OWN}:for_classes"}}
    assert refused_code(asked, [OWN]) is None and refused_code(asked, [f"{OWN}:for_classes"]) is None
    assert refused_code(asked, [f"{OWN}:Other", "tests.config"]) == ("model.name", f"{OWN}:for_classes")
    for name in ("np.load", "nn.Linear", "weighted_mean", "replace"):
        assert refused_code({"model": {"name": f"{OWN}:{name}"}}, [OWN]) == ("model.name", f"{OWN}:{name}")


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a model of one's own, one of its rounds done."""
    config = load(TINY, {"model.name": f"{OWN}:for_classes", "rounds": 2})
    folder = tmp_path_factory.mktemp("own") / "run"
    rounds = start(config, folder).advance()
    next(rounds)
    rounds.close()
    return Run.open(folder)


def test_ones_own_code_works_where_one_names_it(own_run: Run, tmp_path: Path) -> None:
    shutil.copytree(own_run.path, folder := tmp_path / "run")
    with pytest.raises(FedfewError, match=r"E125.*asks to run 'tests.config.own_parts:for_classes'"):
        fedfew.resume(folder, progress=False)
    run = fedfew.resume(folder, progress=False, allow_code=[OWN])
    assert run.finished and run.model() is not None  # whoever allowed it to train may use it
    with pytest.raises(FedfewError, match="E125"):
        Run.open(folder).model()
    assert load_model(folder, allow_code=[f"{OWN}:for_classes"])[0].vector.equal(run.network().vector)
    again = fedfew.run(own_run.document | {"rounds": 2}, out=folder, if_exists="continue", progress=False)
    assert again.model() is not None


@pytest.mark.parametrize(
    "command", [["resume"], ["export", "--format", "safetensors"], ["evaluate", "--sites"], ["predict"], ["label-next"]]
)
def test_every_command_that_needs_the_code_can_be_allowed_to_use_it(
    command: list[str], own_run: Run, tmp_path: Path
) -> None:
    shutil.copytree(own_run.path, folder := tmp_path / "run")
    if command[0] != "resume":
        fedfew.resume(folder, progress=False, allow_code=[OWN])
    images = [str(digits_run()[0])] if command[0] in ("predict", "label-next") else []
    words = [command[0], str(folder), *images, *command[1:]]
    with pytest.raises(FedfewError, match="E125"):
        app(words, standalone_mode=False)
    app([*words, "--allow-code", OWN], standalone_mode=False)


def test_what_one_passes_oneself_needs_no_permission(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(dumps(TINY | {"model": {"name": f"{OWN}:for_classes"}}))
    assert own_code(load(tmp_path / "mine.toml").document) == {"model.name": f"{OWN}:for_classes"}
    assert own_code(tiny(model__name=f"{OWN}:for_classes").document) == {"model.name": f"{OWN}:for_classes"}
    found = load(tmp_path / "mine.toml", {"model.name": "cnn", "model.width": 4, "rounds": 1}, [OWN])
    assert Experiment(found).run(tmp_path / "run").finished
    (tmp_path / "plain.toml").write_text(dumps(TINY))
    assert load(tmp_path / "plain.toml", {"model.name": f"{OWN}:for_classes"}, allow_code=()).model.own
