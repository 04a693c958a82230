"""The Flower fleet in one process: same bits as inline, and every kind of bad answer told apart."""

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deploy.in_process import CountingGrid, LoopGrid, loop
from tests.deploy.recorder import Recorder

from fedfew.config.parts import Parts, network_of, sites_of
from fedfew.config.tree import FleetSettings
from fedfew.core.errors import FedfewError
from fedfew.core.types import Fleet, Missing, ServerState
from fedfew.deploy.messages.answers import read_answers
from fedfew.deploy.messages.heads import ContentError, parse_head
from fedfew.deploy.messages.post import Pulled
from fedfew.deploy.messages.records import from_content, to_content
from fedfew.deploy.site.warm_site import ENDED, WarmSite
from fedfew.runs.alarms import alarms
from fedfew.runs.run import Run
from fedfew.runs.session import Experiment, reopen, start
from fedfew.runtime.record import RoundRecord, left_out
from fedfew.runtime.rounds import run_rounds
from fedfew.runtime.site import InlineFleet

Tiny = Callable[..., Parts]


def rounds_of(parts: Parts, fleet: Fleet, rounds: int = 3) -> tuple[ServerState, list[Any]]:
    first = parts.algorithm.start(network_of(parts.config, parts.federation).snapshot())
    done = list(run_rounds(parts.clients, parts.algorithm, parts.server, fleet, first, rounds))
    return done[-1][0], [record for _, record in done]


def inline_rounds(parts: Parts, rounds: int = 3) -> tuple[ServerState, list[RoundRecord]]:
    return rounds_of(parts, InlineFleet(sites_of(parts.config, parts.federation, parts.network)), rounds)


def inline(parts: Parts, rounds: int = 3) -> ServerState:
    return inline_rounds(parts, rounds)[0]


METHODS: dict[str, dict[str, Any]] = {
    "fedmix": {},
    "fedmatch": {"method__name": "fedmatch"},
    "fedavg": {"method__name": "fedavg"},
    "cbafed": {"method__name": "cbafed", "method__highest": 0.1},
    "logits": {"method__name": "ds-fl", "method__subset": 20, "dataset__open": 60},
    **{kind: {"compression__kind": kind} for kind in ("float16", "int8", "top-k", "ternary")},
    "clipped": {"privacy__clip": 1.0},
    "secure": {"privacy__sums": "secure", "participation": 1.0},
    "secure local norms": {"privacy__sums": "secure", "participation": 1.0, "method__name": "fedbn"},
}


@pytest.mark.parametrize("changes", METHODS.values(), ids=METHODS)
def test_same_bits_and_bytes_as_inline(tiny: Tiny, changes: dict[str, Any]) -> None:
    parts = tiny(**changes)
    expected, here = inline_rounds(parts)
    with loop(parts) as network:
        state, records = rounds_of(parts, network.fleet)
    assert torch.equal(state.omega, expected.omega)
    assert state.participation == expected.participation
    assert not any(left_out(record) or record["unused"] for record in records)
    assert [record["wire"]["up"] for record in records] == [record["bytes_up"] for record in here]
    assert [record["bytes_up"] for record in records] == [record["bytes_up"] for record in here]


def test_all_clients_of_a_site_travel_in_one_message_and_shared_vectors_once(tiny: Tiny) -> None:
    parts = tiny(participation=1.0)
    with loop(parts) as network:
        _, records = rounds_of(parts, network.fleet, 1)
        assert records[0]["wire"]["messages"] == 2
        vector = 4 * parts.network.layout.size
        # ω and σ go once to each of two sites; the step size is a number for each of six clients
        assert records[0]["wire"]["down"] == 2 * 2 * vector + 6 * 8
        assert [group for _, group, _ in network.grid.pushed] == ["0", "0"]
        assert all(ttl == 60.0 for _, _, ttl in network.grid.pushed)  # the deadline of 30 s, and as long for the late


def test_sites_are_informed_that_the_run_is_over(tiny: Tiny) -> None:
    parts = tiny()
    with loop(parts) as network:
        rounds_of(parts, network.fleet, 1)
        assert not any((site.state / ENDED).exists() for site in network.sites)
        network.grid.away.add(min(network.grid.sockets))  # offline: it learns nothing, and nobody waits for it
        network.fleet.end()
        assert [(site.state / ENDED).exists() for site in network.sites] == [False] + [True] * (len(network.sites) - 1)


