"""The TLS front: what sites reach from outside. It passes on the Fleet API and nothing else of the SuperLink.

The SuperLink's port also takes calls that submit runs, which is code execution; so it listens on loopback only.
"""

import argparse
import json
import ssl
import time
from importlib.metadata import version

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

BODY_LIMIT = 64 << 20
"""Most bytes of one request; Flower sends tensors in pieces of 5 MB."""
_DROPPED = {"host", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "content-length"}
_CALLS = (
    "register-node",
    "activate-node",
    "deactivate-node",
    "unregister-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)


def front(superlink: httpx.AsyncClient, about: dict[str, str], limit: int = BODY_LIMIT) -> Starlette:
    """The application: POST /v1/fleet/CALL goes through, GET /fedfew reports the versions, all else is refused."""

    async def forward(request: Request) -> Response:
        if request.path_params["call"] not in _CALLS:
            return Response(status_code=403)
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                return Response(status_code=413)
        headers = [(k, v) for k, v in request.headers.raw if k.decode("latin-1").lower() not in _DROPPED]
        try:
            answer = await superlink.post(
                f"/v1/fleet/{request.path_params['call']}", content=bytes(body), headers=headers
            )
        except httpx.TransportError:
            return Response(status_code=503)  # the SuperLink is being started again: nodes try again
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in _DROPPED | {"content-encoding"}}
        return Response(answer.content, answer.status_code, kept)

    async def describe(request: Request) -> Response:
        return JSONResponse(about | {"time": time.time()})

    async def refuse(request: Request) -> Response:
        return Response(status_code=403)

    every = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"]
    return Starlette(
        routes=[
            Route("/v1/fleet/{call}", forward, methods=["POST"]),
            Route("/fedfew", describe, methods=["GET"]),
            Route("/{rest:path}", refuse, methods=every),
        ]
    )


def versions() -> dict[str, str]:
    """What both sides must have in common."""
    return {name: version(name) for name in ("fedfew", "torch", "flwr")}


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("host", "certificate", "key", "ca", "network"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--superlink", type=int, required=True)
    given = parser.parse_args()
    superlink = httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{given.superlink}",
        verify=ssl.create_default_context(cafile=given.ca),
        timeout=300,
        trust_env=False,
    )
    app = front(superlink, versions() | {"network": given.network})
    print(json.dumps({"front": f"{given.host}:{given.port}"}), flush=True)
    uvicorn.run(
        app, host=given.host, port=given.port, ssl_certfile=given.certificate, ssl_keyfile=given.key,
        log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2,
    )  # fmt: skip


if __name__ == "__main__":
    main()
