"""``package.module:Name`` works for every part of a config, is checked like fedfew's own, and faults are told."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.config.own_parts import INSTANCE
from tests.contract.runs import TINY, tiny_rounds

from fedfew import extend
from fedfew.config.files import dumps
from fedfew.config.names import NAMING
from fedfew.config.parts import assemble, federation_of
from fedfew.config.schema import load
from fedfew.config.tree import settings_for
from fedfew.core.errors import CODES, FedfewError
from fedfew.core.samples import OwnView
from fedfew.data.samples import Images, Vectors
from fedfew.runs.run import Run
from fedfew.runs.session import Experiment, reopen

OWN = "tests.config.own_parts"
SMALL = TINY | {"model": {"name": "cnn", "width": 4}}


def told(overrides: dict[str, Any]) -> str:
    with pytest.raises(FedfewError) as caught:
        load(SMALL, overrides)
    return str(caught.value)


def test_settings_without_a_doc_are_the_parameters_with_a_default() -> None:
    config = load(SMALL, {"aggregator.name": f"{OWN}:first_only", "aggregator.place": 1})
    assert config.document["aggregator"] == {"name": f"{OWN}:first_only", "place": 1}
    assert "unknown key aggregator.plaice" in told({"aggregator.name": f"{OWN}:first_only", "aggregator.plaice": 1})


def test_a_method_of_ones_own_mixes_as_it_says_and_brings_its_aggregator() -> None:
    config = load(SMALL, {"method.name": f"{OWN}:HALFWAY", "method.share": 0.0, "rounds": 1})
    assert config.document["aggregator"] == {"name": f"{OWN}:by_root", "power": 0.5}
    ((state, _),) = tiny_rounds(config)
    assert state.omega.equal(state.sigma)  # share 0: the server's model alone
    assert load(SMALL, {"method.name": f"{OWN}:HALFWAY"}).document["method"]["share"] == 0.4, "the entry's default"
    assert load(SMALL, {"method.name": f"{OWN}:Halfway"}).document["method"]["share"] == 0.5, (
        "the class alone has its own"
    )
    ((other, _),) = tiny_rounds(load(SMALL, {"method.name": f"{OWN}:mostly_halfway", "rounds": 1}))
    assert not other.omega.equal(other.sigma)
    assert "it is only a test" in told({"method.name": f"{OWN}:HALFWAY", "aggregator.name": "krum"})


def test_an_objective_of_ones_own_trains_the_clients() -> None:
    own = {"method.name": "fedavg", "objective.name": f"{OWN}:Sharpen"}
    still, moved = (tiny_rounds(load(SMALL, own | {"objective.weight": weight}))[0][1] for weight in (0.0, 9.0))
    assert all(update["norm"] < 1e-6 for update in still["updates"])
    assert all(update["norm"] > 1e-4 for update in moved["updates"])
    assert "makes no pseudo-labels" in told(own | {"vote.prior": "em"})


@pytest.mark.parametrize("name", ["Fixed", "for_classes", "in_order", "INSTANCE"])
def test_a_torch_model_needs_no_signature_of_ours(name: str) -> None:
    rounds = tiny_rounds(load(SMALL | {"model": {"name": f"{OWN}:{name}"}}, {"method.name": "fedavg"}))
    assert rounds[0][1]["rejected"] == []
    assert not rounds[0][0].omega.equal(rounds[1][0].omega)


def test_a_model_that_is_an_instance_keeps_its_weights_and_is_not_trained_itself() -> None:
    weight = dict(INSTANCE.named_parameters())["1.weight"]
    before = weight.detach().clone()
    config = load(SMALL | {"model": {"name": f"{OWN}:INSTANCE"}})
    assert config.document["model"] == {"name": f"{OWN}:INSTANCE"}
    assert assemble(config).network.vector[:7840].equal(before.flatten())
    tiny_rounds(config)
    assert weight.equal(before)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            {"model": {"name": f"{OWN}:three_classes"}},
            r"\(2, 3\) for two samples of 1×28×28; 10 classes need \(2, 10\)",
        ),
        ({"model": {"name": f"{OWN}:another_size"}}, "fails on samples of 1×28×28: RuntimeError"),
        ({"model": {"name": f"{OWN}:no_model"}}, "returned a str"),
        ({"partition": {"kind": f"{OWN}:forgetful"}}, "assigned 6"),
        ({"partition": {"kind": f"{OWN}:one_short"}}, "5 lists for 6 clients"),
    ],
)
def test_a_part_that_does_not_fit_the_images_is_refused(part: dict[str, Any], words: str) -> None:
    with pytest.raises(FedfewError, match=words) as caught:
        assemble(load(SMALL | part))
    assert caught.value.code == "E115"


def test_settings_of_a_torch_class_are_its_parameters_with_a_default() -> None:
    own = {"name": f"{OWN}:Fixed"}
    config = load(SMALL | {"model": own | {"hidden": 4}})
    assert config.document["model"] == own | {"hidden": 4}, "TOML has no word for None"
    assert load(tomllib.loads(dumps(config.document))).document == config.document
    assert load(config.document, {"model.path": "weights"}).model.settings["path"] == "weights"
    with pytest.raises(FedfewError, match=r"model\.depth"):
        load(SMALL | {"model": own | {"depth": 4}})


def test_what_extensions_need_is_in_one_module() -> None:
    """The page on extending uses nothing else of fedfew."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "extend.md").read_text("utf-8")
    assert set(re.findall(r"^from (fedfew[\w.]*) import", page, re.MULTILINE)) == {"fedfew.extend"}
    assert all(getattr(extend, name) is not None for name in extend.__all__)


