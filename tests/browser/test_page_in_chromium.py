"""The live page, the report and the documentation in a real browser."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.devtools import Tab, browser, chromium
from tests.docs.blocks import build_site
from tests.interface.fedfew_command import SMALL, record, serving, small_run, written_run

import fedfew
from fedfew.core.storage import append_durably
from fedfew.interface.page.library import key_of
from fedfew.interface.report import write_report

pytestmark = pytest.mark.skipif(chromium() is None, reason="chromium is not installed; make test-browser installs it")

IN_WINDOW = "[...document.querySelectorAll('figure')].filter(f => f.getBoundingClientRect().top < innerHeight)"
DRAWN = f"document.readyState === 'complete' && {IN_WINDOW}.every(f => f.querySelector('svg.chart'))"
LIVE = "document.getElementById('line').classList.contains('on')"
PHONE = 390


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def pictures() -> Path:
    """Where a person can look at what the tests saw."""
    folder = Path("build") / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    small_run(folder / "mix", availability__dropout=0.5)
    small_run(folder / "mix-again", seed=1)
    small_run(folder / "lower", method__name="server-only")
    return folder


@pytest.fixture(scope="module")
def server(runs: Path) -> Iterator[str]:
    with serving(runs) as found:
        yield found


def place(root: Path, name: str) -> str:
    return f"/run/{key_of(root.resolve() / name, root.resolve())}"


def assert_clean(tab: Tab, server: str) -> None:
    """No error on the console, and no request to anybody but the page's own server."""
    assert tab.complaints() == []
    assert [url for url in tab.requests() if not url.startswith((server + "/", "data:", "blob:"))] == []


def test_a_run_advances_before_our_eyes(tab: Tab, tmp_path: Path, pictures: Path) -> None:
    session = fedfew.Experiment.load("quick", SMALL | {"rounds": 6}).start(tmp_path / "live")
    advancing = session.advance()
    with serving(tmp_path) as server:
        tab.open(server + place(tmp_path, "live"))
        tab.wait(LIVE)
        assert tab.run("document.getElementById('round-now').textContent") == "0"
        delays = []
        for number in range(1, 7):
            expected = next(advancing)
            assert expected["round"] == number
            delays.append(tab.wait(f"document.getElementById('round-now')?.textContent === '{number}'"))
            shown = f"{100 * (expected['accuracy'] or 0.0):.1f} %"
            tab.wait(f"document.getElementById('accuracy-now').textContent.includes('{shown}')")
            tab.wait(f"document.querySelector('#accuracy desc').textContent.includes(' in round {number}')")
        assert min(delays) < 1.0  # the machine may be busy in between, but this is the pace
        assert tab.run("document.querySelector('#head .state').textContent") == "running"
        assert next(advancing, None) is None
        tab.wait("document.querySelector('#head .state').textContent === 'finished'")
        assert_clean(tab, server)
        tab.screenshot(pictures / "live.png")


def test_a_lost_connection_is_taken_up_again(tab: Tab, tmp_path: Path) -> None:
    run = written_run(tmp_path / "run", [record(1)], rounds=9)
    with serving(tmp_path) as server:
        tab.open(server + place(tmp_path, "run"))
        tab.wait(LIVE)
    tab.wait(f"!({LIVE})")
    append_durably(run / "rounds.jsonl", json.dumps(record(2, accuracy=0.66)).encode() + b"\n")
    with serving(tmp_path, port=int(server.rpartition(":")[2])):
        tab.wait("document.getElementById('accuracy-now').textContent.includes('66.0 %')")
        assert tab.run(LIVE)


