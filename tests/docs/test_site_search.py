"""The site can be searched when it is opened from the disk, without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_site import build
from tests.server.browser import browser

pytestmark = pytest.mark.browser


def test_a_page_from_the_disk_finds_a_guide_and_asks_no_other_host(tmp_path: Path) -> None:
    site = build(tmp_path / "site")
    asked: list[str] = []
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1500, "height": 900})
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "index.html").as_uri())
        for _ in range(100):  # the key for the search works once the index is loaded
            page.keyboard.press("/")
            if page.evaluate("document.activeElement.matches('.md-search__input')"):
                break
            page.wait_for_timeout(100)
        page.keyboard.type("orphan")
        found = page.locator(".md-search-result__item").first
        found.wait_for(state="attached", timeout=20_000)
        assert "rphan" in (found.text_content() or "")
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
