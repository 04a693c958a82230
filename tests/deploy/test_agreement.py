"""A run asks a site, and the site answers by its policy or as somebody there decided."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.in_process import loop
from tests.deploy.test_site import Tiny, message, real

from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.deploy.messages.heads import plan_hash
from fedfew.deploy.plan import make_network, open_bundle
from fedfew.deploy.roster import server_identity
from fedfew.deploy.server.members import Agreements
from fedfew.deploy.server.server_app import run_description
from fedfew.deploy.site.agreement import APPROVED, REFUSED, asked_plans, decide, pause
from fedfew.deploy.site.ledger import verify
from fedfew.deploy.site.limits import LIMITS, SiteTerms, site_terms
from fedfew.deploy.site.warm_site import WarmSite
from fedfew.interface.cli import app
from fedfew.runs.run import Run
from fedfew.runs.session import start
from fedfew.studies.verdict import baseline_of


def test_what_a_server_writes_cannot_change_what_is_read_on_the_terminal(
    tiny: Tiny, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, _ = message(tiny(), tiny().network.snapshot())
    hidden = "\x1b[2J\x1b]0;title\x07\x9b8mfedavg\r"
    head["config"]["method"] = {"name": hidden}
    site = real(tmp_path / "s", images, accept="ask")  # type: ignore[arg-type]
    make_network(tmp_path / "net", ["a"])
    open_bundle(tmp_path / "net" / "bundles" / "a.tar", tmp_path / "s")
    assert ask(site, head) == "waiting"
    app(["deploy", "approve", str(tmp_path / "s")], standalone_mode=False)
    said = capsys.readouterr().out
    assert "fedavg" in said and not set(said) & set("\x1b\x07\x9b\r")


def ask(site: WarmSite, head: dict[str, Any]) -> str:
    reply, arrays = site.answer(head | {"kind": "ask"}, {})
    assert reply["plan"] == plan_hash(json.loads(json.dumps(head))) and not arrays
    return str(reply["answer"])


def code(site: WarmSite, head: dict[str, Any], content: Any) -> str:
    (answer,) = site.answer(head, content)[0]["answers"]
    return str(answer.get("code", ""))


def test_a_site_that_wants_to_be_asked_trains_after_an_approval_and_not_while_it_pauses(
    tiny: Tiny, images: Path, tmp_path: Path
) -> None:
    parts = tiny(rounds=7)
    site, folder = real(tmp_path / "s", images, accept="ask"), tmp_path / "s"  # type: ignore[arg-type]
    head, content = message(parts, parts.network.snapshot())
    assert ask(site, head) == "waiting" and code(site, head, content) == "E424"
    (plan,) = asked_plans(folder)
    assert (plan["method"], plan["rounds"]) == (parts.config.method_name, 7)
    assert plan["leaves"] == [f"psi {parts.network.layout.size}"] and plan["epsilon"] is None
    with pytest.raises(FedfewError, match="names 0 of the plans"):
        decide(folder, "0000", APPROVED)
    decide(folder, plan["plan"][:12], APPROVED)
    assert ask(site, head) == "agreed" and code(site, head, content) == ""
    pause(folder)
    assert ask(site, head) == "paused" and code(site, head, content) == "E424"
    pause(folder, end=True)
    assert code(site, head, content) == ""
    other, content = message(tiny(rounds=8), parts.network.snapshot())
    assert ask(site, other) == "waiting", "another plan needs another approval"
    decide(folder, plan["plan"], REFUSED)
    assert ask(site, head) == "refused"
    said = [line["decision"] for line in verify(folder).decisions]
    assert said == ["approved", "paused", "pause ended", "refused"]


@pytest.mark.parametrize(
    ("noise", "open_"), [(0.0, "show its part; only noise bounds that"), (3.0, "ε holds while 50% of them add theirs")]
)
def test_who_approves_a_secure_sum_reads_what_it_leaves_open(
    tiny: Tiny, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], noise: float, open_: str
) -> None:
    plan = make_network(tmp_path / "net", ["a", "b", "c"])
    open_bundle(tmp_path / "net" / "bundles" / "b.tar", tmp_path / "s")
    site = real(tmp_path / "s", images, accept="ask")  # type: ignore[arg-type]
    parts = tiny(method__name="fedavg", privacy__sums="secure", privacy__clip=1.0, privacy__noise=noise)
    head = run_description(parts, "run", server_identity(plan, plan.sites, trial=False))
    assert ask(site, head) == "waiting"
    app(["deploy", "approve", str(tmp_path / "s")], standalone_mode=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "seen only in a sum with" in said and open_ in said


def test_a_policy_may_list_plans(tiny: Tiny, images: Path, tmp_path: Path) -> None:
    head, _ = message(tiny(), tiny().network.snapshot())
    listed = real(tmp_path / "a", images, accept=(plan_hash(head)[:16],))  # type: ignore[arg-type]
    assert ask(listed, head) == "agreed"
    assert ask(listed, message(tiny(rounds=9), tiny().network.snapshot())[0]) == "refused"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / LIMITS).write_text('accept = "maybe"')
    with pytest.raises(FedfewError, match="E511"):
        site_terms(tmp_path / "b")
    (tmp_path / "b" / LIMITS).write_text(f'accept = ["{plan_hash(head)}"]')
    assert site_terms(tmp_path / "b").accept == (plan_hash(head),)


def test_a_run_waits_for_those_who_decide_and_goes_on_without_those_who_refuse(tiny: Tiny) -> None:
    parts = tiny(clients=3)
    with loop(parts, 3) as network:
        told: list[tuple[int, str]] = []
        attendance = network.fleet._attendance
        attendance.agreement = Agreements(
            network.fleet._description, lambda site, about: told.append((site, about["answer"]))
        )
        network.fleet._agreements = attendance.agreement
        for site, accept in zip(network.sites, ("all", "ask", ()), strict=True):
            site.terms = SiteTerms(accept=accept)  # type: ignore[arg-type]
        attendance.look()
        attendance.look()
        assert attendance.nodes.keys() == {0} and sorted(told) == [(0, "agreed"), (1, "waiting"), (2, "refused")]
        (plan,) = asked_plans(network.sites[1].state)
        decide(network.sites[1].state, plan["plan"], APPROVED)
        attendance.agreement._next.clear()
        assert network.fleet.online() == [0, 1]
        assert told[-1] == (1, "agreed") and len(told) == 4
        pause(network.sites[0].state)
        payloads = {k: parts.algorithm.broadcast(parts.algorithm.start(parts.network.snapshot()), k) for k in (0, 1)}
        answers = {answer.client: answer for answer in network.fleet.train(0, payloads)}
        assert getattr(answers[0], "code", "") == "E424" and hasattr(answers[1], "reply")
        assert network.fleet.online() == [1]


def test_server_only_training_of_a_network_needs_no_site(tmp_path: Path) -> None:
    small = {"labels": 40, "dataset.test": 40, "dataset.validation": 20, "model.width": 4, "server.epochs": 1}
    plan = make_network(tmp_path / "net", ["a", "b"])
    fleet = {"fleet.kind": "flower", "fleet.network": str(plan.folder), "clients": 2, "participation": 1.0, "rounds": 2}
    session = start(baseline_of(load("quick", small | fleet)), tmp_path / "alone")
    assert [record["cohort"] for record in session.advance()] == [[], []]
    assert Run(session.folder).judged is not None
