"""Blocking functions run in daemon threads of their own: the loop goes on, and no thread holds the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar

import pytest

from safepoint._core.clock import current_clock
from safepoint._core.ladder import StopPolicy, WorkKind
from safepoint._core.threads import in_thread, off_loop
from safepoint._core.work import Abandoned, Cut, Failed, Returned
from tests.core.piece import Piece, settled
from tests.virtual import passes, virtual

THREAD = StopPolicy(WorkKind.THREAD)


class Blocking:
    """A function that blocks its thread until it is let go."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.gate = threading.Event()

    def __call__(self) -> str:
        self.started.set()
        assert self.gate.wait(30)
        return threading.current_thread().name


def threaded(call: Callable[[], object]) -> Piece:
    def body() -> object:
        return in_thread(piece.work, call, current_clock())

    piece = Piece(body, stop_policy=THREAD)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # awaitable
    return piece


async def started(blocking: Blocking) -> None:
    await asyncio.to_thread(blocking.started.wait, 30)


@virtual
async def test_the_function_runs_in_a_daemon_thread_named_for_its_work() -> None:
    blocking = Blocking()
    piece = threaded(blocking)
    await started(blocking)
    thread = piece.work.thread
    assert thread is not None
    assert thread.daemon
    assert thread is not threading.current_thread()
    blocking.gate.set()
    assert await piece.outcome() == Returned("safepoint:test/piece")


@virtual
async def test_the_function_sees_the_context_of_its_caller() -> None:
    name: ContextVar[str] = ContextVar("name")
    name.set("kim")

    def read() -> str:
        seen = name.get()
        name.set("another")
        return seen

    assert await threaded(read).outcome() == Returned("kim")
    assert name.get() == "kim", "what a thread changes stays in its own copy"


@virtual
@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
async def test_what_the_function_raises_reaches_the_run_and_not_the_threads_hook(error: BaseException) -> None:
    def fail() -> None:
        raise error

    outcome = await threaded(fail).outcome()
    assert isinstance(outcome, Failed)
    assert outcome.error is error


@virtual
async def test_stop_iteration_which_no_future_can_carry_is_told_as_another_error() -> None:
    outcome = await threaded(lambda: next(iter(()))).outcome()
    assert isinstance(outcome, Failed)
    assert str(outcome.error) == "the function raised StopIteration()"


@virtual
async def test_a_stop_flags_the_thread_and_waits_for_it() -> None:
    blocking = Blocking()
    piece = threaded(blocking)
    piece.work.on_flag = blocking.gate.set
    await started(blocking)
    piece.work.stop()
    assert isinstance(await piece.outcome(), Returned)
    assert [rung for rung, _ in piece.rungs] == ["flag"]


@virtual
async def test_a_thread_that_does_not_look_is_abandoned_with_its_stack() -> None:
    blocking = Blocking()
    piece = threaded(blocking)
    await started(blocking)
    piece.work.stop()
    outcome = await piece.outcome()
    assert isinstance(outcome, Abandoned)
    assert piece.rungs == [("flag", 0.0), ("abandon", 0.25)]
    orphan = outcome.orphan
    assert orphan.thread is piece.work.thread
    assert "self.gate.wait(30)" in orphan.stack()
    blocking.gate.set()
    await asyncio.to_thread(orphan.thread.join)  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]  # just seen
    await settled()
    assert orphan.result == "safepoint:test/piece"
    assert orphan.stack() == ""


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_that_outlives_its_loop_tells_its_orphan(fails: bool) -> None:
    gate, pieces = threading.Event(), list[Piece]()
    error = ValueError("late")

    def block() -> str:
        assert gate.wait(30)
        if fails:
            raise error
        return "late"

    async def main() -> None:
        piece = threaded(block)
        pieces.append(piece)
        await settled()
        piece.work.stop(force=True)
        await piece.outcome()

    asyncio.run(main())
    work = pieces[0].work
    assert work.orphan is not None
    assert work.thread is not None
    assert work.orphan.still_running
    gate.set()
    work.thread.join()
    assert not work.orphan.still_running
    assert (work.orphan.result, work.orphan.error) == ((None, error) if fails else ("late", None))


@virtual
async def test_the_waiting_task_may_be_cancelled_while_the_thread_goes_on() -> None:
    blocking = Blocking()
    piece = threaded(blocking)
    await started(blocking)
    assert piece.work.task is not None
    piece.work.task.cancel()
    outcome = await piece.outcome()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, asyncio.CancelledError)
    blocking.gate.set()
    assert piece.work.thread is not None
    await asyncio.to_thread(piece.work.thread.join)
    await settled()


@virtual
async def test_a_thread_that_has_ended_is_waited_for_no_more() -> None:
    blocking = Blocking()
    piece = threaded(blocking)
    await started(blocking)
    blocking.gate.set()
    await piece.outcome()
    await passes(5)


@virtual
async def test_a_thread_whose_waiting_was_cut_ends_in_silence() -> None:
    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    blocking = Blocking()

    def body() -> object:
        return in_thread(piece.work, blocking, current_clock())

    piece = Piece(body)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # awaitable
    await started(blocking)
    piece.work.stop()
    assert await piece.outcome() == Cut()
    blocking.gate.set()
    thread = piece.work.thread
    assert thread is not None
    await asyncio.to_thread(thread.join)
    await settled()
    assert errors == []


# -- computing beside the loop -----------------------------------------------------------------------------------------


@virtual
async def test_a_long_computation_runs_in_a_daemon_thread_and_the_clock_waits_for_it() -> None:
    def compute() -> tuple[str, bool]:
        thread = threading.current_thread()
        return thread.name, thread.daemon

    assert await off_loop(compute, "sum") == ("safepoint:sum", True)
    await passes(1)  # time would stand still while the clock still counted it


@virtual
async def test_what_a_long_computation_raises_reaches_its_caller() -> None:
    def fails() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        await off_loop(fails, "search")
