"""Secure sums on the path of a network: fleet, Flower's messages, ClientApp, warm sites with keys and ledgers."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.deploy.in_process import Loop, loop
from tests.secure.test_exchange import LIES, Between, Change, asked, fewer, parts_of, to_first, without

from fedfew.config.parts import Parts
from fedfew.core.errors import FedfewError
from fedfew.core.layout import Payload
from fedfew.core.types import ClientUpdate, Missing
from fedfew.deploy import certificates
from fedfew.deploy.plan import make_network, open_bundle
from fedfew.deploy.roster import fingerprints, server_identity, signed_member, site_identity
from fedfew.deploy.site.ledger import verify
from fedfew.runtime.exchange import Answers, ask
from fedfew.secure import messages, terms
from fedfew.secure.messages import AGREE, KEYS, MASKED, REVEAL, SHARES

STEPS = [KEYS, SHARES, MASKED, AGREE, REVEAL]
ROUNDS = count()


class Server(Between):
    """The server's messages pass through ``change`` on their way to the sites of a network."""

    def __init__(self, parts: Parts, change: Change, inner: Any) -> None:
        super().__init__(parts, change, inner)
        self.identity = inner.identity

    def online(self) -> list[int]:
        return list(self.inner.online())

    def traffic(self) -> dict[str, int]:
        return dict(self.inner.traffic())


def over(
    network: Loop, parts: Parts, change: Change = lambda step, sent: sent, round: int | None = None
) -> tuple[Answers, Server]:
    """A sum of the next round, or of this one."""
    fleet = Server(parts, change, network.fleet)
    state = parts.algorithm.start(parts.network.snapshot())
    state = replace(state, round=next(ROUNDS) if round is None else round)
    return ask(parts.clients, parts.algorithm, parts.server, fleet, state), fleet


@pytest.fixture(scope="module")
def parts() -> Parts:
    return parts_of()


@pytest.fixture(scope="module")
def nine(parts: Parts) -> Iterator[Loop]:
    """Three sites with a key each, for nine clients."""
    with loop(parts, sites=3) as network:
        yield network


@pytest.mark.parametrize("step", [KEYS, pytest.param(SHARES, marks=pytest.mark.slow), MASKED, AGREE, REVEAL])
def test_a_third_of_the_sites_drops_out_in_any_exchange(nine: Loop, parts: Parts, step: int) -> None:
    def leave(now: int, sent: dict[int, Payload]) -> dict[int, Payload]:
        return {k: payload for k, payload in sent.items() if now < step or k not in {1, 4, 7}}

    round = next(ROUNDS)
    answers, _ = over(nine, parts, leave, round)
    inline, _ = asked(parts, leave, round=round)
    assert answers.summed == inline.summed
    assert torch.equal(answers.updates[0].reply["psi"], inline.updates[0].reply["psi"])


def swapped_member(sent: Payload) -> Payload:
    """The server's own key for site 1, which another authority has signed."""
    _, rows = messages.read_offer(0, sent)
    authority, key = (ec.generate_private_key(curve) for curve in (ec.SECP384R1(), ec.SECP256R1()))
    point = key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    return sent | _members(rows | {1: signed_member(authority, "net", 1, point)})


def moved_member(sent: Payload) -> Payload:
    """Site 2, which may be the server's friend, in the name of site 1."""
    _, rows = messages.read_offer(0, sent)
    return sent | _members(rows | {1: rows[2]})


def _members(rows: Mapping[int, bytes]) -> Payload:
    named = messages.table(rows)
    return {messages.MEMBERS + name.removeprefix(messages.PREFIX): tensor for name, tensor in named.items()}


@pytest.mark.parametrize(
    ("step", "lie"),
    [
        (KEYS, swapped_member),
        (KEYS, moved_member),
        (KEYS, lambda sent: sent | _members({})),
        *(pytest.param(step, lie, marks=pytest.mark.slow) for step, lie, _ in LIES),  # inline they are fast
    ],
)
def test_a_client_that_is_lied_to_refuses(
    nine: Loop, parts: Parts, step: int, lie: Callable[[Payload], Payload]
) -> None:
    """A code leaves and no reason; the sum goes on without the client, or with its part if it was sent before."""
    answers, fleet = over(nine, parts, to_first(lie, step))
    told = [a for _, a in fleet.answers if isinstance(a, Missing)]
    assert {(a.client, a.code) for a in told} == {(0, "E422")}
    assert set(range(1, 9)) <= set(answers.summed)
    ledger = map(json.loads, (nine.folder / "site0" / "ledger.jsonl").read_text().splitlines())
    *_, refused = (a for line in ledger if "message" in line for a in line["message"]["answers"] if "code" in a)
    assert refused == {"client": 0, "code": "E422"}


