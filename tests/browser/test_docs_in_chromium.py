"""The docs as a reader opens them from a folder: the search finds something, equations are set, nothing is cut."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.devtools import Tab, browser, chromium
from tests.docs.blocks import build_site

pytestmark = [
    pytest.mark.skipif(chromium() is None, reason="chromium is not installed; make test-browser installs it"),
    pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="the group docs is not installed"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("docs"))


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser() as tab:
        yield tab


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