@pytest.mark.parametrize(
    ("chart", "across", "down", "shows"),
    [
        ("accuracy", 0.99, 0.5, r"round \d+\ntest: \d+\.\d %"),
        ("time", 0.9, 0.5, r"round \d+\n.*: \d+\.\d\d s"),
        ("partition", 0.5, 0.5, r"^(client \d+, \d: \d+ images: images \d+)?$"),
    ],
)
def test_the_pointer_shows_values(
    tab: Tab, runs: Path, server: str, pictures: Path, chart: str, across: float, down: float, shows: str
) -> None:
    tab.open(server + place(runs, "mix"))
    tab.wait(DRAWN)
    tab.run(f"document.getElementById('{chart}').scrollIntoView()")
    box = tab.run(f"document.querySelector('#{chart} svg').getBoundingClientRect().toJSON()")
    x, y = box["x"] + across * box["width"], box["y"] + down * box["height"]
    tab.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    if not shows.startswith("^"):
        tab.wait("!document.querySelector('.tip').hidden")
    assert re.search(shows, tab.run("document.querySelector('.tip').textContent"))
    assert_clean(tab, server)
    tab.screenshot(pictures / f"pointer-{chart}.png")


def test_the_first_screen_is_the_answer(tab: Tab, runs: Path, server: str, pictures: Path) -> None:
    """Sentence and bars stand above the fold, the bars as wide as their accuracies, charts come after."""
    bottom = "document.querySelector('{}').getBoundingClientRect().bottom"
    for width, height in ((1400, 900), (PHONE, 844)):
        tab.open(server + place(runs, "mix-again"), width, height)
        tab.wait(DRAWN)
        assert "What the clients' data add is not known" in tab.run("document.querySelector('.verdict').innerText")
        assert tab.run(bottom.format(".standing")) < height
        assert tab.run(bottom.format(".standing")) < tab.run(
            "document.querySelector('figure').getBoundingClientRect().top"
        )
        shares = tab.run(
            "[...document.querySelectorAll('.standing li')].map(bar => [bar.querySelector('.fill').offsetWidth / "
            "bar.querySelector('.track').offsetWidth, parseFloat(bar.querySelector('.value').textContent) / 100])"
        )
        assert len(shares) == 2 and all(abs(drawn - said) < 0.02 for drawn, said in shares)
        assert tab.run("document.documentElement.scrollWidth") <= width
        assert_clean(tab, server)
        tab.screenshot(pictures / f"first-screen-{width}.png")


def test_a_comparison_fits_a_desk(tab: Tab, runs: Path, server: str) -> None:
    """At 1,400 pixels nothing is cut or scrolled, and notes stay folded."""
    tab.open(server + "/compare", 1400, 900)
    tab.wait(DRAWN)
    cut = (
        "[...document.querySelectorAll('.scroll, .compared td')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    )
    assert tab.run(cut) == 0
    heads = tab.run("[...document.querySelectorAll('.compared thead th')].map(th => th.textContent)")
    assert heads[:3] == ["method", "accuracy in %", "against server-only"]
    assert tab.run("[...document.querySelectorAll('details.note')].every(d => !d.open)")


def test_chosen_runs_are_compared(tab: Tab, runs: Path, server: str, pictures: Path) -> None:
    tab.open(server)
    tab.wait(LIVE)
    tab.run("document.querySelectorAll('input[name=run]').forEach(i => i.click())")
    tab.run("document.querySelector('form button').click()")
    tab.wait("location.pathname === '/compare' && document.readyState === 'complete' && " + DRAWN)
    tables = "[...document.querySelectorAll('table')].map(t => t.querySelectorAll('tbody tr:not(.line)').length)"
    assert tab.run(tables) == [3]  # the two seeds differ in dropout too
    assert_clean(tab, server)
    tab.screenshot(pictures / "compare.png")


def test_every_page_fits_a_phone(tab: Tab, runs: Path, server: str, pictures: Path) -> None:
    for name, path in (("runs", "/"), ("run", place(runs, "mix")), ("compare", "/compare")):
        tab.open(server + path, PHONE, 844)
        tab.wait(DRAWN)
        assert tab.run("document.documentElement.scrollWidth") <= PHONE, name
        small = "[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
        assert tab.run(f"{small}.filter(e => !e.closest('svg')).length") == 0, name
        tab.screenshot(pictures / f"phone-{name}.png", whole=True)


def test_dark_follows_the_system(tab: Tab, runs: Path, server: str, pictures: Path) -> None:
    brightness = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).reduce((s, v) => s + +v, 0)"
    for dark in (False, True):
        tab.open(server + place(runs, "mix"), dark=dark)
        tab.wait(DRAWN)
        assert (tab.run(brightness) < 200) is dark
        paper = tab.run("getComputedStyle(document.querySelector('#accuracy svg')).backgroundColor")
        assert paper == ("rgb(21, 27, 37)" if dark else "rgb(255, 255, 255)")
    tab.screenshot(pictures / "dark.png")


