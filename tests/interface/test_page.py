"""The live page's routes: what they show, and that they show it to nobody else."""

import asyncio
import csv
import io
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

import httpx
import pytest
from tests.interface.fedfew_command import record, serving, written_run

from fedfew.core.storage import append_durably, locked, write_atomically
from fedfew.interface.page.access import AccessMiddleware, is_loopback, own_names
from fedfew.interface.page.app import make_app
from fedfew.interface.page.library import Library, key_of

SECRET = "this stands outside"


def rounds(count: int, **values: Any) -> list[dict[str, Any]]:
    lost = {"client": 4, "code": "E404", "reason": "psi holds NaN or infinity"}
    return [
        record(n, accuracy=n / 10, cohort=[1, 4], weights={"1": 1.0}, rejected=[lost], **values)
        for n in range(1, count + 1)
    ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text(SECRET)
    written_run(tmp_path / "outside", [record(1, accuracy=0.77)])
    folder = tmp_path / "runs"
    written_run(folder / "first", rounds(3), rounds=5)
    written_run(folder / "lower", [record(n, accuracy=0.05) for n in range(1, 6)], method__name="server-only", rounds=5)
    return folder


@pytest.fixture
def served(root: Path) -> Iterator[str]:
    with serving(root) as found:
        yield found


@pytest.fixture
def client(served: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served) as client:
        yield client


def address(root: Path, name: str) -> str:
    return f"/run/{key_of(root.resolve() / name, root.resolve())}"


def test_the_list_shows_every_run_with_its_state(client: httpx.Client, root: Path) -> None:
    text = client.get("/").text
    for name in ("first", "lower"):
        assert f'href="{address(root, name)}"' in text
    assert "30.0 %" in text and "stopped" in text and "3/5" in text and "outside" not in text


def test_a_run_shows_headline_bounds_charts_and_events(client: httpx.Client, root: Path) -> None:
    answer = client.get(address(root, "first"))
    assert answer.status_code == 200
    text = answer.text
    assert "30.0 %" in text and "5.0 %" in text  # after the last round, and server-only
    assert "E404 update not finite: psi holds NaN or infinity" in text
    for key in ("accuracy", "loss", "participation", "norms", "time"):
        assert f'<figure id="{key}"' in text
    assert '<figure id="traffic"' not in text  # nothing travelled in these rounds
    assert "α = 0.5, β = 0.3, γ = 0.2" in text


def test_every_chart_is_a_csv_and_an_svg(client: httpx.Client, root: Path) -> None:
    text = client.get(address(root, "first")).text
    links = re.findall(r'href="(/run/[^"]+\.(?:csv|svg))"', text)
    assert len(links) == 2 * text.count("<figure")
    for link in links:
        answer = client.get(link)
        assert answer.status_code == 200
        if link.endswith("csv"):
            assert len(list(csv.reader(io.StringIO(answer.text)))) > 1
        else:
            ElementTree.fromstring(answer.text)
            assert answer.headers["content-type"].startswith("image/svg+xml")
    accuracy = list(csv.reader(io.StringIO(client.get(f"{address(root, 'first')}/chart/accuracy.csv").text)))
    assert accuracy[1:4] == [["test", "1.0", "0.1", ""], ["test", "2.0", "0.2", ""], ["test", "3.0", "0.3", ""]]


def test_the_comparison_has_the_chosen_runs_or_all(client: httpx.Client, root: Path) -> None:
    everything = client.get("/compare").text
    assert "fedmix" in everything and "server-only" in everything
    lower = address(root, "lower").removeprefix("/run/")
    chosen = client.get("/compare", params={"run": lower})
    assert "fedmix</th>" not in chosen.text and "5.0 %" in chosen.text
    link = re.search(r'href="(/compare/chart/[^"]+csv[^"]*)"', chosen.text)
    assert link is not None
    assert client.get(link[1].replace("&amp;", "&")).text.splitlines()[1].startswith("server-only,1.0,0.05")
    assert client.get("/compare/chart/s0-loss.json", params={"run": lower}).json()["key"] == "s0-loss"


def test_every_answer_has_the_security_headers(client: httpx.Client, root: Path) -> None:
    for place in ("/", address(root, "first"), "/nowhere", "/static/page.js", "/compare/chart/s0-loss.json"):
        headers = client.get(place).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'self';") and "unsafe-eval" not in policy
        assert "script-src" not in policy and policy.count("unsafe-inline") == 1
        assert "style-src 'self' 'unsafe-inline'" in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY"


def test_pages_hold_no_inline_script(client: httpx.Client, root: Path) -> None:
    for place in ("/", address(root, "first"), "/compare"):
        text = client.get(place).text
        assert not re.search(r"<script(?![^>]*src=)", text) and not re.search(r"\son\w+=", text)
        assert all(urlsplit(link).netloc == "" for link in re.findall(r'(?:href|src|action)="([^"]*)"', text))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_the_page_can_only_be_read(client: httpx.Client, root: Path, method: str) -> None:
    for place in ("/", address(root, "first"), "/nowhere"):
        assert client.request(method, place).status_code == 405


OWN = ("127.0.0.1", "127.0.0.1:8765", "localhost:1", "LOCALHOST", "[::1]:80")
FOREIGN = ("evil.example", "127.0.0.1.evil.example", "localhost:80@evil.example", "evil.example:8765",
           "[::1].evil.example", "10.0.0.1", "")  # fmt: skip


@pytest.mark.parametrize("host", [*OWN, *FOREIGN])
def test_a_foreign_host_is_refused(client: httpx.Client, host: str) -> None:
    assert client.get("/", headers={"host": host}).status_code == (200 if host in OWN else 421)


@pytest.fixture
def stranger(root: Path) -> Iterator[httpx.Client]:
    with serving(root, "right") as found, httpx.Client(base_url=found) as client:
        client.headers["host"] = "192.0.2.7:8765"
        yield client


def test_strangers_need_the_token(stranger: httpx.Client) -> None:
    client = stranger
    assert client.get("/").status_code == 403
    assert client.get("/?token=wrong").status_code == 403
    assert client.get("/", headers={"cookie": "fedfew_token=wrong"}).status_code == 403
    assert client.get("/", headers={"authorization": "Bearer right"}).status_code == 200
    assert client.get("/static/page.js").status_code == 403
    answer = client.get("/compare?run=a&token=right")
    assert answer.status_code == 303 and answer.headers["location"] == "/compare?run=a"
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    kept = {"cookie": "fedfew_token=right"}
    assert client.get("/", headers=kept).status_code == 200
    assert client.get("/", headers=kept | {"host": "evil.example"}).status_code == 421


def test_the_token_never_leads_to_another_site(root: Path) -> None:
    app = make_app(root, own_names("0.0.0.0"), "right")
    for place in ("//evil.example/x", "/\\evil.example", "///evil.example"):
        status, headers, _ = asyncio.run(ask(app, place, b"token=right", b"192.0.2.7"))
        assert status == 303 and re.match(rb"/(?![/\\])", headers[b"location"])


@pytest.mark.parametrize(
    ("host", "only_here"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_only_loopback_does_without_a_token(host: str, only_here: bool) -> None:
    assert is_loopback(host) is only_here


async def ask(
    app: AccessMiddleware, path: str, query: bytes, host: bytes, *headers: tuple[bytes, bytes]
) -> tuple[int, dict[bytes, bytes], bytes]:
    """One request without a client that would tidy it up; who asks goes away after a moment, so that streams end."""
    given = [{"type": "http.request", "body": b"", "more_body": False}]
    found: dict[str, Any] = {"status": 0, "headers": {}, "body": b""}

    async def receive() -> dict[str, Any]:
        if given:
            return given.pop()
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found["status"], found["headers"] = message["status"], dict(message["headers"])
        else:
            found["body"] += message.get("body", b"")

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode("utf-8", "surrogateescape"),
        "query_string": query,
        "root_path": "",
        "headers": [(b"host", host), *headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    return found["status"], found["headers"], found["body"]


def test_two_thousand_odd_requests_break_nothing_and_reach_nothing_outside(root: Path) -> None:
    app, rng = make_app(root, own_names("127.0.0.1")), random.Random(7)
    known = [address(root, "first"), address(root, "lower")]
    keys = [place.removeprefix("/run/") for place in known]
    parts = [
        *known, *keys, "run", "static", "compare", "chart", "live", "loss.json", "page.js", "accuracy.csv",
        "loss.svg", "accuracy.exe", "..", "../..", "..%2f..", "%2e%2e", "....//", ".", "", "secret.txt",
        "../secret.txt",         "../../secret.txt", "outside", "run.toml", "rounds.jsonl", "/etc/passwd", "C:\\x", "file:///etc/passwd",
        "http://evil.example/", "\x00", "%00", "é", "🙂", "\udcff", "a" * 3000, "{key}", "{{7*7}}", "' OR 1=1 --",
        "<script>", "\r\nX: y", "*", "~root",
    ]  # fmt: skip
    one = known[0]
    doors = ["/", "/compare", "/compare/chart/s0-accuracy.json", "/live", "/static/{0}", "/run/{0}", "/run/{0}/live"]
    doors += [one + end for end in ("", "/live", "/chart/accuracy.json", "/{0}", "/chart/{0}", "/chart/accuracy.{0}")]
    doors.append("/compare/{0}{1}")
    queries = ["page", "run", "token", "path", "file", "url", ""]
    statuses: dict[int, int] = {}

    async def all_of_them() -> None:
        for _ in range(2000):
            path = rng.choice(["/", "//", ""]) + rng.choice(["/", "//", "\\"]).join(
                rng.choices(parts, k=rng.randint(1, 5))
            )
            if rng.random() < 0.4:
                path = rng.choice(doors).format(*rng.choices(parts, k=2))
            if rng.random() < 0.2:
                path = quote(path, errors="replace")
            pairs = [f"{rng.choice(queries)}={rng.choice(parts)}" for _ in range(rng.randint(0, 4))]
            query = "&".join(pairs).encode("utf-8", "surrogateescape")
            last_seen = (b"last-event-id", rng.choice([b"-1", b"x", b"9" * 50, b"\xff", b"2"]))
            status, answered, body = await ask(app, path, query, b"127.0.0.1", last_seen, (b"cookie", b"\xff=;;="))
            statuses[status] = statuses.get(status, 0) + 1
            assert status < 500, (path, query)
            assert SECRET.encode() not in body and b"root:x:" not in body and b"77.0 %" not in body, (path, query)
            assert b"content-security-policy" in answered

    asyncio.run(all_of_them())
    assert statuses[200] > 20 and statuses[404] > 200  # both what is there and what is not has been asked for


def test_a_damaged_run_is_named_and_the_others_are_shown(client: httpx.Client, root: Path) -> None:
    damaged = written_run(root / "damaged", [record(1)])
    (damaged / "rounds.jsonl").write_text('{"round": "x"}\n')
    odd = written_run(root / "odd", [])
    (odd / "rounds.jsonl").write_text(json.dumps(record(1, seconds=3)) + "\n")
    time.sleep(2.1)  # the folder is looked through every two seconds
    text = client.get("/").text
    assert "Cannot be read: E309" in text and "first" in text
    answer = client.get(address(root, "damaged"))
    assert answer.status_code == 409 and "E309" in answer.text


def test_a_run_folder_itself_can_be_watched(root: Path) -> None:
    library = Library((root / "first").resolve())
    assert [run.name for run in library.all()[0].values()] == ["first"]


def events(lines: Iterator[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(id, name, data) of each event."""
    now: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            now[name] = value
        elif "event" in now:
            yield now.get("id", ""), now["event"], json.loads(now["data"])
            now = {}


def test_a_new_round_is_told_within_a_second(served: str, root: Path) -> None:
    with httpx.Client(timeout=10) as http, http.stream("GET", served + address(root, "first") + "/live") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        news = events(answer.iter_lines())
        assert next(news) == ("3", "reset", {"round": 3})
        assert next(news) == ("3", "state", {"state": "stopped"})
        with locked(root / "first"):
            assert next(news) == ("3", "state", {"state": "running"})
            for number in (4, 5):
                start = time.monotonic()
                line = json.dumps(record(number, accuracy=number / 10)).encode() + b"\n"
                append_durably(root / "first" / "rounds.jsonl", line)
                found, name, data = next(news)
                assert time.monotonic() - start < 1.0
                assert (found, name, data["round"], data["accuracy"]) == (str(number), "round", number, number / 10)
        assert next(news)[1:] == ("state", {"state": "stopped"})


def kept_warmup(run: Path, done: int, total: int = 300) -> None:
    """As a run keeps it: tensors, with how far it is in the header."""
    about = {"done": done, "total": total, "seconds": float(done), "stream": "1"}
    (run / "checkpoints").mkdir(exist_ok=True)
    header = json.dumps({"__metadata__": {"fedfew": json.dumps(about)}}).encode()
    write_atomically(run / "checkpoints" / "warmup.safetensors", len(header).to_bytes(8, "little") + header)


def test_a_warmup_is_shown_with_a_bar_of_its_own_and_moves(served: str, root: Path, client: httpx.Client) -> None:
    run = written_run(root / "warm", [], rounds=5)
    with locked(run):
        kept_warmup(run, 120)
        text = client.get(address(root, "warm")).text
        assert 'class="state warm-up">warm-up<' in text
        assert re.search(r'120/300.*<progress max="300" value="120".*about 3 min left', text)
        assert "-1" not in re.sub(r"<(style|script|pre).*?</\1>", "", text, flags=re.S).split("<h2>")[0]
        with client.stream("GET", address(root, "warm") + "/live") as answer:
            news = (found[1:] for found in events(answer.iter_lines()))
            assert next(news)[0] == "reset" and next(news) == ("state", {"state": "warm-up"})
            kept_warmup(run, 240)
            assert next(news) == ("state", {"state": "warm-up"}), "the page is asked for again"
            kept_warmup(run, 300)
            assert next(news) == ("state", {"state": "running"})


def test_a_lost_connection_misses_no_round(served: str, root: Path) -> None:
    with httpx.Client(timeout=10) as http:
        headers = {"last-event-id": "1"}
        with http.stream("GET", served + address(root, "first") + "/live", headers=headers) as answer:
            news = events(answer.iter_lines())
            assert [next(news)[2]["round"] for _ in range(2)] == [2, 3]
        headers = {"last-event-id": "9"}  # the run was set back to an earlier checkpoint meanwhile
        with http.stream("GET", served + address(root, "first") + "/live", headers=headers) as answer:
            assert next(events(answer.iter_lines()))[1:] == ("reset", {"round": 3})


def test_a_new_run_shows_up_by_itself(served: str, root: Path) -> None:
    with httpx.Client(timeout=10) as http, http.stream("GET", served + "/live") as answer:
        news = events(answer.iter_lines())
        time.sleep(1)
        written_run(root / "second", rounds(1))
        assert next(news)[1:] == ("runs", {"runs": 3})
    assert "second" in httpx.get(served).text


def test_a_run_that_is_taken_away_ends_its_news(served: str, root: Path) -> None:
    with httpx.Client(timeout=10) as http, http.stream("GET", served + address(root, "lower") + "/live") as answer:
        news = events(answer.iter_lines())
        next(news)
        (root / "lower").rename(root.parent / "elsewhere")
        assert "gone" in [name for _, name, _ in news]