def test_a_node_whose_key_is_not_of_the_network_is_never_asked(tiny: Tiny) -> None:
    parts = tiny()
    with loop(parts) as network:
        network.grid.sockets[999] = network.grid.sockets[100]
        rounds_of(parts, network.fleet, 1)
        assert 999 not in {node for node, _, _ in network.grid.pushed}


def test_a_server_app_that_dies_is_resumed_with_the_same_result(tiny: Tiny, tmp_path: Path) -> None:
    """Its Grid fails in the middle of a round, twice; a new one continues from the checkpoint, with other sites."""
    config = tiny(compression__kind="top-k", rounds=4).config
    expected = Experiment(config).run(tmp_path / "inline").summary["model_sha256"]
    session = start(config, tmp_path / "run")
    for pushes in (2, 3, 99):
        with loop(session.parts) as network:
            push, left = network.grid.push_messages, [pushes]

            def failing(messages: Any, push: Any = push, left: list[int] = left) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise ConnectionError("the SuperLink has gone")
                return push(messages)

            network.grid.push_messages = failing  # type: ignore[method-assign]
            with contextlib.suppress(ConnectionError):
                list(session.advance(fleet=network.fleet))
        session = reopen(tmp_path / "run", print)
    assert Run.open(tmp_path / "run").summary["model_sha256"] == expected


def test_a_site_asked_again_does_not_train_again(tiny: Tiny) -> None:
    parts = tiny(participation=1.0)
    payloads = {k: parts.algorithm.broadcast(parts.algorithm.start(parts.network.snapshot()), k) for k in range(6)}
    with loop(parts, sites=1) as network:
        site, trained = network.sites[0], list[int]()
        plain = site._answers

        def counting(*given: Any) -> Any:
            trained.append(1)
            return plain(*given)

        site._answers = counting  # type: ignore[method-assign, assignment]
        first, again = (list(network.fleet.train(0, payloads)) for _ in range(2))
    assert len(trained) == 1 and len(first) == len(again) == 6


def test_flowers_public_interface_suffices(tiny: Tiny) -> None:
    """A Grid that only has the public methods, and sites that are asked for their numbers: the same bits."""
    parts = tiny(participation=1.0)
    with loop(parts, keys=False, grid=LoopGrid) as network:
        state, _ = rounds_of(parts, network.fleet)
    assert torch.equal(state.omega, inline(parts).omega)


@pytest.mark.parametrize("grid", [LoopGrid, CountingGrid])
def test_an_answer_over_the_limit_is_refused(tiny: Tiny, grid: type[LoopGrid]) -> None:
    parts = tiny(participation=1.0)
    with loop(parts, answers={1: swollen}, grid=grid) as network:
        _, records = rounds_of(parts, network.fleet, 1)
    assert rejected(records) == {1: ["E405"] * 3}


def test_nodes_without_a_number_are_numbered_by_their_ids(tiny: Tiny) -> None:
    """A site that gives its number keeps it; the others take what is left, and keep it from the first round on."""
    parts = tiny(participation=1.0)

    def silent(site: WarmSite) -> Any:
        honest = site.answer
        return lambda head, arrays: ({"site": None}, {}) if head["kind"] == "hello" else honest(head, arrays)

    with loop(parts, sites=3, keys=False, answers={0: silent, 2: silent}) as network:
        assert network.fleet.online() == list(range(6))
        assert network.fleet._attendance.nodes == {0: 100, 1: 101, 2: 102}
        network.grid.away.add(100)
        assert network.fleet.online() == [1, 2, 4, 5]


def rejected(records: list[RoundRecord]) -> dict[int, list[str]]:
    return {record["round"]: sorted(fault["code"] for fault in left_out(record)) for record in records}


def unused(records: list[RoundRecord]) -> dict[int, list[str]]:
    return {record["round"]: sorted(fault["code"] for fault in record["unused"]) for record in records}


def spoiling(change: Callable[[dict[str, Any]], Any]) -> Callable[[WarmSite], Any]:
    """A site that answers honestly, but for a change of its answer's head."""

    def make(site: WarmSite) -> Any:
        honest = site.answer

        def answer(head: Mapping[str, Any], parts: Any) -> Any:
            reply, content = honest(head, parts)
            reply = json.loads(json.dumps(reply))
            change(reply)
            return reply, content

        return answer

    return make


