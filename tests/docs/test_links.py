"""Every link from one page of the project to another leads somewhere."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from tests.house.tree import ROOT, Source, sources

LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    titles = (found["title"].lower() for found in HEADING.finditer(page))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def dead_links(source: Source) -> list[str]:
    dead: list[str] = []
    for found in LINK.finditer(CODE.sub("", source.text)):
        target = found["target"]
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = ROOT / PurePosixPath(source.path).parent / name
        if not file.exists() or (anchor and anchor not in anchors(file.read_text() if name else source.text)):
            dead.append(f"{source.path}: {target}")
    return dead


def test_every_link_leads_somewhere() -> None:
    pages = sources("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs", "changes", suffix=".md")
    assert [dead for page in pages for dead in dead_links(page)] == []


def test_a_dead_link_is_found() -> None:
    page = Source("README.md", "[a](nowhere.md) [b](CONTRIBUTING.md#no-such-title) [c](#here) `[d](gone.md)`\n# Here\n")
    assert dead_links(page) == ["README.md: nowhere.md", "README.md: CONTRIBUTING.md#no-such-title"]
    assert dead_links(Source("README.md", "[a](CONTRIBUTING.md#the-rings) [b](https://example.org/x)")) == []