def test_different_sets_to_different_sites_end_in_no_sum(nine: Loop, parts: Parts) -> None:
    def lie(step: int, sent: dict[int, Payload]) -> dict[int, Payload]:
        return {k: fewer(0, 8)(p) if step == AGREE and k < 4 else p for k, p in sent.items()}

    answers, fleet = over(nine, parts, lie)
    assert not answers.updates and not any(step == REVEAL for step, _ in fleet.answers)


def test_old_messages_and_a_second_list_are_refused(nine: Loop, parts: Parts) -> None:
    """A server that replays an earlier sum's messages, then asks for the other kind of shares."""
    log, round = dict[int, dict[int, Payload]](), next(ROUNDS)

    def record(step: int, sent: dict[int, Payload]) -> dict[int, Payload]:
        return log.setdefault(step, sent) and sent

    over(nine, parts, record, round)
    old = dict(log)
    log.clear()
    _, fleet = over(nine, parts, record, round)
    for step in STEPS[1:]:
        for answer in nine.fleet.train(round, {k: old[step][k] for k in (0, 3)}):
            assert isinstance(answer, Missing) and answer.code == "E422", step
    again = list(nine.fleet.train(round, {0: log[REVEAL][0]}))  # the same message of this sum: the same shares
    assert isinstance(again[0], ClientUpdate)
    first = next(a for s, a in fleet.answers if s == REVEAL and a.client == 0)
    assert isinstance(first, ClientUpdate) and torch.equal(again[0].reply[messages.ROWS], first.reply[messages.ROWS])
    gone = {0: fewer(0, 8)(log[AGREE][0])}  # site 8 "has dropped out": its key would come after its seed
    (refused,) = nine.fleet.train(round, gone)
    assert isinstance(refused, Missing) and refused.code == "E422"
    (refused,) = nine.fleet.train(round + 1, {0: log[SHARES][0]})  # under the number of another round
    assert isinstance(refused, Missing) and refused.code == "E422"


