"""Serve one client on stdin and stdout, until it closes them or a signal comes.

    serving ──stdin is closed──▶ runs are stopped NOW (source `disconnect`) ──recorded──▶ exit
       └──SIGTERM, SIGINT──▶ runs are asked to stop at a safe point, their callers are told ──recorded──▶ exit
                                 └──again──▶ runs are forced

While it serves, other writes to stdout go to stderr: stdout carries frames only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress

import anyio.to_thread
from mcp.server.stdio import stdio_server

from safepoint.protocols.mcp.requests import Requests
from safepoint.protocols.mcp.server import build
from safepoint.serving.freezes import FreezeWatcher
from safepoint.serving.lease_sweeper import LeaseSweeper
from safepoint.serving.run_manager import RunManager

_GOODBYE = 1.0
# More turns of the loop than a frame needs from the handler that answers to the thread that writes.
_TURNS = 50


async def serve_stdio(manager: RunManager) -> None:
    """Returns when the client has left and all is recorded. Raises ValueError for two tools of one name.

    Cancellation: runs are stopped and recorded first.
    """
    requests = Requests()
    server = build(manager, requests)
    sweeper = LeaseSweeper(manager)
    freezes = FreezeWatcher(manager, sweeper.look_again)
    await freezes.start()
    await sweeper.start()
    leaving = _SignalHandler(manager, requests)
    leaving.on(signal.SIGTERM, signal.SIGINT)
    try:
        async with stdio_server() as (received, sent):
            await server.run(received, sent, server.create_initialization_options())
    finally:
        await sweeper.stop()
        await freezes.stop()
        if await manager.shut_down():
            with suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await manager.storage.aclose()


class _SignalHandler:
    """What a signal does. A thread of the SDK reads stdin and can't be cancelled: so the process is left, not ended."""

    def __init__(self, manager: RunManager, requests: Requests) -> None:
        self._manager = manager
        self._requests = requests
        self._task: asyncio.Task[None] | None = None

    def on(self, *signals: signal.Signals) -> None:
        for each in signals:
            if signal.getsignal(each) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(each, self._on_signal)

    def _on_signal(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._leave(), name="safepoint: leave")
        else:
            self._manager.force()

    async def _leave(self) -> None:
        """Bounded, as `shut_down` is."""
        recorded = await self._manager.shut_down()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                await self._requests.answered()
                await _written()
                if recorded:
                    await self._manager.storage.aclose()
        logging.shutdown()
        os._exit(0)


async def _written() -> None:
    """Until stdout has the answers. Cancellation: only the waiting ends.

    The SDK hands a frame from task to task, and writes and flushes it in a worker thread. It does not say when it has,
    and a process that leaves before that takes the frame along. Another worker thread reads stdin all the time.
    """
    limiter = anyio.to_thread.current_default_thread_limiter()
    idle_turns = 0
    while idle_turns < _TURNS:
        await asyncio.sleep(0)
        idle_turns = 0 if limiter.borrowed_tokens > 1 else idle_turns + 1
