"""What a site's answer says: its clients' updates, or why there is none; everything in it is a claim until checked."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedfew.core.types import ClientUpdate, Missing
from fedfew.deploy.flower.tensors import unpack

_SAID = 300
"""Characters of a site's own words that are kept."""
_LARGEST = 2**53


def read_answers(
    run: str, round: int, clients: Sequence[int], reply: Mapping[str, Any], parts: Mapping[str, memoryview]
) -> Iterator[ClientUpdate | Missing]:
    """What each of the clients that were asked answered; an answer in another client's name is not looked at."""
    if "unreadable" in reply:
        code = "E405" if "limit" in reply["unreadable"] else "E401"
        yield from (Missing(k, code, reply["unreadable"]) for k in clients)
        return
    head = reply["head"]
    if head.get("run") != run or head.get("round") != round:
        what = f"answered run {head.get('run')!r} round {head.get('round')!r}, asked was round {round}"
        yield from (Missing(k, "E415", what[:_SAID]) for k in clients)
        return
    seen: set[int] = set()
    answers = head.get("answers")
    for answer in answers if isinstance(answers, list) else []:
        client = answer.get("client") if isinstance(answer, dict) else None
        if type(client) is not int or client not in clients:  # 1.0 and true are in [1], too
            continue
        if client in seen:
            yield Missing(client, "E414", "answered twice in one message")
            continue
        seen.add(client)
        yield _update(client, answer, parts)
    yield from (Missing(k, "E401", "its site's answer does not mention it") for k in clients if k not in seen)


def _update(client: int, answer: dict[str, Any], parts: Mapping[str, memoryview]) -> ClientUpdate | Missing:
    """One client's part of an answer."""
    if "code" in answer:
        return Missing(client, _code(answer["code"]), str(answer.get("reason", ""))[:_SAID])
    metrics = answer.get("metrics", {})
    if not isinstance(metrics, dict) or not all(_is_number(value) for value in metrics.values()):
        return Missing(client, "E401", "the metrics are not a table of numbers")
    try:
        reply = unpack(answer.get("tensors"), parts)
    except ValueError as error:
        return Missing(client, "E402", str(error)[:_SAID])
    examples: Any = answer.get("examples")
    return ClientUpdate(client, reply, examples, {str(name): float(value) for name, value in metrics.items()})


def _is_number(value: object) -> bool:
    """Whether it becomes a float: JSON's whole numbers have no end."""
    return type(value) is float or (type(value) is int and abs(value) <= _LARGEST)


def _code(claimed: object) -> str:
    """A site may say that training failed or that it does not fit the run, and nothing else."""
    return claimed if isinstance(claimed, str) and claimed in ("E408", "E417") else "E408"
