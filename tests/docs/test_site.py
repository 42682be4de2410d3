"""The documentation site builds without a warning, has no dead link, and asks nothing of other hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.house.tree import ROOT

pytestmark = pytest.mark.site

LOADS = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "audio": "src",
    "video": "src",
    "link": "href",
}


class Page(HTMLParser):
    """What one page has: the ids that a link can lead to, the links, and what a browser loads for it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADS and LOADS[tag] in found and found.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(found[LOADS[tag]])


@cache
def read(file: Path) -> Page:
    return Page(file.read_text())


def dead_links(site: Path) -> list[str]:
    dead: list[str] = []
    for file in sorted(site.rglob("*.html")):
        base = site if file.name == "404.html" else file.parent  # that page is shown at any address
        for target in (*read(file).links, *read(file).loads):
            parts = urlsplit(target)
            if parts.scheme:
                continue
            to = file if not parts.path else (base / unquote(parts.path).removeprefix("/")).resolve()
            to = to / "index.html" if to.is_dir() else to
            anchor = unquote(parts.fragment)
            if not to.is_file() or (anchor and to.suffix == ".html" and anchor not in read(to).ids):
                dead.append(f"{file.relative_to(site)}: {target}")
    return dead


def loaded_from_outside(site: Path) -> list[str]:
    pages = {file: read(file).loads for file in sorted(site.rglob("*.html"))}
    found = [f"{file.name}: {target}" for file, loads in pages.items() for target in loads if urlsplit(target).netloc]
    return found + [file.name for file in site.rglob("*.css") if "url(http" in file.read_text()]


def build(folder: Path) -> Path:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("docs") / "site")


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    assert dead_links(site) == []


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    assert loaded_from_outside(site) == []


def test_every_public_name_has_a_place_on_an_api_page(site: Path) -> None:
    ids = {name for file in (site / "api").glob("*.html") for name in read(file).ids}
    names = (ROOT / "tests/house/exports.txt").read_text().split()
    old = {"safepoint.sessions.Sender"}  # another name for SessionDispatcher
    assert [name for name in names if name not in ids | old] == []


def test_the_search_index_knows_every_guide(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    places = {document["location"].partition("#")[0] for document in index["docs"]}
    guides = {f"guides/{file.stem}.html" for file in (ROOT / "docs/guides").glob("*.md")}
    assert guides - places == set()


def test_a_dead_link_and_a_load_from_outside_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<h1 id="here">x</h1>')
    page = '<a href="other.html#here">a</a><a href="other.html#gone">b</a><a href="no.html">c</a>'
    (tmp_path / "index.html").write_text(page + '<script src="https://example.org/x.js"></script>')
    assert dead_links(tmp_path) == ["index.html: other.html#gone", "index.html: no.html"]
    assert loaded_from_outside(tmp_path) == ["index.html: https://example.org/x.js"]