def test_a_partition_of_ones_own_deals_every_image() -> None:
    partition = federation_of(load(SMALL, {"partition.kind": f"{OWN}:round_robin", "partition.offset": 2})).partition
    assert partition.of(0).tolist() == [i for i in range(48) if (i + 2) % 6 == 0]
    assert sorted(np.concatenate([partition.of(k) for k in range(6)]).tolist()) == list(range(48))


def test_an_aggregator_that_returns_a_vector_is_told_what_to_return() -> None:
    with pytest.raises(FedfewError, match=r"E115 aggregator\.name: it returned Tensor, no Aggregate"):
        tiny_rounds(load(SMALL, {"aggregator.name": f"{OWN}:vector_only"}))


def test_a_method_can_know_the_number_of_clients() -> None:
    config = load(SMALL, {"method.name": f"{OWN}:Knowing"})
    assert config.method.population == config.document["method"]["population"] == 6  # type: ignore[attr-defined]
    assert load(SMALL, {"method.name": f"{OWN}:Knowing", "method.population": 9}).document["method"]["population"] == 9


def test_a_dataset_that_brings_its_sites_tells_every_part_of_a_run_their_number() -> None:
    own = {"dataset": {"name": "tests.runs.own_runs:three_sites"}, "labels": 20, "fleet": {"kind": "inline"}}
    parts = assemble(load(own, {"method.name": "scaffold"}))
    methods = parts.algorithm, parts.config.method, load(parts.config.document).method
    assert [method.population for method in methods] == [3, 3, 3]  # type: ignore[attr-defined]
    assert parts.clients.count == 3


