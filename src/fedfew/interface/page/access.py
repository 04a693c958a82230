"""Access to the page: read-only, only under its own host name, with a token if others could reach it."""

import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "fedfew_token"
HOST = re.compile(r"(\[(?P<six>[^\]]*)\]|(?P<name>[^:]*))(:[0-9]*)?")
SECURITY = {
    # bars have style attributes and an SVG file a style element; scripts and connections come from this server only
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def own_names(host: str) -> frozenset[str]:
    """The names under which the page answers when it listens on ``host``."""
    names = {"localhost", "127.0.0.1", "::1", host.lower()}
    if not is_loopback(host):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


@dataclass(frozen=True)
class AccessMiddleware:
    """ASGI middleware: checks each request and adds security headers to each response."""

    app: ASGIApp
    names: frozenset[str]
    token: str = ""
    """Empty: no token is needed."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refusal(scope)
        await (answer or self.app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """The response to a refused request; None if the request may pass."""
        headers = Headers(scope=scope)
        if not self._known_host(headers.getlist("host")):
            return PlainTextResponse("This page answers only under its own address.\n", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This page is read-only.\n", 405, {"allow": "GET, HEAD"})
        if not scope["query_string"].isascii():
            return PlainTextResponse("The address has invalid bytes.\n", 400)
        return self._ask_token(scope, headers) if self.token else None

    def _known_host(self, headers: Iterable[str]) -> bool:
        """Refuse foreign names: they mean that another site sent the browser here (DNS rebinding)."""
        hosts = list(headers)
        if len(hosts) != 1:
            return False
        match = HOST.fullmatch(hosts[0].strip().lower())
        if match is None:
            return False
        name = match["six"] or match["name"]
        return name in self.names or (bool(self.token) and _is_address(name))

    def _ask_token(self, scope: Scope, headers: Headers) -> Response | None:
        """The token is once in the address, then in a cookie that scripts and other sites cannot use."""
        if self._right(_cookie(headers.get("cookie", ""))):
            return None
        if self._right(headers.get("authorization", "").removeprefix("Bearer ")):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if any(name == "token" and self._right(value) for name, value in query):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            # one slash in front: //host would lead the browser elsewhere
            address = "/" + scope["path"].lstrip("/\\") + (f"?{rest}" if rest else "")
            answer = RedirectResponse(address, 303)
            answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict")
            return answer
        return PlainTextResponse("Open the address that fedfew watch printed, token included.\n", 403)

    def _right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cookie(header: str) -> str:
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return morsel.value if morsel else ""