def test_terms_that_are_offered_again_make_no_old_signature_good(
    nine: Loop, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same terms after another sum: sites make new keys, and the signatures of the first attempt do not fit."""
    signed, round = list[dict[int, Payload]](), next(ROUNDS)

    def old_signatures(step: int, sent: dict[int, Payload]) -> dict[int, Payload]:
        if step == REVEAL:
            signed.append(sent)
            return {k: payload | {messages.ROWS: signed[0][k][messages.ROWS]} for k, payload in sent.items()}
        return sent

    for nonce, change in ((1, old_signatures), (2, lambda step, sent: sent), (1, old_signatures)):
        monkeypatch.setattr(terms, "secrets", SimpleNamespace(token_bytes=nonce.to_bytes))
        answers, fleet = over(nine, parts, change, round)
        assert bool(answers.updates) == (len(signed) < 2)
    assert set(fleet.refusals(REVEAL)) == set(range(9))


def test_a_round_that_has_a_sum_gets_none_of_other_sites(nine: Loop, parts: Parts) -> None:
    round = next(ROUNDS)
    assert over(nine, parts, round=round)[0].summed == tuple(range(9))
    nine.sites[0]._ready, nine.sites[0]._last, nine.sites[0]._newest = (
        None,
        None,
        {},
    )  # killed: it knows from its folder
    answers, fleet = over(nine, parts, without(8), round)
    assert not answers.updates and set(fleet.refusals(AGREE)) == set(range(8))


def test_a_site_that_is_killed_goes_on_where_it_was(nine: Loop, parts: Parts) -> None:
    """In every step another process answers; secrets are in the site's folder, for its user only."""

    def restart(step: int, sent: dict[int, Payload]) -> dict[int, Payload]:
        nine.sites[0]._ready, nine.sites[0]._last, nine.sites[0]._newest = None, None, {}
        return sent

    answers, _ = over(nine, parts, restart)
    assert answers.summed == tuple(range(9))
    secrets = nine.folder / "site0" / "sums"
    assert secrets.stat().st_mode & 0o077 == 0 and len(list(secrets.iterdir())) == 3


def test_a_server_that_was_killed_begins_the_round_anew(nine: Loop, parts: Parts) -> None:
    round = next(ROUNDS)
    with pytest.raises(KeyboardInterrupt):
        over(nine, parts, lambda step, sent: (_ for _ in ()).throw(KeyboardInterrupt) if step == AGREE else sent, round)
    answers, _ = over(nine, parts, round=round)
    inline, _ = asked(parts, lambda step, sent: sent, round=round)
    assert torch.equal(answers.updates[0].reply["psi"], inline.updates[0].reply["psi"])


def test_all_that_left_is_in_the_ledger_and_the_end_of_a_run_deletes_secrets(nine: Loop, parts: Parts) -> None:
    kept = nine.folder / "site2" / "sums"
    kept.mkdir(parents=True, exist_ok=True)
    run = nine.fleet._description["run"]
    for name in ("0ld-2.safetensors", ".0ld-2.safetensors.7.tmp"):  # of a run that never ended
        (kept / name).write_bytes(b"secrets")
    (kept / f".{run}-2.safetensors.7.tmp").write_bytes(b"secrets of a process that was killed as it wrote them")
    over(nine, parts)
    assert {path.name.lstrip(".").partition("-")[0] for path in kept.iterdir()} == {run}
    (traffic,) = verify(nine.folder / "site2").runs.values()
    assert traffic.sent == traffic.received >= 5
    assert all(name.startswith("secure.") for name in traffic.tensors)
    nine.fleet.end()
    assert not list((nine.folder / "site2" / "sums").iterdir())


def test_real_sites_add_up_their_own_images_once_a_round(tmp_path: Path) -> None:
    """Three sites, whose configs come from the server without dataset; each answer counts once, not five times."""
    parts = parts_of(clients=3)
    pixels = parts.federation.samples.data[:90].numpy()
    images = {k: tmp_path / f"{k}.npz" for k in range(3)}
    for k, path in images.items():
        np.savez(path, images=pixels[30 * k : 30 * k + 30])
    with loop(parts, sites=3, images=images) as network:
        members = network.fleet._members.identity
        network.fleet._members = replace(network.fleet._members, identity=replace(members, sites=0))  # type: ignore[type-var]
        answers, _ = over(network, parts)
        assert answers.summed == (0, 1, 2) and answers.updates[0].examples == 90
        counted = json.loads((network.folder / "site1" / "answers.json").read_bytes())
        assert list(counted.values()) == [1]


def test_members_of_a_plan_have_the_fingerprints_that_were_read_out_and_ca_key_may_be_elsewhere(tmp_path: Path) -> None:
    plan = make_network(tmp_path / "net", ["a", "b", "c"])
    identity = server_identity(plan, plan.sites, trial=False)
    said = {str(i): certificates.fingerprint(plan.public_key(name).read_bytes()) for i, name in enumerate(plan.sites)}
    assert fingerprints(identity.members) == said
    (plan.folder / "ca.key").rename(tmp_path / "ca.key")
    assert server_identity(plan, plan.sites, trial=False).members == identity.members
    (plan.folder / "keys" / "b.pub").write_bytes(certificates.site_key("b").public)  # a new key, not signed
    with pytest.raises(FedfewError, match=r"E505.*ca.key.*has not signed the key of b"):
        server_identity(plan, plan.sites, trial=False)


def test_a_site_refuses_a_member_that_its_plan_does_not_have(tmp_path: Path) -> None:
    """The authority has admitted a site since; whoever approved the plan has not."""
    plan = make_network(tmp_path / "net", ["a", "b", "c"])
    open_bundle(tmp_path / "net" / "bundles" / "a.tar", tmp_path / "a")
    identity = server_identity(plan, plan.sites, trial=False)
    site = site_identity(tmp_path / "a", {"members": fingerprints(identity.members)}, trial=False)
    assert site.meet(identity.members).verified(0, b"text", site.sign(0, b"text")) is True
    later = make_network(tmp_path / "net", ["d"])
    with pytest.raises(FedfewError, match=r"E422.*site 3 is another one than in the plan"):
        site.meet(server_identity(later, later.sites, trial=False).members)
    with pytest.raises(FedfewError, match="no key of site 1"):
        site.sign(1, b"text")
