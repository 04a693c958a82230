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
RETRY = "retry: 1000\n\n"


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


async def run_news(library: Library, key: str, seen: int | None, ending: Ending) -> AsyncIterator[str]:
    """A run's rounds as they come: first all since ``seen``, or only the newest state for a new browser."""
    yield RETRY
    last: object = None
    state: object = None
    quiet, first = 0.0, True
    while not ending():
        now = await run_in_threadpool(library.signature, key)
        if first or now != last:
            last = now
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
            quiet, first = 0.0, False
        await asyncio.sleep(POLL_SECONDS)
        quiet += POLL_SECONDS
        if quiet >= BEAT_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"


async def library_news(library: Library, ending: Ending) -> AsyncIterator[str]:
    """An event whenever some run has changed, appeared or disappeared."""
    yield RETRY
    last: object = None
    quiet = 0.0

    while not ending():
        now = await run_in_threadpool(library.signatures)
        if now != last:
            if last is not None:
                yield event("runs", {"runs": len(now)})
                quiet = 0.0
            last = now
        await asyncio.sleep(2 * POLL_SECONDS)
        quiet += 2 * POLL_SECONDS
        if quiet >= BEAT_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"
