"""What every method keeps to, with every aggregator that fits: the list grows with the registries."""

import dataclasses
import inspect
import math
import re
import sys
import typing
from typing import Annotated, Any

import pytest
import torch
from tests.contract.runs import first_round, fitting, same, tensors_of, tiny_config, tiny_rounds

from fedfew.aggregators import AGGREGATORS
from fedfew.config.schema import load
from fedfew.core.errors import FedfewError
from fedfew.core.settings import settings_of
from fedfew.core.types import ClientSite, ClientUpdate, Method, Oracle, OracleSite, ServerState
from fedfew.methods import METHODS
from fedfew.objectives import OBJECTIVES
from fedfew.runtime.gate import Gate
from fedfew.runtime.record import left_out

PAIRS = [(method, name) for method in METHODS for name in fitting(method)]
UNFIT = [(method, name) for method in METHODS for name in AGGREGATORS if name not in fitting(method)]
ASKING = [name for name in METHODS if METHODS[name].asks_clients]
WIRE = "stamp_psi stamp_sigma wire_psi wire_sigma"
OF_LABELS = "held_out mix origin own own_beside own_names plain scale"
OF_SITES = "step survey_between survey_counts survey_sums surveys"
OF_MODELS = "alpha bias fold_bias fold_weight previous_bias previous_weight temperature weight"
SHIFT = "shift_alpha shift_into shift_out"
ADAPTIVE = (1, "adaptive_first adaptive_second")
STATES = {
    "fedfew": (1, "prior"),
    "fedmoments": (2, f"{OF_LABELS} {OF_SITES} {OF_MODELS} {SHIFT}"),
    "fedmatch": (1, f"client embedding psi seen {WIRE}"),
    "fedmatch-lite": (1, f"psi seen {WIRE}"),
    "semifl": (1, "velocity"),
    "fl2": (1, "velocity"),
    "cbafed": (1, "earlier shares"),
    "fedsiam-mt": (1, "target"),
    "ds-fl": (1, "open"),
    "grouping": (1, "groups lot"),
    "fedadam": ADAPTIVE,
    "fedyogi": ADAPTIVE,
    "scaffold": (1, "control"),
}
"""The format of a method's state, and what it has beside ω and σ after a round."""


@pytest.mark.parametrize(("method", "aggregator"), PAIRS)
def test_a_method_runs_with_every_aggregator_that_fits(method: str, aggregator: str) -> None:
    """Two rounds with its usual one, where participation counts differ by then; one with each other."""
    usual = aggregator == METHODS[method].aggregator
    config = tiny_config(method, {"aggregator.name": aggregator, "rounds": 2 if usual else 1})
    rounds = tiny_rounds(config)
    assert [state.round for state, _ in rounds] == list(range(1, config.rounds + 1))
    for state, record in rounds:
        assert left_out(record) == [], left_out(record)
        assert all(bool(torch.isfinite(t).all()) for t in tensors_of(state))
        assert {int(k) for k in record["weights"]} <= set(record["cohort"])
        assert all(w is not None and w >= 0 for w in record["weights"].values())
        assert math.isfinite(record["loss"] or math.inf) and 0 <= (record["accuracy"] or 0.0) <= 1
    if usual and method != "labels-names":  # which fits its model once
        assert not torch.equal(rounds[0][0].omega, rounds[1][0].omega), "training changes the model"


@pytest.mark.parametrize(("method", "aggregator"), UNFIT)
def test_a_pair_that_makes_no_sense_is_refused_with_the_reason(method: str, aggregator: str) -> None:
    with pytest.raises(FedfewError) as caught:
        load({"method": {"name": method}, "aggregator": {"name": aggregator}})
    assert caught.value.code == "E107"
    told, reason = str(caught.value), METHODS[method].unfit[aggregator]
    assert reason in told and len(reason) > 20
    assert all(name in caught.value.remedy for name in fitting(method)) and fitting(method)
    assert aggregator not in re.findall(r"[\w×-]+", caught.value.remedy)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_names_only_aggregators_that_exist(method: str) -> None:
    assert set(METHODS[method].unfit) <= set(AGGREGATORS)
    assert METHODS[method].aggregator in fitting(method)


@pytest.mark.parametrize("method", ASKING)
def test_replies_fit_the_schema_and_pass_the_gate(method: str) -> None:
    now = first_round(method)
    schema = now.parts.algorithm.reply_schema(now.parts.network.layout)
    payload, trained = now.payload, now.train(0)
    assert set(trained.reply) == set(schema)
    for name, expected in schema.items():
        assert trained.reply[name].dtype == expected.dtype
        assert len(trained.reply[name].shape) == len(expected.shape)
    update = ClientUpdate(0, trained.reply, now.size(0), trained.metrics)
    assert Gate().check(update, payload, schema, now.size(0)) is None
    assert trained.votes is None or trained.votes.shape == (now.size(0),)


