"""The server as a process: sockets by uvicorn, signals by us.

The first SIGTERM or SIGINT drains: new runs are refused and live ones asked to stop at a safe point, while sockets
stay open, so that every caller hears how its run ended. Only then uvicorn is told to leave. The second one forces the
runs; the third ends uvicorn without waiting for anybody.

    serving ──signal──▶ draining ──all runs are over──▶ leaving
                           └──signal──▶ forcing ──all runs are over──▶ leaving
"""

from __future__ import annotations

import asyncio
import socket as socket_options
from enum import StrEnum
from socket import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from safepoint.server.host import Host

_GOODBYE = 2.0  # for answers that are on their way when all runs are over


class Stage(StrEnum):
    SERVING = "serving"
    DRAINING = "draining"
    FORCING = "forcing"
    LEAVING = "leaving"


class Server(uvicorn.Server):
    """uvicorn, that drains before it leaves and then exits with 0."""

    def __init__(self, config: uvicorn.Config, host: Host) -> None:
        super().__init__(config)
        self.stage = Stage.SERVING
        self._host = host
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drained: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Cancellation: as uvicorn's."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if hasattr(socket_options, "TCP_USER_TIMEOUT"):  # Linux
            # A peer that reads nothing never lets a closed connection go, unless the system gives it up.
            patience = int(self._host.config.stalled_seconds * 1000)
            for each in [each for server in self.servers for each in server.sockets]:
                if each.family in (socket_options.AF_INET, socket_options.AF_INET6):
                    each.setsockopt(socket_options.IPPROTO_TCP, socket_options.TCP_USER_TIMEOUT, patience)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """In a signal handler: what it means is decided on the loop.

        uvicorn would raise the signal again once it has left; a server that was told to end has ended well.
        """
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._told)

    def _told(self) -> None:
        match self.stage:
            case Stage.SERVING:
                self.stage = Stage.DRAINING
                self._drained = asyncio.get_running_loop().create_task(self._drain(), name="safepoint: drain")
            case Stage.DRAINING:
                self.stage = Stage.FORCING
                self._host.force()
            case Stage.FORCING | Stage.LEAVING:
                self.stage = Stage.LEAVING
                self.force_exit = self.should_exit = True

    async def _drain(self) -> None:
        """Bounded by the runs' ladders. Cancellation: uvicorn leaves all the same."""
        try:
            await self._host.shut_down()
        finally:
            self.stage = Stage.LEAVING
            self.should_exit = True


def serve(app: FastAPI, *, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve until a signal says otherwise; returns when everything is recorded and every caller was told."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        timeout_graceful_shutdown=int(_GOODBYE),
        ws="websockets-sansio",
    )
    Server(config, app.state.host).run()
