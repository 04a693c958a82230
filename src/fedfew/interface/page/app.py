"""The page's routes: runs, a run, a comparison, their charts as files, and live events; all are read-only.

They are served by uvicorn, at an address to open, until Ctrl-C.
"""

import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from fedfew.core.errors import FedfewError
from fedfew.interface.charts import Figure, to_csv
from fedfew.interface.charts.run_charts import figures_of
from fedfew.interface.charts.svg import chart_style, svg
from fedfew.interface.page.access import AccessMiddleware, is_loopback, own_names
from fedfew.interface.page.library import Ending, Library, last_seen, library_news, run_news
from fedfew.interface.report.comparison import tables
from fedfew.interface.report.document import Links, about_run, draw, environment
from fedfew.runs.run import Run
from fedfew.studies.bounds import bounds_of

USUAL_PORT = 8765
ON_A_PAGE = 100
MOST_CHOSEN = 12


def make_app(root: Path, names: frozenset[str], token: str = "", ending: Ending = lambda: False) -> AccessMiddleware:
    """The page for the runs below ``root``, answering under ``names``, protected by the token if there is one."""
    library = Library(root.resolve())
    pages = environment("page")
    views: dict[str, Any] = {
        "/": partial(show_runs, library, pages),
        "/live": partial(stream_library, library, ending),
        "/compare": partial(show_comparison, library, pages),
        "/compare/chart/{chart}.{kind}": partial(comparison_chart, library),
        "/run/{key}": partial(show_run, library, pages),
        "/run/{key}/live": partial(stream_run, library, ending),
        "/run/{key}/chart/{chart}.{kind}": partial(run_chart, library),
    }
    views |= {f"/static/{name}": partial(_static, *content) for name, content in static_files().items()}
    routes = [Route(path, view) for path, view in views.items()]
    app = Starlette(
        routes=routes, exception_handlers={404: partial(_not_found, pages), FedfewError: partial(_fault, pages)}
    )
    return AccessMiddleware(app, names, token)


def static_files() -> dict[str, tuple[bytes, str]]:
    own = resources.files("fedfew.interface.page") / "static"
    style = chart_style() + (resources.files("fedfew.interface.report") / "templates" / "style.css").read_text("utf-8")
    return {
        "style.css": ((style + (own / "page.css").read_text("utf-8")).encode(), "text/css"),
        "page.js": ((own / "page.js").read_bytes(), "text/javascript"),
    }


def _static(content: bytes, media_type: str, request: Request) -> Response:
    return Response(content, media_type=media_type, headers={"cache-control": "private, max-age=3600"})


def show_runs(library: Library, pages: Any, request: Request) -> Response:
    """The list of runs, the newest first, a hundred to a page."""
    keys = list(library.paths())
    last = max(-(-len(keys) // ON_A_PAGE), 1)
    asked = request.query_params.get("page", "")
    page = min(int(asked), last) if asked.isascii() and asked.isdecimal() and 0 < len(asked) < 9 and int(asked) else 1
    runs, faults = library.some(keys[(page - 1) * ON_A_PAGE : page * ON_A_PAGE], complete=True)
    about: dict[str, Any] = {"title": "Runs", "root": library.root.name, "live": "/live", "page": page, "last": last}
    return _html(pages, "runs.html", runs=runs, faults=faults, count=len(keys), **about)


def show_run(library: Library, pages: Any, request: Request) -> Response:
    key, run = _run(library, request)
    shown = about_run(run, _siblings(library, run), _links(f"/run/{key}/chart", []))
    return _html(pages, "run.html", **shown, live=f"/run/{key}/live")


def run_chart(library: Library, request: Request) -> Response:
    _, run = _run(library, request)
    return _file(figures_of(run, bounds_of(run, _siblings(library, run))), request)


def show_comparison(library: Library, pages: Any, request: Request) -> Response:
    runs, faults = library.all()
    chosen = _chosen(library, request)
    compared = list((chosen or runs).values())
    return _html(
        pages,
        "compare.html",
        title="Compare",
        runs=runs,
        chosen=chosen,
        draw=draw,
        links=_links("/compare/chart", chosen),
        tables=tables(compared),
        faults=faults,
        live="/live",
    )


def comparison_chart(library: Library, request: Request) -> Response:
    compared = list((_chosen(library, request) or library.all()[0]).values())
    return _file([figure for table in tables(compared) for figure in table.figures], request)


async def stream_run(library: Library, ending: Ending, request: Request) -> Response:
    key, _ = _run(library, request)
    return _stream(run_news(library, key, last_seen(request.headers.get("last-event-id")), ending))


async def stream_library(library: Library, ending: Ending, request: Request) -> Response:
    return _stream(library_news(library, ending))


def _stream(news: Any) -> Response:
    return StreamingResponse(news, media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _run(library: Library, request: Request) -> tuple[str, Run]:
    """The run that the address names."""
    key = request.path_params["key"]
    runs, faults = library.some([key], complete=True)
    if key not in runs:
        raise faults[0] if faults else FedfewError("E302", "this address", "names a run that does not exist")
    return key, runs[key]


def _chosen(library: Library, request: Request) -> dict[str, Run]:
    """The runs that the query names; unknown ones are skipped."""
    keys = dict.fromkeys(request.query_params.getlist("run")[: MOST_CHOSEN * 4])
    runs, _ = library.some(keys, complete=True)
    return dict(list(runs.items())[:MOST_CHOSEN])


def _siblings(library: Library, run: Run) -> list[Run]:
    """The runs in the same folder, including its bounds."""
    return [other for other in library.all()[0].values() if other.path.parent == run.path.parent]


def _links(prefix: str, keys: Iterable[str]) -> Links:
    query = urlencode([("run", key) for key in keys])
    end = f"?{query}" if query else ""
    return lambda figure: [(kind, f"{prefix}/{figure.key}.{kind}{end}") for kind in ("csv", "svg")]


def _file(figures: Sequence[Figure], request: Request) -> Response:
    chart, kind = request.path_params["chart"], request.path_params["kind"]
    figure = next((figure for figure in figures if figure.key == chart), None)
    if figure is None or kind not in ("csv", "json", "svg"):
        return PlainTextResponse("There is no such chart.\n", 404)
    if kind == "json":  # for the values under the pointer
        return JSONResponse(asdict(figure))
    if kind == "csv":
        return Response(to_csv(figure), media_type="text/csv")
    return Response(svg(figure, alone=True), media_type="image/svg+xml")


def _html(pages: Any, template: str, status: int = 200, **content: Any) -> Response:
    return HTMLResponse(pages.get_template(template).render(**content), status)


async def _not_found(pages: Any, request: Request, error: Exception) -> Response:
    return _html(pages, "layout.html", 404, title="Not found", text="There is nothing at this address.")


async def _fault(pages: Any, request: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, FedfewError) and error.code == "E302" else 409
    return _html(pages, "layout.html", status, title="Cannot be shown", text=str(error))


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
