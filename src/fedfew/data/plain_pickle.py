"""Reads CIFAR's official pickle files without running anything: plain containers, text, numbers and NumPy arrays only.

A pickle is a program. This reader steps through its opcodes and knows only those that build plain values; the few names
that NumPy's arrays need are compared as text and never imported. Anything else ends the reading.
"""

import math
import pickletools
import re
import struct
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

RECONSTRUCT = {"numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"}
NAMES = RECONSTRUCT | {"numpy ndarray", "numpy dtype", "_codecs encode"}
VALUES = {
    *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
MARK = object()


class NotPlainError(ValueError):
    """The file holds something other than plain values."""


@dataclass(frozen=True)
class Name:
    """A name the file mentions; it stays text."""

    text: str


@dataclass
class Draft:
    """An array or dtype between its creation and the opcode that gives it its state."""

    kind: str
    value: Any = None


def read_plain(content: bytes) -> dict[str, Any]:
    """The dict that the file holds, its keys as text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the opcode parser warns of odd escapes; no official file has any
            result = _run(content)
    except NotPlainError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, struct.error, Warning) as error:
        raise NotPlainError(f"broken: {error}") from error
    if not isinstance(result, dict):
        raise NotPlainError("it holds no dict")
    finished = {_text(key): value.value if isinstance(value, Draft) else value for key, value in result.items()}
    return {key: value for key, value in finished.items() if value is not None}


def _run(content: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, _ in pickletools.genops(content):
        name = opcode.name
        if name in VALUES:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[int(argument)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[int(argument)])
        elif name in ("PROTO", "FRAME"):
            continue
        elif name == "STOP":
            return stack.pop()
        else:
            _build(name, argument, stack)
    raise NotPlainError("broken: it has no end")


def _build(name: str, argument: Any, stack: list[Any]) -> None:
    """The opcodes that make one value out of others."""
    if name == "MARK":
        stack.append(MARK)
    elif name in ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_TUPLE"):
        stack.append({"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}[name]())
    elif name in ("LIST", "DICT", "TUPLE"):
        items = _since_mark(stack)
        stack.append(tuple(items) if name == "TUPLE" else items if name == "LIST" else _update({}, items))
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        count = int(name[-1])
        stack[-count:] = [tuple(stack[-count:])]
    elif name in ("APPEND", "APPENDS"):
        items = [stack.pop()] if name == "APPEND" else _since_mark(stack)
        _expect(stack[-1], list).extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else _since_mark(stack)
        _update(_expect(stack[-1], dict), items)
    elif name in ("GLOBAL", "STACK_GLOBAL"):
        text = argument if name == "GLOBAL" else f"{stack.pop(-2)} {stack.pop()}"
        if text not in NAMES:
            raise NotPlainError(f"it asks for {text[:80]!r}, which is no plain value")
        stack.append(Name(text))
    elif name == "REDUCE":
        arguments = _expect(stack.pop(), tuple)
        stack.append(_call(_expect(stack.pop(), Name).text, arguments))
    elif name == "BUILD":
        state = _expect(stack.pop(), tuple)
        _finish(_expect(stack[-1], Draft), state)
    else:
        raise NotPlainError(f"it uses {name}, which no plain value needs")


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise NotPlainError(f"broken: a {type(value).__name__} where a {kind.__name__} belongs")
    return value


def _since_mark(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1
    while stack[at] is not MARK:
        at -= 1
        if at < 0:
            raise NotPlainError("broken: a mark is missing")
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _update(target: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
    for key, value in zip(items[::2], items[1::2], strict=True):
        if not isinstance(key, str | bytes | int):  # hashing a deeply nested tuple would overflow the stack
            raise NotPlainError("broken: a key is neither text nor number")
        target[key] = value
    return target


def _call(name: str, arguments: tuple[Any, ...]) -> Any:
    if name == "numpy dtype":
        code = _text(arguments[0])
        if not re.fullmatch(r"[|<>=]?[buif][1248]", code):
            raise NotPlainError(f"an array of {code[:20]!r} is not plain")
        return Draft("dtype", np.dtype(code))
    if name in RECONSTRUCT:
        return Draft("array")
    if name == "_codecs encode" and arguments[1] == "latin1":  # how Python 3 writes bytes for Python 2
        return _bytes(arguments[0])
    raise NotPlainError(f"{name} is called")


def _finish(draft: Draft, state: tuple[Any, ...]) -> None:
    if draft.kind == "dtype":
        order = _text(state[1])
        if order not in ("|", "<", ">", "="):
            raise NotPlainError("broken: an unknown byte order")
        draft.value = draft.value.newbyteorder(order)
        return
    _, shape, dtype, fortran, data = state
    content, kind = _bytes(data), _expect(_expect(dtype, Draft).value, np.dtype)
    if any(type(length) is not int or length < 0 for length in shape) or len(shape) > 4:
        raise NotPlainError("broken: an impossible shape")
    if math.prod(shape) * kind.itemsize != len(content):
        raise NotPlainError("broken: an array's shape does not fit its content")
    draft.value = np.frombuffer(content, kind).reshape(shape, order="F" if fortran else "C")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(_expect(value, str))


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(_expect(value, str)).encode("latin1")