def test_keyboard_and_screen_reader_find_their_way(tab: Tab, runs: Path, server: str) -> None:
    tab.open(server + place(runs, "mix"))
    tab.wait(DRAWN)
    for kind in ("keyDown", "keyUp"):
        tab.send("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert tab.run("document.activeElement.className") == "skip"
    unnamed = "[...document.querySelectorAll('svg.chart title')].filter(t => t.textContent.length < 4).length"
    assert tab.run(unnamed) == 0
    nodes = tab.send("Accessibility.getFullAXTree")["nodes"]
    silent = [
        node["role"]["value"]
        for node in nodes
        if not node["ignored"]
        and node.get("role", {}).get("value") in ("link", "button", "checkbox", "img", "image", "progressbar")
        and not node.get("name", {}).get("value")
    ]
    assert silent == []


@pytest.mark.parametrize("what", ["mix", "."])
def test_the_report_opens_from_the_disk_without_network(tab: Tab, runs: Path, pictures: Path, what: str) -> None:
    written = write_report(runs / what)
    name = "report" if what == "mix" else "report-folder"
    for width in (1200, PHONE):
        tab.open(f"file://{written}", width)
        assert tab.complaints() == []
        assert [url for url in tab.requests() if not url.startswith(("file://", "data:"))] == []
        assert tab.run("document.documentElement.scrollWidth") <= width
        sizes = tab.run("[...document.querySelectorAll('svg.chart')].map(s => s.getBoundingClientRect().height)")
        assert len(sizes) >= 4 and sum(height > 150 for height in sizes) >= 4
        tab.screenshot(pictures / f"{name}{'-phone' if width == PHONE else ''}.png", whole=True)
    assert len(tab.send("Page.printToPDF")["data"]) > 10_000


def test_a_page_that_lists_a_nasty_name_runs_nothing(tab: Tab, tmp_path: Path) -> None:
    nasty = "<img src=x onerror=document.title='caught'>"
    written_run(tmp_path / nasty, [record(1, cohort=[0], rejected=[{"client": 0, "code": "E408", "reason": nasty}])])
    with serving(tmp_path) as server:
        for path in ("/", place(tmp_path, nasty), "/compare"):
            tab.open(server + path)
            tab.wait(DRAWN)
            time.sleep(0.2)
            assert tab.run("document.title") != "caught"
            assert tab.run("document.querySelectorAll('main img').length") == 0
            assert_clean(tab, server)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zensical", reason="the group docs is not installed")
    return build_site(tmp_path_factory.mktemp("docs"))


def test_the_search_works_without_a_server(tab: Tab, site: Path) -> None:
    tab.open(f"file://{site}/index.html", 1400)
    tab.run("document.querySelector('.md-search__button').click()")
    tab.wait("document.activeElement.shadowRoot?.querySelector('input')")
    tab.send("Input.insertText", text="label shift")
    tab.wait("document.activeElement.shadowRoot.querySelectorAll('[role=option]').length > 2")
    assert tab.complaints() == []
    assert [url for url in tab.requests() if not url.startswith(("file://", "data:", "blob:", "about:"))] == []


@pytest.mark.parametrize("width", [1400, 390])
def test_methods_are_readable(tab: Tab, site: Path, width: int) -> None:
    tab.open(f"file://{site}/understand/methods.html", width)
    assert tab.run("document.querySelectorAll('.eq').length") > 30
    assert tab.run("document.querySelectorAll('.eq sub').length") > 50
    assert tab.run("document.querySelectorAll('.md-content pre code').length") < 10  # no equation is left as code
    assert tab.run("document.documentElement.scrollWidth") <= width  # wide tables scroll in their own frame
    if width == 1400:
        cells = "[...document.querySelectorAll('.md-content td')]"
        assert tab.run(f"{cells}.filter(c => c.offsetWidth < 116 && c.innerText.length > 60).length") == 0
