"""Live updates as server-sent events: a round is sent within half a second, and none is lost with a connection."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool

from fedfew.interface.page.library import Library
from fedfew.runtime.record import RoundRecord

POLL_SECONDS = 0.3
BEAT_SECONDS = 10.0
Ending = Callable[[], bool]
"""Whether the server is about to end; a stream never ends by itself, so it asks."""
RETRY, BEAT = "retry: 1000\n\n", ": still here\n\n"


def event(name: str, data: dict[str, Any], number: int | None = None) -> str:
    """One event in wire format."""
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def last_seen(header: str | None) -> int | None:
    """The last round a browser received, from Last-Event-ID; None if the header is missing or invalid."""
    return int(header) if header and header.isascii() and header.isdecimal() and len(header) < 12 else None


def headline(record: RoundRecord) -> dict[str, Any]:
    """The part of a round's record that is sent."""
    keys = ("round", "accuracy", "loss", "validation", "coverage", "correct", "rejected", "missing", "skipped")
    return {key: record.get(key) for key in keys}


async def changes(look: Callable[[], object], ending: Ending, pause: float) -> AsyncIterator[bool]:
    """True at the start and whenever ``look`` sees something new; False as a sign of life after a quiet time."""
    last, quiet, first = await run_in_threadpool(look), 0.0, True
    while not ending():
        now = last if first else await run_in_threadpool(look)
        if first or now != last or quiet >= BEAT_SECONDS:
            yield first or now != last
            last, quiet, first = now, 0.0, False
        await asyncio.sleep(pause)
        quiet += pause


async def run_news(library: Library, key: str, seen: int | None, ending: Ending) -> AsyncIterator[str]:
    """A run's rounds as they come: first all since ``seen``, or only the newest state for a new browser."""
    yield RETRY
    state: object = None
    async for changed in changes(lambda: library.signature(key), ending, POLL_SECONDS):
        if not changed:
            yield BEAT
            continue
        runs, _ = await run_in_threadpool(library.some, [key], complete=True)
        if key not in runs:
            yield event("gone", {})
            return
        run = runs[key]
        known = len(run.records)
        if seen is None or seen > known:  # new here, or the run went back to an older checkpoint
            seen = known
            yield event("reset", {"round": known}, known)
        for record in run.records[seen:]:
            yield event("round", headline(record), record["round"])
        seen = known
        if (run.state, run.warmup) != state:
            state = run.state, run.warmup
            yield event("state", {"state": run.state}, known)


async def library_news(library: Library, ending: Ending) -> AsyncIterator[str]:
    """An event whenever some run has changed, appeared or disappeared."""
    yield RETRY
    first = True
    async for changed in changes(library.signatures, ending, 2 * POLL_SECONDS):
        if changed and not first:
            yield event("runs", {"runs": len(library.paths())})
        elif not changed:
            yield BEAT
        first = False