def test_the_pool_and_a_resume_use_it_too_and_give_the_same_bits(tmp_path: Path) -> None:
    chosen = {"method.name": f"{OWN}:Halfway", "aggregator.name": f"{OWN}:by_root"}
    inline = Experiment.load(SMALL, chosen).run(tmp_path / "inline")
    pool = Experiment.load(SMALL, chosen | {"fleet.kind": "pool", "fleet.workers": 1}).run(tmp_path / "pool")
    assert inline.summary["model_sha256"] == pool.summary["model_sha256"]
    assert Run.open(tmp_path / "pool").method == f"{OWN}:Halfway"


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        ({"method.name": "no_such_package:Method"}, "E111", "No module named 'no_such_package'"),
        ({"method.name": f"{OWN}:Nothing"}, "E111", "Nothing"),
        ({"aggregator.name": f"{OWN}:NUMBER"}, "E111", "neither a function nor a class"),
        ({"aggregator.name": f"{OWN}:needy"}, "E115", "needs secret"),
        ({"aggregator.name": f"{OWN}:short"}, "E115", "does not take contributions, omega, sigma"),
        ({"method.name": f"{OWN}:Empty"}, "E115", "is not a subclass of Method"),
        ({"method.name": f"{OWN}:Undecorated"}, "E115", "sets share without being a dataclass"),
        ({"method.name": f"{OWN}:silent"}, "E115", "does not say what it returns"),
        ({"method.name": f"{OWN}:by_root"}, "E115", "is not a subclass of Method"),
        ({"objective.name": f"{OWN}:Empty", "method.name": "fedavg"}, "E115", "has no begin, labels"),
        ({"partition.kind": f"{OWN}:short"}, "E115", "does not take labels, clients, rng"),
        ({"fleet.kind": f"{OWN}:by_root"}, "E105", "fleet.kind"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_runs(overrides: dict[str, Any], code: str, words: str) -> None:
    text = told(overrides)
    assert text.startswith(code) and words in text
    assert "Traceback" not in text


def test_a_module_that_breaks_as_it_is_imported_is_told_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "breaks_on_import.py").write_text("import math\n\nmath.nothing_of_that_name()\n")
    (tmp_path / "divides_on_import.py").write_text("one = 1\nnone = one / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "nothing_of_that_name" in told({"method.name": "breaks_on_import:Method"})
    text = told({"method.name": "divides_on_import:Method"})
    assert "ZeroDivisionError" in text and "line 2" in text and CODES["E111"].remedy in text


def test_a_run_can_be_read_without_the_code_but_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"from {OWN} import by_root\n"
    (tmp_path / "rule_of_mine.py").write_text(code)
    with monkeypatch.context() as here:
        here.syspath_prepend(tmp_path)
        run = Experiment.load(SMALL, {"aggregator.name": "rule_of_mine:by_root", "rounds": 1}).run(tmp_path / "run")
        assert run.config.aggregator.settings["power"] == 0.5
    del sys.modules["rule_of_mine"]
    assert run.config.document["aggregator"] == {"name": "rule_of_mine:by_root", "power": 0.5}
    assert run.model() and Run.open(run.path).accuracy("last") == run.summary["accuracy"]["last"]
    with pytest.raises(FedfewError, match=r"E111.*rule_of_mine"):
        reopen(run.path, lambda fault: None, allow_code=["rule_of_mine"])


def test_what_lives_in_a_script_needs_the_inline_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.config import own_parts

    import __main__

    monkeypatch.setattr(__main__, "rule_of_a_notebook", own_parts.by_root, raising=False)
    chosen = {"aggregator.name": "__main__:rule_of_a_notebook"}
    assert load(SMALL, chosen).aggregator.settings["power"] == 0.5
    assert "cannot import" in told(chosen | {"fleet.kind": "pool"})


def test_a_real_site_runs_no_code_that_only_the_server_chose() -> None:
    pytest.importorskip("flwr")
    from fedfew.deploy.site.build import refuse_foreign_code

    for section, key in NAMING:
        document = load(SMALL).document
        asked = document | {section: document[section] | {key: "subprocess:Popen"}}
        with pytest.raises(FedfewError, match="--allow-code subprocess:Popen") as caught:
            refuse_foreign_code(asked, ["numpy:ones"])
        assert caught.value.code == "E417"
        refuse_foreign_code(asked, ["subprocess:Popen"])
        refuse_foreign_code(document, [])
    asked = load(SMALL).document | {"model": {"name": "transformers", "source": "/home/someone"}}
    with pytest.raises(FedfewError, match=r"E417 code: model\.source .*--allow-code /home/someone"):
        refuse_foreign_code(asked, [])
    refuse_foreign_code(asked, ["/home/someone"])


def test_an_augmentation_of_ones_own_is_used_and_checked() -> None:
    plain, mine = ({"method.name": "server-only", "server.augment": name} for name in ("none", f"{OWN}:mirrored"))
    first, second = (tiny_rounds(load(SMALL, chosen))[-1][0].omega for chosen in (plain, mine))
    assert not np.array_equal(first.numpy(), second.numpy())
    assert "E105" in told({"server.augment": "strange"}) and "strong" in told({"server.augment": "strange"})
    assert "E111" in told({"server.augment": f"{OWN}:nothing"})


@pytest.mark.parametrize(
    "method", [{"method.name": name} for name in ("fedfew", "semifl", "fl2", "fedmatch", "grouping")]
    + [{"method.name": "fedavg", "objective.name": name} for name in ("fixmatch", "uda", "freematch")],
)  # fmt: skip
def test_a_clients_strong_view_can_be_ones_own(method: dict[str, str]) -> None:
    sure = {"objective.threshold": 0.05} if method.get("objective.name") in ("fixmatch", "uda") else {}
    known = settings_for("method", method["method.name"])
    sure |= {"method.threshold": 0.05} if "threshold" in known else {}
    sure |= {"method.lambda_a": 5.0, "method.delta": 0.0} if "lambda_a" in known else {}
    plain, mine = (load(SMALL, method | sure | {"client.augment": n}) for n in ("standard", f"{OWN}:mirrored"))
    first, second = (tiny_rounds(chosen)[-1][0].omega for chosen in (plain, mine))
    assert not np.array_equal(first.numpy(), second.numpy())


def test_a_strong_view_that_nobody_looks_at_or_of_another_shape_is_refused() -> None:
    assert "no strong view" in told({"method.name": "fedmix", "client.augment": f"{OWN}:mirrored"})
    assert "E105" in told({"client.augment": "strange"})
    assert "E111" in told({"method.name": "fedfew", "client.augment": f"{OWN}:nothing"})
    images, first = Images(torch.zeros(3, 1, 8, 8, dtype=torch.uint8)), OwnView(lambda x, rng: x[:2], "client.augment")
    with pytest.raises(FedfewError, match=r"E115 client\.augment.*\(2, 1, 8, 8\)"):
        images.strong(torch.Generator(), first)


def test_ones_own_augmentation_gets_features_where_the_backbone_is_frozen() -> None:
    features = Vectors(torch.rand(4, 3, 16))
    made = features.strong(torch.Generator(), OwnView(lambda given, rng: given + 5, "server.augment")).data
    assert made.shape == (4, 1, 16) and bool((made >= 5).all())


def test_adamw_trains_and_is_refused_where_steps_are_counted() -> None:
    both = {"server.optimizer": "adamw", "client.optimizer": "adamw", "server.lr": 0.002, "client.lr": 0.001}
    state, record = tiny_rounds(load(SMALL, both))[-1]
    assert bool(state.omega.isfinite().all()) and record["round"]
    for chosen in ({"aggregator.name": "fednova"}, {"method.name": "scaffold"}):
        assert "client.optimizer" in told(both | chosen)


def test_a_model_for_another_kind_of_samples_is_refused_with_those_that_fit() -> None:
    own = {"dataset": {"name": f"{OWN}:vectors", "validation": 0, "test": 0, "unlabeled": 0}}
    with pytest.raises(FedfewError, match=r"E110 .* takes images, but the dataset .* holds vectors\. .* linear, mlp"):
        assemble(load(SMALL, own))
    with pytest.raises(FedfewError, match=r"E110 model\.name: model mlp takes vectors, but .* holds images"):
        assemble(load(SMALL, {"model.name": "mlp"}))
    mlp = assemble(load(SMALL, own | {"model": {"name": "mlp", "hidden": 3}}))
    assert mlp.network.layout.shapes == ((3, 8), (3,), (2, 3), (2,))
    assert mlp.network(mlp.server.labeled.samples).shape[1] == 2
