"""Reads a site's reply: its clients' updates, or why there is none; nothing in it is trusted until checked."""

from collections.abc import Iterator, Sequence
from typing import Any

from fedfew.core.errors import Refusal
from fedfew.core.types import ClientUpdate, Missing
from fedfew.deploy.messages.frames import Arrays
from fedfew.deploy.messages.heads import LONGEST_NAME, ContentError, head_limit, meaning, parse_head
from fedfew.deploy.messages.post import Pulled
from fedfew.deploy.messages.records import from_content
from fedfew.deploy.messages.tensors import unpack

_LARGEST = 2**53
_UPDATE = {"client", "examples", "metrics", "tensors"}


def read_answers(
    run: str, round: int, clients: Sequence[int], reply: Pulled, limit: int
) -> Iterator[ClientUpdate | Missing]:
    """The answer of each client that was asked; an answer in another client's name is ignored.

    ``limit``: most bytes of one client's tensors.
    """
    try:
        if reply.refused is not None:
            raise reply.refused
        assert reply.content is not None
        text, arrays = from_content(reply.content, limit * len(clients))
        content = parse_head(text, head_limit(len(clients)))
        if set(content) == {"code"}:
            raise meaning(content["code"])
        if content.get("run") != run or type(content.get("round")) is not int or content["round"] != round:
            raise ContentError(Refusal.OTHER_ROUND, f"answered another run or round than {round + 1}")
    except ContentError as error:
        yield from (Missing(k, error.code, str(error)) for k in clients)
        return
    seen: set[int] = set()
    answers = content.get("answers")
    for answer in answers if isinstance(answers, list) else []:
        client = answer.get("client") if isinstance(answer, dict) else None
        if type(client) is not int or client not in clients:  # 1.0 and true are in [1], too
            continue
        if client in seen:
            yield Missing(client, Refusal.TWICE, "answered twice in one message")
            continue
        seen.add(client)
        try:
            yield _update(client, answer, arrays, limit)
        except ContentError as error:
            yield Missing(client, error.code, str(error))
    yield from (Missing(k, Refusal.NAMES, "its site's answer does not mention it") for k in clients if k not in seen)


def _update(client: int, answer: dict[str, Any], arrays: Arrays, limit: int) -> ClientUpdate:
    """One client's part of an answer; ContentError unless it has exactly the fields of an update."""
    if set(answer) == {"client", "code"}:
        raise meaning(answer["code"])
    if set(answer) != _UPDATE:
        raise ContentError(Refusal.NAMES, "its answer has other fields than an update or a failure")
    metrics = answer["metrics"]
    if not isinstance(metrics, dict) or not all(map(_is_number, metrics.values())):
        raise ContentError(Refusal.NAMES, "the metrics are not a table of numbers")
    if any(len(name) > LONGEST_NAME for name in metrics):
        raise ContentError(Refusal.NAMES, f"a metric's name has more than {LONGEST_NAME} characters")
    reply = unpack(answer["tensors"], arrays, limit)
    return ClientUpdate(client, reply, answer["examples"], {name: float(value) for name, value in metrics.items()})


def _is_number(value: object) -> bool:
    """Whether it converts to a float: JSON integers can be arbitrarily large."""
    return type(value) is float or (type(value) is int and abs(value) <= _LARGEST)
