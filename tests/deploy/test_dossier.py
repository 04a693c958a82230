"""The dossier of a network and the page of a ledger: what stands in them comes from the files."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.deploy.conftest import TINY
from tests.deploy.test_deploy_commands import fedfew as command

import fedfew
from fedfew.deploy import audit, joining
from fedfew.deploy.messages.frames import encode
from fedfew.deploy.plan import make_network, open_bundle
from fedfew.deploy.site.ledger import NAME, Ledger
from fedfew.deploy.site.limits import LIMITS
from fedfew.interface.cli import app
from fedfew.interface.deploy import dossier
from fedfew.runs.session import Experiment


def test_the_dossier_tells_what_the_files_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_network(tmp_path / "clinic", ["north", "south", "west"], days=30)
    joining.revoke(plan, "west")
    site = open_bundle(tmp_path / "clinic" / "bundles" / "north.tar", tmp_path / "north")
    (site.folder / LIMITS).write_text('min_images = 50\naccept = "ask"\n')
    Ledger(site.folder).sent({"run": "f00d", "round": 0}, {"site": 0}, encode('{"site": 0}', {}))
    run = Experiment.load("quick", TINY | {"rounds": 1, "privacy.clip": 1.0}).run(plan.folder / "runs" / "0001-x")
    about = {"plan": "3fa91c" * 8, "leaves": ["psi 1234"], "sites": ["north"]}
    audit.record(plan.folder, "run started", run="f00d", folder=str(run.path), **about)
    command("dossier", tmp_path / "clinic", "--site", site.folder, "--purpose", "Find <b>tumours</b>")
    text = (tmp_path / "clinic" / "dossier.html").read_text()
    for part in ("Find &lt;b&gt;tumours", "psi 1234", "3fa91c3fa91c", "none: no bound"):
        assert part in text, part
    assert "accept, min_images" in text and run.summary["model_sha256"] in text and "revoked" in text
    assert "<td>fedmix, small network</td><td>0." in text and "<td>linear head" not in text
    assert "ends in 29 days" in text and "Limits and ledgers of south are not" in text and "torch" in text
    assert "private keys of north, south are in bundles/" in text
    assert "no noise, so nothing bounds" in text and "Secure sums" not in text and text.count("<line ") == 2
    lines = (site.folder / NAME).read_text().replace('"site": 0', '"site": 1')
    (site.folder / NAME).write_text(lines)
    command("dossier", tmp_path / "clinic", "--site", site.folder, "--out", tmp_path / "other.html")
    assert "its ledger is damaged" in (tmp_path / "other.html").read_text()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert dossier.write_pdf(tmp_path / "other.html") is None


def test_the_dossier_quotes_what_was_measured_of_its_methods() -> None:
    named = [row["answer"] for row in dossier.measured({"fedmoments"})]
    assert len(named) > 10 and all(name.startswith("fedmoments, ") for name in named)
    named = [row["answer"] for row in dossier.measured({"fedmix", "fedavg"})]
    assert "fedmix, small network" in named and "linear head" in named and "fedfew, small network" not in named


def test_the_dossier_explains_secure_sums_and_warns_of_an_authority_at_the_server(tmp_path: Path) -> None:
    plan = make_network(tmp_path / "clinic", ["a", "b", "c"])
    secure = {"rounds": 1, "method.name": "fedavg", "participation": 1.0, "privacy.sums": "secure"}
    Experiment.load("quick", TINY | secure).run(plan.folder / "runs" / "0001-x")
    command("dossier", tmp_path / "clinic")
    text = (tmp_path / "clinic" / "dossier.html").read_text()
    assert "fewer than 2t − n sites" in text and "sums over all sites of a round" in text
    assert "which could make up sites of a secure sum" in text and "of secure sums only the sum is" in text
    (plan.folder / "ca.key").unlink()
    for name in ("a", "b", "c"):
        (tmp_path / "clinic" / "bundles" / f"{name}.tar").unlink()
    command("dossier", tmp_path / "clinic")
    text = (tmp_path / "clinic" / "dossier.html").read_text()
    assert "could make up sites of" not in text and "bundles/" not in text and "Sites hold images without" in text


def test_the_dossier_of_a_network_of_tables_speaks_of_rows(tmp_path: Path) -> None:
    plan = make_network(tmp_path / "clinic", ["a", "b"])
    drawn = np.random.default_rng(0).normal(size=(40, 3))
    config = fedfew.from_arrays(
        (drawn, np.arange(40) % 2), [drawn] * 2, (drawn, np.arange(40) % 2), path=tmp_path / "x"
    )
    changes = {"rounds": 1, "method.name": "fedavg", "fleet.kind": "inline"}
    Experiment.load(config, changes).run(plan.folder / "runs" / "0001-x")
    command("dossier", tmp_path / "clinic")
    text = (tmp_path / "clinic" / "dossier.html").read_text()
    assert "Sites hold rows without labels" in text and "rows, ledger (stay here)" in text


def test_a_ledger_has_a_page(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.sent({"run": "f00d", "round": 0}, {"code": "E420"}, encode('{"code": "E420"}', {}))
    ledger.append([{"decision": "approved", "plan": "3fa91c"}])
    app(["ledger", "verify", str(tmp_path), "--html", str(tmp_path / "page.html")], standalone_mode=False)
    text = (tmp_path / "page.html").read_text()
    last = json.loads((tmp_path / NAME).read_text().splitlines()[-1])["chain"]
    assert last in text and "E420 (1)" in text and "approved" in text and "Run f00d" in text