def _codes(reply: dict[str, Any], code: str) -> None:
    reply["answers"] = [{"client": answer["client"], "code": code} for answer in reply["answers"]]


def _only(reply: dict[str, Any], code: str) -> None:
    reply.clear()
    reply["code"] = code


def every(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    """Each client's answer with other fields."""
    return lambda reply: [answer.update(fields) for answer in reply["answers"]]


def psi(index: int, value: object) -> Callable[[dict[str, Any]], Any]:
    """Each client's tensor with another array, shape or type in the index."""
    return lambda reply: [answer["tensors"]["psi"].__setitem__(index, value) for answer in reply["answers"]]


def _many_times(reply: dict[str, Any]) -> None:
    for answer in reply["answers"]:
        answer["tensors"] = dict.fromkeys(map(str, range(99)), answer["tensors"]["psi"])


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another round": (lambda reply: reply.update(round=7), "E415"),
    "text for a round": (lambda reply: reply.update(round="0"), "E415"),
    "another run": (lambda reply: reply.update(run="older"), "E415"),
    "no answers": (lambda reply: reply.pop("answers"), "E401"),
    "answers of others": (lambda reply: [a.update(client=a["client"] + 1) for a in reply["answers"]], "E401"),
    "claims too much": (every(examples=10**12), "E407"),
    "claims half": (every(examples=0.5), "E407"),
    "metrics are text": (every(metrics={"steps": "many"}), "E401"),
    "metrics without end": (every(metrics={"steps": 10**400}), "E401"),
    "a long key in the metrics": (every(metrics={"k" * 999: 1}), "E401"),
    "9,000 metrics": (every(metrics={f"m{i}": 1 for i in range(9_000)}), "E405"),
    "clients in halves": (lambda reply: [a.update(client=float(a["client"])) for a in reply["answers"]], "E401"),
    "a long key": (lambda reply: reply.update({"k" * 3_000_000: 1}), "E405"),
    "one tensor many times": (_many_times, "E405"),
    "a field of its own": (every(note="x"), "E401"),
    "no index": (lambda reply: [a.pop("tensors") for a in reply["answers"]], "E401"),
    "endless shape": (psi(1, [1e999]), "E402"),
    "wrong shape": (psi(1, [3, -1]), "E402"),
    "wrong type": (psi(2, "int32"), "E403"),
    "code of its own": (lambda reply: _codes(reply, "E999"), "E408"),
    "a code with words": (lambda reply: _codes(reply, "E417 \x1b[31mhello"), "E408"),
    "another site's refusal": (lambda reply: _codes(reply, "E417.privacy"), "E417"),
    "only a code": (lambda reply: _only(reply, "E409"), "E409"),
}


@pytest.mark.parametrize(("change", "code"), FAULTS.values(), ids=FAULTS)
def test_a_bad_answer_costs_only_its_own_clients(tiny: Tiny, change: Any, code: str) -> None:
    parts = tiny(participation=1.0)
    with loop(parts, answers={1: spoiling(change)}) as network:
        state, records = rounds_of(parts, network.fleet, 2)
    assert rejected(records) == {1: [code] * 3, 2: [code] * 3}
    assert state.participation == {0: 2, 2: 2, 4: 2}
    assert bool(torch.isfinite(state.omega).all())


def swollen(site: WarmSite) -> Any:
    """A site that adds three megabytes to its answers."""

    def answer(head: Mapping[str, Any], content: Any) -> Any:
        reply, honest = site.__class__.answer(site, head, content)
        return reply, honest if head["kind"] == "hello" else dict(honest) | {"more": bytes(3 << 20)}

    return answer


def test_metrics_of_fewer_classes_break_no_reader(tiny: Tiny) -> None:
    """Ten classes, then three, from the site whose client comes first: the records cannot be told from honest ones."""
    parts = tiny(participation=1.0, method__threshold=0.0)

    def fewer(reply: dict[str, Any]) -> None:
        for answer in reply["answers"] if reply["round"] > 1 else []:
            kept = answer["metrics"]["kept"]
            answer["metrics"] = {"kept": kept, "class/0": kept, "class/1": 0.0, "class/2": 0.0}

    with loop(parts, answers={0: spoiling(fewer)}) as network:
        _, records = rounds_of(parts, network.fleet, 7)
    assert {len(record["pseudo_classes"]) for record in records} == {10}
    alarms(records)


