"""The loop of a worker process: reads jobs from its channel, trains or scores, and writes the answer to its arena."""

import json
from dataclasses import asdict
from typing import Any

from fedfew.core.errors import Refusal, raised_at
from fedfew.core.layout import nbytes
from fedfew.core.types import ClientUpdate
from fedfew.runtime.arena import Arena
from fedfew.runtime.channel import Channel
from fedfew.runtime.gate import reply_limit
from fedfew.runtime.site import Sites


def serve(sites: Sites, channel: Channel, payloads: Arena, scoring: Arena, answers: Arena) -> None:
    """Answer jobs until the channel closes."""
    channel.send({"kind": "ready"})
    while (job := channel.receive()) is not None:
        channel.send(_score(sites, job, scoring) if job["kind"] == "score" else _train(sites, job, payloads, answers))


def _score(sites: Sites, job: dict[str, Any], scoring: Arena) -> dict[str, Any]:
    models = scoring.read(job["tensors"]["score"], copy=True)
    return {"kind": "score", "scores": asdict(sites.score(models["omega"], models.get("clients")))}


def _train(sites: Sites, job: dict[str, Any], payloads: Arena, answers: Arena) -> dict[str, Any]:
    client = job["client"]
    memory = payloads.read(job["tensors"]["memory"], copy=True)
    sites.memory.clear()
    sites.secrets.clear()
    sites.secrets[client] = payloads.read(job["tensors"]["secrets"], copy=True)
    if memory:
        sites.memory[client] = memory
    answer = sites.train(job["round"], client, payloads.read(job["tensors"]["payload"], copy=False))
    if not isinstance(answer, ClientUpdate):
        return _missing(client, answer.code, answer.reason)
    limit = reply_limit(sites.wire.reply_schema(sites.network.layout))
    try:
        size = nbytes(answer.reply)
        if size > limit:
            return _missing(
                client, Refusal.TOO_LARGE, f"the reply has {size:,} bytes, at most {limit // 2:,} are possible"
            )
        kept = {"memory": sites.memory.get(client, {}), "secrets": sites.secrets[client]}
        tensors = answers.write({"reply": answer.reply} | kept)
        message = {"kind": "update", "client": client, "tensors": tensors}
        message |= {"examples": answer.examples, "metrics": answer.metrics}
        json.dumps(message)
    except Exception as error:  # the method returned something that cannot be sent
        return _missing(client, Refusal.FAILED, raised_at(error))
    return message


def _missing(client: int, code: str, reason: str) -> dict[str, Any]:
    return {"kind": "missing", "client": client, "code": code, "reason": reason[:400]}
