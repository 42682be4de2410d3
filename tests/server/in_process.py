"""A server on a real port in a thread of this process: for apps that no command line can make."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from tests.server.server_process import PATIENCE, ServerProcess


class ThreadServer(ServerProcess):
    """As `ServerProcess`; `build` makes its app from the folder for its data."""

    def __init__(self, folder: Path, build: Callable[[Path], FastAPI]) -> None:
        super().__init__(folder)
        self._build = build
        self._uvicorn: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._before: Mapping[str, str | None] = {}

    def start(self) -> None:
        """Returns when it answers. Tools write to this server's log for as long as it runs."""
        self._before = {name: os.environ.get(name) for name in self._env}
        os.environ.update(self._env)
        config = uvicorn.Config(self._build(self.folder), port=self.port, log_config=None, timeout_graceful_shutdown=1)
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._uvicorn.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + PATIENCE
        while True:
            with suppress(OSError):
                if self.http("GET", "/health").status == 200:
                    return
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def kill(self) -> None:
        """Told to leave, and waited for."""
        if self._uvicorn is not None and self._thread is not None:
            self._uvicorn.should_exit = True
            self._thread.join(PATIENCE)
            self._uvicorn = self._thread = None
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}