def test_a_failing_site_is_told_from_a_silent_one_and_the_round_skipped_without_enough(tiny: Tiny) -> None:
    parts = tiny(participation=1.0)

    def fails(site: WarmSite) -> Any:
        def answer(head: Mapping[str, Any], content: Any) -> Any:
            raise ValueError("no")

        return answer

    few = replace(parts, clients=replace(parts.clients, min_updates=4))
    with loop(few, answers={1: fails}) as network:
        state, records = rounds_of(few, network.fleet, 1)
    assert rejected(records) == {1: ["E408"] * 3 + ["E418"] * 3}
    assert records[0]["skipped"] and state.participation == {}


def test_a_late_answer_is_noted_in_the_round_it_comes_in(tiny: Tiny) -> None:
    parts = tiny(participation=1.0)
    with loop(parts, settings=FleetSettings(timeout=2.0, wait=2.0)) as network:
        grid = network.grid

        def spoil(node: int, reply: Message) -> Message | None:
            if node == 101 and reply.metadata.group_id == "0":
                grid.held["late"] = reply
                return None
            if "late" in grid.held:
                late = grid.held.pop("late")
                grid.replies[late.metadata.reply_to_message_id] = late
            return reply

        grid.spoil = spoil
        state, records = rounds_of(parts, network.fleet, 2)
    assert rejected(records) == {1: ["E410"] * 3, 2: []}
    assert unused(records) == {1: [], 2: ["E413"] * 3}
    assert state.participation == {0: 2, 1: 1, 2: 2, 3: 1, 4: 2, 5: 1}


@pytest.mark.parametrize("away", [False, True])
def test_a_message_that_was_lost_on_the_way_is_sent_again(tiny: Tiny, away: bool) -> None:
    """Flower hands a message out once: where the line breaks just then, nobody has it any more."""
    parts = tiny(participation=1.0)
    with loop(parts, settings=FleetSettings(timeout=4.0, wait=2.0)) as network:
        grid = network.grid

        def spoil(node: int, reply: Message) -> Message | None:
            times = [one for one, _, _ in grid.pushed].count(node)
            if node != 101 or times > 1:
                return reply
            if away:  # it is offline when it would be asked again, and answers nevertheless
                grid.away.add(101)
                threading.Timer(3, grid.replies.update, [{reply.metadata.reply_to_message_id: reply}]).start()
            return None

        grid.spoil = spoil
        state, records = rounds_of(parts, network.fleet, 1)
        assert [node for node, _, _ in grid.pushed] == ([100, 101] if away else [100, 101, 101])
    assert rejected(records) == {1: []} and torch.equal(state.omega, inline(parts, 1).omega)


def test_a_second_answer_is_noted_and_counts_once(tiny: Tiny) -> None:
    parts = tiny(participation=1.0)

    def twice(reply: dict[str, Any]) -> None:
        reply["answers"] += reply["answers"]

    with loop(parts, answers={1: spoiling(twice)}) as network:
        state, records = rounds_of(parts, network.fleet, 1)
    assert unused(records) == {1: ["E414"] * 3} and rejected(records) == {1: []}
    assert set(state.participation.values()) == {1}


def test_a_crashed_client_app_is_asked_once_more(tiny: Tiny) -> None:
    from flwr.app import Error

    parts = tiny(participation=1.0)
    for crashes, codes in ((1, []), (2, ["E409"] * 3)):
        with loop(parts) as network:
            left = [crashes]

            def spoil(node: int, reply: Message, left: list[int] = left) -> Message:
                if node == 101 and left[0]:
                    left[0] -= 1
                    reply.__dict__.update(_content=None, _error=Error(8, "crashed"))
                return reply

            network.grid.spoil = spoil
            _, records = rounds_of(parts, network.fleet, 1)
        assert rejected(records) == {1: codes}


def test_rounds_draw_among_those_online(tiny: Tiny) -> None:
    parts = tiny(participation=1.0)
    with loop(parts, settings=FleetSettings(timeout=20.0, wait=1.0, min_clients=2)) as network:
        network.grid.away.add(101)
        state, records = rounds_of(parts, network.fleet, 1)
        assert records[0]["cohort"] == [0, 2, 4] and set(state.participation) == {0, 2, 4}
        network.grid.away.add(100)
        with pytest.raises(FedfewError, match="offline: site0, site1") as fault:
            network.fleet.online()
        assert fault.value.code == "E503"


