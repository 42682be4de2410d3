"""The server as a process: sockets by uvicorn, signals by us.

The first SIGTERM or SIGINT drains: new runs are refused and live ones asked to stop at a safe point, while sockets
stay open, so that every caller hears how its run ended. Only then uvicorn is told to leave. The second one forces the
runs; the third leaves there and then, as if the process had been killed.

    serving ──signal──▶ draining ──all runs are over──▶ leaving
                           └──signal──▶ forcing ──all runs are over──▶ leaving
                                           └──signal──▶ gone

A run that does not end in time, because the store hangs, does not hold the exit: its record stays open, and
the next process finds it as after a crash. Nothing is cancelled on the way out that could record something else.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket as socket_options
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import StrEnum
from socket import AI_PASSIVE, SOCK_STREAM, create_server, getaddrinfo, socket
from types import FrameType
from typing import NoReturn

import uvicorn
from fastapi import FastAPI

from safepoint.server.auth import check_exposed
from safepoint.server.connection import wire_options
from safepoint.server.origins import is_loopback
from safepoint.server.shadowing import check_routes
from safepoint.serving.run_manager import RunManager

_log = logging.getLogger("safepoint.server")

_GOODBYE = 2.0  # for answers that are on their way when all runs are over


class ShutdownStage(StrEnum):
    SERVING = "serving"
    DRAINING = "draining"
    FORCING = "forcing"
    LEAVING = "leaving"


class Server(uvicorn.Server):
    """uvicorn, that drains before it leaves and then exits with 0."""

    def __init__(self, config: uvicorn.Config, host: RunManager) -> None:
        super().__init__(config)
        self.stage = ShutdownStage.SERVING
        self._manager = host
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drained: asyncio.Task[None] | None = None
        self._all_recorded = True

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Cancellation: as uvicorn's."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._give_up_on_the_stalled()

    def _give_up_on_the_stalled(self) -> None:
        """A peer that reads nothing holds even a closed connection, unless the system gives it up: Linux can."""
        option = getattr(socket_options, "TCP_USER_TIMEOUT", None)
        for each in [each for server in self.servers for each in server.sockets]:
            if option is not None and each.family in (socket_options.AF_INET, socket_options.AF_INET6):
                patience = int(self._manager.config.stalled_seconds * 1000)
                each.setsockopt(socket_options.IPPROTO_TCP, option, patience)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """uvicorn's, except that a SIGINT that this process was started to ignore stays ignored."""
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with super().capture_signals():
            if ignored and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """In a signal handler: what it means is decided on the loop.

        uvicorn would raise the signal again once it has left; a server that was told to end has ended well.
        """
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._on_signal)

    def _on_signal(self) -> None:
        match self.stage:
            case ShutdownStage.SERVING:
                self.stage = ShutdownStage.DRAINING
                self._drained = asyncio.get_running_loop().create_task(self._drain(), name="safepoint: drain")
            case ShutdownStage.DRAINING:
                self.stage = ShutdownStage.FORCING
                self._manager.force()
            case ShutdownStage.FORCING:
                _leave(1)
            case ShutdownStage.LEAVING:
                self.force_exit = True

    async def _drain(self) -> None:
        """Bounded, as `shut_down` is. Cancellation: uvicorn leaves all the same."""
        self._all_recorded = False
        try:
            self._all_recorded = await self._manager.shut_down()
        finally:
            self.stage = ShutdownStage.LEAVING
            self.should_exit = True

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Cancellation: as uvicorn's."""
        if self._all_recorded:
            await super().shutdown(sockets)
            return
        _log.error("some runs could not be recorded in time; the next start settles them")
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE + 1):
                await super().shutdown(sockets)
        _leave(0)


def _leave(code: int) -> NoReturn:
    logging.shutdown()
    os._exit(code)


def listen(host: str, port: int) -> socket:
    """A socket that takes connections from now on; port 0 takes a free port. Raises `OSError`."""
    family, _, _, _, address = getaddrinfo(host, port, type=SOCK_STREAM, flags=AI_PASSIVE)[0]
    made = create_server((str(address[0]), int(address[1])), family=family, backlog=2048)
    # Taken anew from its descriptor it knows its protocol, and asyncio sets TCP_NODELAY only where that is TCP. Without
    # it the end of each answer waits some 40 ms until its beginning is acknowledged.
    return socket(fileno=made.detach())


def address_of(listener: socket) -> str:
    """Where clients find it."""
    name, port = listener.getsockname()[:2]
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def serve(app: FastAPI, *, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until a signal says otherwise; returns when everything is recorded and every caller was told.

    SIGTERM and SIGINT drain. A process that was started to ignore SIGINT, as by `&` in a script and many CI runners,
    goes on ignoring it; SIGTERM works there too.

    Raises ValueError if others than this machine could reach it and it has no keys, `OSError` for an address in use,
    RuntimeError for a route that can never be reached.
    """
    with listen(host, port) as listener:
        serve_on(listener, app)


def serve_on(listener: socket, app: FastAPI) -> None:
    """As `serve`, on a socket that listens already."""
    check_routes(app)  # uvicorn would only log what is wrong
    # What is loaded by now stays as long as the process: looking through it for garbage again and again made a run cost
    # a sixth more. Runs that are over wait for the last of the three: it must come before they fill the memory.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 4)
    bound, served = listener.getsockname()[0], app.state.manager
    check_exposed(f"--host {bound}", served.config, app.state.keys, exposed=not is_loopback(bound))
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=int(_GOODBYE),
        **wire_options(served.config.limits),
    )
    Server(config, served).run([listener])
