"""A real browser: `chromium`, Chrome, or the one that `playwright install` fetched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@contextmanager
def browser() -> Generator[Browser]:
    """Fails the test if there is none."""
    with sync_playwright() as playwright:
        named = [found for name in _NAMES if (found := shutil.which(name)) is not None]
        fetched = playwright.chromium.executable_path
        where = named[0] if named else fetched
        if not Path(where).exists():
            pytest.fail("no browser: `apt install chromium`, or `.venv/bin/playwright install chromium`")
        # Chromium's own sandbox does not work for root, as in most containers.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        running = playwright.chromium.launch(executable_path=where, args=options)
        try:
            yield running
        finally:
            running.close()
