"""Signals, threads and run_sync, in one program each. The argument says which."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from safepoint import Agent, GroupReceipt, Hooks, RunResult, tool
from safepoint.agent.hooks import AnyRun
from safepoint.errors import UsageError
from safepoint.testing import ScriptedModel, call, say
from tests.process.programs.telling import tell, tell_result

THREADS = 8
go_on = threading.Event()
ready = threading.Event()
gates: list[Callable[[], object]] = []


@tool
async def wait() -> str:
    loop, gate = asyncio.get_running_loop(), asyncio.Event()
    gates.append(lambda: loop.call_soon_threadsafe(gate.set))
    tell("READY")
    ready.set()
    if not go_on.is_set():
        await gate.wait()
    return "done"


def let_go() -> None:
    go_on.set()
    for open_gate in gates:
        open_gate()


class Closing(Hooks):
    def on_stopped(self, run: AnyRun, result: RunResult[Any]) -> None:  # Any: of any output
        tell_result("STOPPED", result)


def waiting(*, hooks: tuple[Hooks, ...] = ()) -> Agent:
    return Agent("waiting", model=ScriptedModel(call("wait"), say("fine")), tools=[wait], hooks=hooks)


def own_handler() -> None:
    """A program with plans of its own for Ctrl-C."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        tell("HANDLED")
        let_go()

    signal.signal(signal.SIGINT, handler)
    tell_result("BACK", waiting().run_sync("go"), kept=signal.getsignal(signal.SIGINT) is handler)


def in_background() -> None:
    """SIGINT is ignored; the program handles SIGTERM."""
    agent = waiting()
    signal.signal(signal.SIGTERM, lambda _number, _frame: agent.cancel(reason="SIGTERM"))
    tell_result("BACK", agent.run_sync("go"), ignored=signal.getsignal(signal.SIGINT) is signal.SIG_IGN)


def raising_handler() -> None:
    """A handler that raises into whatever is running, as the default one does."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise ConnectionError("from the handler")

    signal.signal(signal.SIGINT, handler)
    try:
        waiting(hooks=(Closing(),)).run_sync("go")
    except ConnectionError as error:
        tell("BACK", error=str(error))


def cancel_in_handler() -> None:
    """agent.cancel() in a signal handler: before any run, while one goes, after it."""
    agent = waiting()
    receipts: list[GroupReceipt] = []

    def handler(_number: int, _frame: FrameType | None) -> None:
        receipts.append(agent.cancel(reason="a signal"))

    signal.signal(signal.SIGUSR1, handler)
    signal.raise_signal(signal.SIGUSR1)
    tell_result("BEFORE", agent.run_sync("go"))
    tell_result("WHILE", agent.run_sync("go"))
    signal.raise_signal(signal.SIGUSR1)
    go_on.set()
    tell_result("AFTER", agent.run_sync("go"), outcomes=[receipt.outcome for receipt in receipts])


def other_thread() -> None:
    """run_sync where no signal ever arrives."""
    agent = waiting()
    results: list[RunResult[str]] = []
    thread = threading.Thread(target=lambda: results.append(agent.run_sync("go")))
    thread.start()
    ready.wait()
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    began = time.monotonic()
    outcome = agent.cancel(reason="from the main thread").wait_sync()
    seconds = time.monotonic() - began
    thread.join()
    tell_result("BACK", results[0], outcome=outcome, default=default, seconds=seconds)


def many_threads() -> None:
    """agent.cancel() from eight threads at once: before any run, while one goes, after it."""
    agent = waiting()
    before = _at_once(lambda: agent.cancel(reason="before"))
    tell_result("BEFORE", agent.run_sync("go"), outcomes=[receipt.outcome for receipt in before])
    during: list[GroupReceipt] = []
    asker = threading.Thread(target=lambda: during.extend(_at_once(lambda: agent.cancel(reason="while"), after=ready)))
    asker.start()
    result = agent.run_sync("go")
    asker.join()
    tell_result("WHILE", result, outcomes=[receipt.outcome for receipt in during])
    after = _at_once(lambda: agent.cancel(reason="after"))
    go_on.set()
    tell_result("AFTER", agent.run_sync("go"), outcomes=[receipt.outcome for receipt in after])


def _at_once(ask: Callable[[], GroupReceipt], after: threading.Event | None = None) -> list[GroupReceipt]:
    receipts: list[GroupReceipt] = []
    barrier = threading.Barrier(THREADS)

    def work() -> None:
        if after is not None:
            after.wait()
        barrier.wait()
        receipts.append(ask())

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return receipts


def plain_asyncio() -> None:
    """Ctrl-C under asyncio.run, which cancels the caller's task."""
    try:
        asyncio.run(waiting(hooks=(Closing(),)).run("go"))
    except KeyboardInterrupt:
        tell("BACK")


def inside_a_loop() -> None:
    async def main() -> None:
        try:
            waiting().run_sync("go")
        except UsageError as error:
            tell("BACK", error=str(error))

    asyncio.run(main())


{
    "own_handler": own_handler,
    "in_background": in_background,
    "raising_handler": raising_handler,
    "cancel_in_handler": cancel_in_handler,
    "other_thread": other_thread,
    "many_threads": many_threads,
    "plain_asyncio": plain_asyncio,
    "inside_a_loop": inside_a_loop,
}[sys.argv[1]]()