@pytest.mark.parametrize("method", ASKING)
def test_the_same_round_twice_gives_the_same_bits_and_changes_nothing_it_was_given(method: str) -> None:
    now = first_round(method)
    payload, state = now.payload, now.state
    sent = {name: t.clone() for name, t in payload.items()}
    held = [t.clone() for t in tensors_of(state)]
    labels = now.parts.server.labeled.labels.clone()

    first, second = now.train(0, payload=payload), now.train(0, payload=payload)
    assert same(first.reply, second.reply) and first.metrics == second.metrics
    assert same(payload, sent), "train_client wrote into its payload"

    replies = {0: (first, now.size(0)), 1: (now.train(1), now.size(1))}
    kept = {k: {name: t.clone() for name, t in trained.reply.items()} for k, (trained, _) in replies.items()}
    (end, outcome), (again, same_outcome) = (now.finish(replies) for _ in range(2))
    assert torch.equal(end.omega, again.omega) and outcome.weights == same_outcome.weights
    assert all(same(replies[k][0].reply, kept[k]) for k in kept), "after_clients wrote into a reply"
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(state), held, strict=True)), "a state was written into"
    assert torch.equal(now.parts.server.labeled.labels, labels)
    # the state is not a window on the network either: the next training must not change a state that is kept
    now.parts.network.vector.zero_()
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(state), held, strict=True))
    assert float(end.omega.norm()) > 0


@pytest.mark.parametrize("method", ASKING)
def test_a_state_with_other_names_has_another_format(method: str) -> None:
    """A checkpoint of an earlier version of a method is refused by its format, or can be continued."""
    now = first_round(method)
    end, _ = now.finish({k: (now.train(k), now.size(k)) for k in (0, 1)})
    names = {name.partition("/")[0] for state in (now.state, end) for name in state.extra}
    made = now.parts.config.method.state_format, names
    format_, known = STATES.get(method, (1, ""))
    assert made == (format_, set(known.split())), "raise the method's state_format, and write it here"


@pytest.mark.parametrize("method", ASKING)
def test_a_client_without_images_and_a_single_survivor_do_no_harm(method: str) -> None:
    now = first_round(method)
    schema = now.parts.algorithm.reply_schema(now.parts.network.layout)
    empty, whole = now.train(0, images=0), now.train(1)
    fault = Gate().check(ClientUpdate(0, empty.reply, 0, empty.metrics), now.payload, schema, 0)
    assert fault is None, fault
    for replies in ({1: (whole, now.size(1))}, {0: (empty, 0)}, {0: (empty, 0), 1: (whole, now.size(1))}):
        done, _ = now.finish(replies)
        assert all(bool(torch.isfinite(t).all()) for t in tensors_of(done)), sorted(replies)


@pytest.mark.parametrize("method", ASKING)
def test_clients_move_the_model(method: str) -> None:
    """Where every label counts, clients take steps, and what one sends is not what another sends."""
    now = first_round(method)
    one, other = now.train(0), now.train(1)
    assert not same(one.reply, other.reply)
    assert one.metrics.get("steps", 1) > 0


@pytest.mark.parametrize("method", [name for name in ASKING if "fltrust" in fitting(name)])
def test_trust_needs_a_server_that_went_its_own_way(method: str) -> None:
    """FLTrust compares ψ − ω with σ − ω: where clients start from σ there is nothing to compare, so it does not fit."""
    now = first_round(method)
    assert not torch.equal(now.payload["omega"], now.state.sigma)


@pytest.mark.parametrize("method", METHODS)
def test_labels_are_out_of_reach_by_type(method: str) -> None:
    kind: Any = METHODS[method].method
    assert typing.get_type_hints(kind.train_client)["site"] is ClientSite
    if issubclass(kind, Oracle):
        assert typing.get_type_hints(kind.train_with_labels)["site"] is OracleSite
        now = first_round(method)
        site = ClientSite(
            0, now.parts.network, now.parts.federation.samples.like(now.parts.federation.samples.data[:4]), 10
        )
        with pytest.raises(FedfewError, match="E113"):
            now.parts.algorithm.train_client(now.payload, site, torch.Generator())


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_a_frozen_dataclass_with_the_seams_of_an_algorithm(method: str) -> None:
    kind: Any = METHODS[method].method
    algorithm = first_round(method).parts.algorithm
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.aggregator = None  # type: ignore[attr-defined]
    assert isinstance(algorithm, Method) and isinstance(algorithm.start(torch.zeros(3)), ServerState)
    settings = METHODS[method].settings
    given = {"server", "client", "aggregator", "objective", "vote"}
    parameters = inspect.signature(kind).parameters
    needed = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    assert needed <= given, "what has no default, no config can leave out"
    assert set(settings) == {name for name, p in parameters.items() if typing.get_origin(p.annotation) is Annotated}


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_module_cites_and_writes_its_equation(method: str) -> None:
    told = sys.modules[METHODS[method].method.__module__].__doc__ or ""
    assert re.search(r"\b(19|20)\d\d\b|\bbound\b", told), "a citation, or the word bound"
    assert re.search(r"[=←∝]", told) and re.search(r"[∇Σωθσψ‖]", told), "the update equation"
    assert METHODS[method].method.__doc__


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_trains_fedavgs_clients(objective: str) -> None:
    settings = settings_of(OBJECTIVES[objective])
    chosen: dict[str, Any] = {"objective.name": objective, "rounds": 3}
    chosen |= {"objective.threshold": 0.05} if "threshold" in settings else {}
    config = load(tiny_config("fedavg").document, chosen)
    rounds = tiny_rounds(config)
    assert all(left_out(record) == [] for _, record in rounds)
    assert bool(torch.isfinite(rounds[-1][0].omega).all())
    again = tiny_rounds(config)
    assert torch.equal(again[-1][0].omega, rounds[-1][0].omega)
