"""Serves the page: a socket, an address to open, and uvicorn until Ctrl-C."""

import secrets
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from fedfew.core.errors import FedfewError
from fedfew.interface.page.access import is_loopback, own_names
from fedfew.interface.page.app import make_app

USUAL_PORT = 8765


def listen(host: str, port: int | None) -> socket.socket:
    """A socket at the given port; without one, at the default port or else any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = [USUAL_PORT, 0] if port is None else [port]
    for candidate in ports:
        try:
            return socket.create_server((host, candidate), family=family)
        except (OSError, OverflowError) as error:
            if candidate == ports[-1]:
                fault, remedy = f"cannot listen there ({error})", "Give another --port or --host"
                raise FedfewError("E504", f"{host}:{candidate}", fault, remedy) from None
    raise AssertionError


def make_server(root: Path, names: frozenset[str], token: str = "") -> uvicorn.Server:
    """The page in uvicorn: quiet, without websockets; its streams end with it."""
    settings = uvicorn.Config(
        make_app(root, names, token, lambda: server.should_exit),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=32_768,
    )
    server = uvicorn.Server(settings)
    return server


def serve(root: Path, host: str, port: int | None, announce: Callable[[str], None]) -> None:
    """Serve the runs below ``root`` until interrupted; ``announce`` is given the address to open."""
    token = "" if is_loopback(host) else secrets.token_urlsafe(24)
    with listen(host, port) as sock:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{sock.getsockname()[1]}/"
        announce(address + (f"?token={token}" if token else ""))
        make_server(root, own_names(host), token).run(sockets=[sock])
