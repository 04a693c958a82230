"""The docs as a site: complete, up to date with the code, and asking no other machine for anything."""

import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.docs.blocks import build_site
from tools.equations import fence
from tools.reference import PAGES as REFERENCE
from tools.reference import commands_page, config_page

from fedfew.config.tree import SECTIONS
from fedfew.core.errors import CODES

ROOT = Path(__file__).parents[2]
PAGES = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
LATER = {"understand/results.md"}
"""Written by ``python -m paper report`` once there are runs."""


@pytest.mark.parametrize("page", REFERENCE)
def test_generated_pages_are_up_to_date(page: str) -> None:
    fresh = (ROOT / "docs" / "reference" / page).read_text("utf-8") == REFERENCE[page]()
    assert fresh, f"docs/reference/{page} is older than the code: run `make docs`"


def test_every_code_and_every_section_has_an_entry() -> None:
    assert set(re.findall(r"^\| \*\*(E\d\d\d)\*\* ", commands_page(), re.MULTILINE)) == set(CODES)
    assert re.findall(r"^## \[(\w+)\]", config_page(), re.MULTILINE) == SECTIONS
    assert "| `mu` | number > 0 | `0.1` |" in config_page()


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    assert listed - PAGES <= LATER
    assert listed >= PAGES


@pytest.mark.parametrize("page", ["README.md", "SECURITY.md", "paper/README.md", *(f"docs/{p}" for p in sorted(PAGES))])
def test_links_and_pictures_lead_somewhere(page: str) -> None:
    """The site's builder checks links and anchors of its own pages, but no pictures."""
    for target in re.findall(r"\]\(([^)#\s]+)", (ROOT / page).read_text("utf-8")):
        path = (ROOT / page).parent / target
        assert target.startswith("https://") or (path.exists() and path.stat().st_size), target  # nor empty ones


@pytest.mark.parametrize("page", sorted(PAGES))
def test_modules_named_on_a_page_exist(page: str) -> None:
    """Above all the walk through a run in design.md and the path of a message, both in design.md."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    named = set(re.findall(r"(?<![\w/.\"])((?:[a-z_]+/)+[a-z_0-9]+\.py)\b", text))  # not titles of blocks
    missing = [name for name in named if not any((ROOT / base / name).is_file() for base in ("", "src/fedfew"))]
    missing = [name for name in missing if not name.startswith("flwr/")]
    assert not missing, f"docs/{page}: {missing}"


class Requests(HTMLParser):
    """Collects what a browser would ask for by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        options = dict(attrs)
        wanted = [options.get("src"), options.get("srcset"), options.get("poster")]
        if tag == "link" and options.get("rel") not in ("canonical", "prev", "next"):
            wanted.append(options.get("href"))
        self.addresses += [address for address in wanted if address]


@pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="the group docs is not installed")
def test_the_site_is_built_and_asks_no_other_machine_for_anything(tmp_path: Path) -> None:
    site = build_site(tmp_path)
    for page in PAGES:
        text = (site / page).with_suffix(".html").read_text("utf-8")
        requests = Requests()
        requests.feed(text)
        assert requests.addresses
        outside = [address for address in requests.addresses if re.match(r"(https?:)?//", address)]
        assert not outside, f"{page} asks for {outside}"
    sheets = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)\"']+", sheets)


def test_a_test_that_is_named_exists() -> None:
    """The guarantees of a network name the tests that hold them to it."""
    present = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "SECURITY.md"]
    named = {name for page in pages for name in re.findall(r"\btest_\w+\.py", page.read_text("utf-8"))}
    assert len(named) > 20 and named <= present, named - present


def test_equations_are_set() -> None:
    html = fence("w_k = n_k/Σn < a^t\nmean w_kψ_k\n")
    assert html.count("<div>") == 2
    assert (
        "<i>w</i><sub><i>k</i></sub> = <i>n</i><sub><i>k</i></sub>/Σ<i>n</i> &lt; <i>a</i><sup><i>t</i></sup>" in html
    )
    assert "mean <i>w</i><sub><i>k</i></sub><i>ψ</i><sub><i>k</i></sub>" in html
