from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of a file: a session each, and lines of their own in the tool log."""
    folder: Path = tmp_path_factory.mktemp("server")
    with ServerProcess(folder) as running:
        yield running


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """`serve`, called in this very process, logs to a stderr that is closed when the test is over."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