def test_the_start_waits_for_all_and_later_rounds_for_one(tiny: Tiny) -> None:
    parts = tiny(participation=1.0)
    with loop(parts, settings=FleetSettings(timeout=20.0, wait=1.0)) as network:
        network.grid.away.add(101)
        with pytest.raises(FedfewError, match="3 of 6 clients were online"):
            network.fleet.online()
        network.grid.away.clear()
        assert network.fleet.online() == list(range(6))
        network.grid.away.add(101)
        assert network.fleet.online() == [0, 2, 4]


def test_a_site_that_goes_away_between_the_draw_and_the_letter_is_missing(tiny: Tiny) -> None:
    parts = tiny(participation=1.0)
    with loop(parts) as network:
        payloads = {k: parts.algorithm.broadcast(parts.algorithm.start(parts.network.snapshot()), k) for k in range(6)}
        network.grid.away.add(101)
        codes = {a.client: getattr(a, "code", "") for a in network.fleet.train(0, payloads)}
    assert codes == {0: "", 1: "E416", 2: "", 3: "E416", 4: "", 5: "E416"}


def test_memory_moves_to_the_sites_of_a_trial_and_not_to_real_ones(tiny: Tiny) -> None:
    parts = tiny()
    with loop(parts) as network:
        network.fleet.remember({0: {"residual": torch.ones(2)}})
        assert network.fleet.memory()[0]["residual"].tolist() == [1.0, 1.0]
        network.fleet.remember({})
        assert network.fleet.memory() == {}
        network.fleet._memory = None
        network.fleet.remember({})
        with pytest.raises(FedfewError) as fault:
            network.fleet.remember({0: {"residual": torch.zeros(2)}})
    assert fault.value.code == "E113"


def test_the_ledger_lists_exactly_what_left(tiny: Tiny) -> None:
    parts = tiny(participation=1.0)
    left: list[tuple[int, str, str, int]] = []
    with loop(parts, sites=1) as network:

        def spoil(node: int, reply: Message) -> Message:
            text, content = from_content(reply.content, 1 << 30)
            for answer in json.loads(text)["answers"]:
                for name, (array, _, _) in answer["tensors"].items():
                    raw = content[array]
                    left.append((answer["client"], name, hashlib.sha256(raw).hexdigest(), len(raw)))
            return reply

        network.grid.spoil = spoil
        rounds_of(parts, network.fleet, 2)
        lines = [json.loads(line) for line in (network.folder / "site0" / "ledger.jsonl").read_text().splitlines()]
    tensors = [line for line in lines if "tensor" in line]
    assert [(e["client"], e["tensor"], e["sha256"], e["bytes"]) for e in tensors] == left
    assert {tuple(line["shape"]) for line in tensors} == {(parts.network.layout.size,)}
    assert {line["round"] for line in tensors} == {1, 2} and {line["dtype"] for line in tensors} == {"float32"}
    assert [answer["client"] for line in lines for answer in line.get("message", {}).get("answers", [])] == [
        *range(6)
    ] * 2


def test_the_ledger_counts_every_byte_on_the_socket(tiny: Tiny) -> None:
    """Between the warm site and Flower stands a recorder; its bytes are those of the ledger, message by message."""
    parts = tiny(participation=1.0)
    with loop(parts, sites=1, keys=False) as network:
        site = network.grid.sockets[100]
        recorder = Recorder.on_sockets(site, site.with_name("recorded"))
        network.grid.sockets[100] = site.with_name("recorded")
        rounds_of(parts, network.fleet, 2)
        recorder.close()
        lines = [json.loads(line) for line in (network.folder / "site0" / "ledger.jsonl").read_text().splitlines()]
    messages = [line for line in lines if "message" in line]
    assert messages[0]["message"] == {"site": 0} and len(messages) == 3
    place = 0
    for line in messages:
        content = bytes(recorder.received[place : place + line["bytes"]])
        assert hashlib.sha256(content).hexdigest() == line["sha256"]
        assert json.dumps(line["message"]).encode() in content
        place += line["bytes"]
    assert place == len(recorder.received)


