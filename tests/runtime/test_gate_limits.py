"""The gate's limits, each just within and just beyond, and what it says; without a round, so that it takes no time."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedfew.core.layout import Expected, Payload, Schema
from fedfew.core.types import ClientUpdate
from fedfew.runtime.gate import Gate, metric_fault, reply_limit

NEAR: Schema = {"psi": Expected((4,), near="omega")}
SENT: Payload = {"omega": torch.tensor([3.0, 4.0, 0.0, 0.0])}  # of length 5


def said(reply: Any, schema: Schema = NEAR, payload: Payload = SENT, gate: Gate | None = None, examples: Any = 10,
         **known: int) -> str:  # fmt: skip
    fault = (gate or Gate()).check(ClientUpdate(7, reply, examples), payload, schema, **known)
    assert fault is None or fault.client == 7
    return f"{fault.code} {fault.reason}" if fault else ""


def psi(*values: float) -> dict[str, Tensor]:
    return {"psi": torch.tensor(values, dtype=torch.float32)}


def test_counts() -> None:
    fine = psi(3, 4, 0, 0)
    for claim in (0, 10):
        assert said(fine, examples=claim, size=10) == ""
    assert said(fine, examples=11, size=10) == "E407 claims 11 examples; 0 to 10 is possible"
    assert said(fine, examples=-1, size=10) == "E407 claims -1 examples; 0 to 10 is possible"
    assert said(fine, examples=1_000_000) == ""
    assert said(fine, examples=1_000_001) == "E407 claims 1000001 examples; 0 to 1000000 is possible"
    assert said(fine, gate=Gate(max_examples=3), examples=4).startswith("E407")
    assert said(fine, gate=Gate(max_examples=3), examples=4, size=4) == "", "a known size says more than the setting"
    assert said(fine, examples=True, size=10).startswith("E407 claims True")
    assert said(fine, examples="9" * 100) == f"E407 claims {'9' * 40} examples; 0 to 1000000 is possible"


def test_growth_is_measured_against_what_was_sent_and_one_more() -> None:
    """‖reply‖ ≤ max_growth · (‖sent‖ + 1) = 2 · 6."""
    gate = Gate(max_growth=2.0)
    assert said(psi(12, 0, 0, 0), gate=gate) == ""
    assert said(psi(12.01, 0, 0, 0), gate=gate) == "E406 psi has norm 12.01, over 2 times what was sent (5)"
    assert said(psi(5999, 0, 0, 0)) == "" and said(psi(6001, 0, 0, 0)).startswith("E406"), "by default 1,000 times"
    assert said(psi(1e6, 0, 0, 0), gate=Gate(max_growth=0.0)) == ""
    assert said(psi(3e38, 3e38, 0, 0)) == "E406 the norm of psi's change is not finite"


def test_the_norm_bound_is_on_the_change() -> None:
    gate = Gate(max_norm=1.0)
    assert said(psi(3, 5, 0, 0), gate=gate) == ""
    assert said(psi(3, 5.01, 0, 0), gate=gate) == "E406 psi moved by 1.01, the bound is 1"
    free = {"psi": Expected((4,))}
    assert said(psi(1e9, 0, 0, 0), free, gate=gate) == "", "a tensor that is near to nothing has no such bound"


def test_a_change_by_itself_is_compared_with_the_longest_vector_sent() -> None:
    schema, gate = {"step": Expected((2,), delta=True)}, Gate(max_growth=2.0)
    payload = SENT | {"lr": torch.tensor(1e9), "index": torch.arange(10**3), "square": torch.full((9, 9), 1e9)}
    assert said({"step": torch.tensor([12.0, 0.0])}, schema, payload, gate) == ""
    assert said({"step": torch.tensor([12.1, 0.0])}, schema, payload, gate).endswith("over 2 times what was sent (5)")
    assert said({"step": torch.tensor([2.1, 0.0])}, schema, {}, gate).endswith("what was sent (0)")
    assert said({"step": torch.tensor([1.5, 0.0])}, schema, payload, Gate(max_norm=1.0)).startswith("E406 step moved")


def test_sums_are_no_longer_than_their_images_make_them() -> None:
    schema = {"sums": Expected((2,), per_example=2.0)}
    assert said({"sums": torch.tensor([20.1, 0.0])}, schema) == ""
    beyond = {"sums": torch.tensor([20.3, 0.0])}
    assert said(beyond, schema) == "E406 sums has norm 20.3, more than 10 images can give"
    assert said(beyond, schema, size=12) == "", "by the size, where it is known"


def test_kinds_names_and_forms() -> None:
    plain = torch.zeros(4)
    assert said([plain]) == "E401 is not a dict of named tensors but list"
    assert said({1: plain}) == "E401 is not a dict of named tensors but dict"
    assert said({"psi": [0.0]}) == "E403 psi is not a tensor but list"
    for odd in (plain.to_sparse(), plain.to("meta"), plain.clone().requires_grad_()):
        assert said({"psi": odd}) == "E403 psi is not a plain tensor of numbers"
    both = {"b": Expected((1,)), "a": Expected((1,))}
    assert said({}, both) == "E401 lacks a, b"
    assert (
        said({"psi": plain, "z" * 50: plain, "y": plain})
        == "E401 has 2 tensors too many, e.g. y; reply_schema names psi"
    )
    assert (
        said({"psi": plain, "z" * 50: plain}) == f"E401 has 1 tensors too many, e.g. {'z' * 40}; reply_schema names psi"
    )
    assert said({"psi": torch.zeros(5)}) == "E405 psi has 5 entries, at most 4 are possible"
    assert said({"psi": torch.zeros(3)}) == "E402 psi has shape (3,), expected (4,)"
    assert said({"psi": torch.zeros(2, 2)}) == "E402 psi has shape (2, 2), expected (4,)"
    assert said({"psi": plain.double()}) == "E403 psi is torch.float64, expected torch.float32"
    assert said(psi(1, float("nan"), 0, 0)) == "E404 psi holds NaN or infinity"
    whole = {"n": Expected((2,), torch.int64)}
    assert said({"n": torch.tensor([2**62, 2**62])}, whole) == ""


def test_lengths_up_to_a_limit() -> None:
    schema = {"index": Expected((None,), torch.int32, limit=4, index=True), "change": Expected((None, 2), limit=8)}

    def sparse(index: list[int], rows: int) -> dict[str, Tensor]:
        return {"index": torch.tensor(index, dtype=torch.int32), "change": torch.zeros(rows, 2)}

    assert said(sparse([0, 1, 2, 3], 4), schema) == "" and said(sparse([], 0), schema) == ""
    assert said(sparse([0], 5), schema) == "E405 change has 10 entries, at most 8 are possible"
    assert said(sparse([0], 2), schema) == "E402 tensors that belong together have different lengths"
    for index in ([1, 0], [1, 1], [-1, 1], [0, 4], [0, 2, 1]):
        assert said(sparse(index, len(index)), schema) == "E412 index is not sorted, unique and below 4"
    spoiled = sparse([0, 1], 2) | {"change": torch.full((2, 2), float("nan"))}
    assert said(spoiled, schema) == "E404 change holds NaN or infinity", "what comes after the index is checked too"
    flat = {"index": torch.zeros(1, dtype=torch.int32), "change": torch.zeros(2)}
    assert said(flat, schema) == "E402 change has shape (2,), expected ('any', 2)"
    assert said({"index": torch.arange(1), "change": torch.zeros(1, 2)}, schema).startswith("E403 index is torch.int64")
    assert reply_limit(schema) == 2 * (4 * 4 + 8 * 2 * 4) + 65_536


@pytest.mark.parametrize(("metrics", "classes", "code"), [
    ({"kept": 10.0}, 3, ""), ({"kept": 11.0}, 3, "E407"), ({"class/3": 0.0}, 3, "E401"), ({"class/3": 0.0}, None, ""),
])  # fmt: skip
def test_metrics_are_checked_with_the_images_and_classes(metrics: dict[str, float], classes: int, code: str) -> None:
    update = ClientUpdate(7, psi(3, 4, 0, 0), 5, metrics)
    fault = Gate().check(update, SENT, NEAR, 10, classes)
    assert (fault.code if fault else "") == code
    if code != "E401":
        smaller = Gate().check(update, SENT, NEAR, None, classes)
        assert (smaller.code if smaller else "") == ("E407" if "kept" in metrics else ""), "else the images it claims"


FAULTY: list[tuple[str, dict[str, Any]]] = [
    ("E404 metric steps is nan", {"steps": float("nan")}),
    ("E404 metric kept is 1000", {"kept": 10**400}),
    ("E404 metric steps is many", {"steps": "many"}),
    ("E404 metric steps is True", {"steps": True}),
    ("E404 metric loss is 1000000000.1", {"loss": 1e9 + 0.1}),
    ("E404 metric steps is -3; 0 to 1e+09 is possible", {"steps": -3.0}),
    ("E404 metric coverage is 1.5; 0 to 1 is possible", {"coverage": 1.5}),
    ("E401 a metric has an invalid name", {"k" * 41: 1.0}),
    ("E401 a metric has an invalid name", {"\x1b[31mred": 1.0}),
    ("E401 a metric has an invalid name", {"kept": 1.0, "class/3": 1.0}),
    ("E401 a metric has an invalid name", {"kept": 1.0, "class/x": 1.0}),
    ("E405 metrics are not a dict of numbers", {0: 1.0}),  # type: ignore[dict-item]
    ("E405 33 metrics are too many", {f"m{i}": 1.0 for i in range(33)}),
    ("E405 4 metrics are too many", {f"class/{c}": 1.0 for c in range(4)}),
    ("E407 metric kept is 11; 0 to 10 is possible", {"kept": 11.0}),
    ("E407 metric kept is -1; 0 to 10 is possible", {"kept": -1.0}),
    ("E407 metric kept is 0.5; 0 to 10 is possible", {"kept": 0.5}),
    ("E407 the counts of pseudo-labels do not add up", {"kept": 1.0, "right": 2.0}),
    ("E407 the counts of pseudo-labels do not add up", {"kept": 3.0, "class/0": 1.0, "class/1": 1.0}),
]


@pytest.mark.parametrize(("expected", "metrics"), FAULTY)
def test_metrics_that_cannot_be(expected: str, metrics: dict[str, Any]) -> None:
    fault = metric_fault(metrics, images=10, classes=3)
    assert fault is not None and f"{fault[0]} {fault[1]}".startswith(expected)


@pytest.mark.parametrize("metrics", [
    {}, {"steps": 1e9, "coverage": 1.0, "status": 0, "loss": -1e9}, {f"m{i}": 1.0 for i in range(32)}, {"k" * 40: 1.0},
    {"kept": 10.0, "right": 10.0, "class/0": 4.0, "class/1": 0.0, "class/2": 6.0}, {"kept": 0.0, "a/b": 2.0},
])  # fmt: skip
def test_metrics_that_can_be(metrics: dict[str, float]) -> None:
    assert metric_fault(metrics, images=10, classes=3) is None
