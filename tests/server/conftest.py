from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.server.server_process import ServerProcess

if TYPE_CHECKING:  # the tests without a browser do not load what drives it
    from playwright.sync_api import Browser

    from tests.server.page_driver import PageDriver


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of a file: a session each, and lines of their own in the tool log."""
    folder: Path = tmp_path_factory.mktemp("server")
    with ServerProcess(folder) as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    from tests.server.browser import browser

    with browser() as running:
        yield running


@pytest.fixture
def page(chromium: Browser, server: ServerProcess) -> Iterator[PageDriver]:
    from tests.server.page_driver import opened

    with opened(chromium, server) as driver:
        yield driver


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """`serve`, called in this very process, logs to a stderr that is closed when the test is over."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