def test_pixels_never_leave(tiny: Tiny) -> None:
    """A canary image of random bytes at a client: no 12 bytes of it are in anything a site sends."""
    parts = tiny(participation=1.0)
    canary = torch.randint(
        0, 256, parts.federation.samples.data.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(5)
    )
    sent = bytearray()
    with loop(parts, sites=1) as network:
        ready = network.sites[0].build
        network.sites[0].build = lambda head: _with_images(ready(head), canary)

        def spoil(node: int, reply: Message) -> Message:
            text, content = from_content(reply.content, 1 << 30)
            sent.extend(text.encode() + b"".join(content.values()))
            return reply

        network.grid.spoil = spoil
        rounds_of(parts, network.fleet, 1)
    pieces = canary.numpy().tobytes()
    windows = {pieces[i : i + 12] for i in range(0, len(pieces) - 12, 28)}
    assert len(sent) > 6 * 4 * parts.network.layout.size
    assert not any(bytes(sent[i : i + 12]) in windows for i in range(len(sent) - 12))


def _with_images(ready: Any, images: torch.Tensor) -> Any:
    return replace(ready, sites=replace(ready.sites, samples=ready.sites.samples.like(images)))


def test_a_site_refuses_another_version_and_clients_it_does_not_have(tiny: Tiny) -> None:
    parts = tiny(participation=1.0)

    def older(site: WarmSite) -> Any:
        return lambda head, content: site.__class__.answer(site, {**head, "versions": {"fedfew": "0.0.1"}}, content)

    with loop(parts, answers={1: older}) as network:
        _, records = rounds_of(parts, network.fleet, 1)
        assert rejected(records) == {1: ["E417"] * 3}
        reason = left_out(records[0])[0]["reason"]
        assert "version" in reason and "0.0.1" not in reason
        sites, head = network.sites, {"kind": "train", "round": 0, "jobs": [{"client": 1, "tensors": {}}]}
        head |= network.fleet._description
        assert sites[0].answer(head, {})[0]["answers"][0]["code"] == "E417.client"


NOISE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_a_site_says_every_client_gets_one_verdict(data: st.DataObject) -> None:
    """An honest answer with some of its values, at any depth, replaced by anything that JSON can say."""
    answers = [
        {"client": k, "examples": 3, "metrics": {"steps": 2}, "tensors": {"psi": ["0", [2], "float32"]}} for k in (1, 4)
    ]
    head: dict[str, Any] = {"run": "r", "round": 5, "answers": answers}
    for _ in range(data.draw(st.integers(0, 3))):
        place: Any = head
        while True:
            key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
            if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
                place[key] = data.draw(NOISE)
                break
            place = place[key]
    reply = Pulled("message", to_content(json.dumps(head), {"0": bytes(8)}))
    said = list(read_answers("r", 5, [1, 4], reply, 1 << 20))
    first = [one for one in said if not (isinstance(one, Missing) and one.code == "E414")]
    assert sorted(one.client for one in first) == [1, 4]


def test_a_head_that_is_too_deep_too_long_or_no_table_is_refused() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, '"' + "x" * 999_999 + '"', "[]", "1e999", "", 7, None):
        with pytest.raises(ContentError):
            parse_head(text, 600_000)


ODD: dict[str, RecordDict] = {
    "a number for text": RecordDict({"head": ConfigRecord({"json": 5}), "arrays": ArrayRecord({})}),
    "bytes for text": RecordDict({"head": ConfigRecord({"json": b"{}"}), "arrays": ArrayRecord({})}),
    "a field more": RecordDict({"head": ConfigRecord({"json": "{}", "more": 1}), "arrays": ArrayRecord({})}),
    "no text": RecordDict({"head": ConfigRecord({}), "arrays": ArrayRecord({})}),
    "a long head": to_content("x" * 999, {}),
    "a long name": to_content("{}", {"k" * 999: b"1"}),
    "too many bytes": to_content("{}", {"0": bytes(9_999)}),
    "nothing": RecordDict(),
    "no arrays": RecordDict({"head": ConfigRecord({"json": "{}"})}),
    "metrics": RecordDict({"m": MetricRecord()}),
}


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
def test_a_record_that_is_not_ours_is_refused(content: RecordDict) -> None:
    with pytest.raises(ContentError):
        parse_head(from_content(content, 5_000)[0], 500)
