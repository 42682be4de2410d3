"""Every arrow of the drawing in `work.py`: how a piece of work ends, is stopped, or is abandoned."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import NoReturn

import pytest

from safepoint._core import work
from safepoint._core.ladder import Ladder, Rung, StopPolicy, WorkKind
from safepoint._core.orphans import disown
from safepoint._core.work import Abandoned, Cut, Failed, NeverRan, Returned, WorkState
from tests.core.piece import Piece, for_ever, settled, stubborn
from tests.virtual import now, passes, rounds, virtual

EVERY_MANNER = [StopPolicy(kind, finish=finish) for kind in WorkKind for finish in (False, True)]


async def raises(error: BaseException) -> NoReturn:
    raise error


def test_a_state_is_called_as_in_the_drawing() -> None:
    drawing = (work.__doc__ or "").split()
    assert [state for state in WorkState if state.upper() not in drawing] == []


# -- by itself ---------------------------------------------------------------------------------------------------------


@virtual
async def test_work_waits_then_runs_then_ends_with_its_value() -> None:
    async def answer() -> int:
        assert piece.work.state is WorkState.RUNNING
        return 42

    piece = Piece(answer)
    assert (piece.work.state, piece.work.ended) == (WorkState.WAITING, False)
    assert await piece.outcome() == Returned(42)
    assert piece.work.state is WorkState.ENDED
    assert piece.work.ended
    assert (piece.rungs, piece.work.rung, piece.work.until) == ([], None, None)


@virtual
@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()]
)
async def test_whatever_it_raises_by_itself_is_a_failure_and_stays_inside_its_task(error: BaseException) -> None:
    piece = Piece(lambda: raises(error))
    outcome = await piece.outcome()
    assert isinstance(outcome, Failed)
    assert outcome.error is error or isinstance(outcome.error.__cause__, StopIteration)
    assert piece.work.state is WorkState.ENDED
    assert piece.work.task is not None
    assert piece.work.task.exception() is None


@virtual
async def test_work_that_ended_is_not_stopped_any_more() -> None:
    piece = Piece(lambda: passes(0, "done"))
    await piece.outcome()
    piece.work.stop()
    piece.work.stop(force=True)
    assert piece.work.state is WorkState.ENDED
    assert piece.work.outcome == Returned("done")
    assert piece.rungs == []


# -- before the first step ---------------------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("stop_policy", EVERY_MANNER)
@pytest.mark.parametrize("force", [False, True])
async def test_work_that_is_stopped_before_its_first_step_never_runs_a_line(
    stop_policy: StopPolicy, force: bool
) -> None:
    ran: list[bool] = []

    async def work() -> None:
        ran.append(True)

    piece = Piece(work, stop_policy=stop_policy)
    piece.work.stop(force=force)
    assert await piece.outcome() == NeverRan()
    await passes(20)
    assert ran == []
    assert piece.work.state is WorkState.ENDED
    assert piece.ends == [0.0]


# -- stopped while it runs ---------------------------------------------------------------------------------------------


@virtual
async def test_a_task_is_cancelled_at_its_await() -> None:
    piece = Piece(for_ever)
    await settled()
    piece.work.stop()
    assert piece.work.state is WorkState.STOPPING
    assert await piece.outcome() == Cut()
    assert piece.rungs == [("cancel", 0.0)]
    assert piece.ends == [0.0]


@virtual
async def test_it_may_clean_up_within_its_grace() -> None:
    cleaned: list[float] = []

    async def work() -> None:
        try:
            await for_ever()
        finally:
            await passes(2.5)
            cleaned.append(piece.age)

    piece = Piece(work, stop_policy=StopPolicy(grace=3.0))
    await passes(5)
    piece.work.stop()
    assert piece.work.until == now() + 3.0
    assert await piece.outcome() == Cut()
    assert cleaned == [7.5]
    assert piece.work.until is None


@virtual
async def test_a_value_that_it_returns_within_its_grace_is_kept() -> None:
    async def work() -> str:
        try:
            await for_ever()
        except asyncio.CancelledError:
            await passes(0.5)
        return "saved"

    piece = Piece(work)
    await settled()
    piece.work.stop()
    assert await piece.outcome() == Returned("saved")
    assert piece.ends == [0.5]


@virtual
async def test_another_error_after_the_cancel_is_attached_to_the_cut() -> None:
    async def work() -> None:
        try:
            await for_ever()
        except asyncio.CancelledError:
            raise ValueError("half written") from None

    piece = Piece(work)
    await settled()
    piece.work.stop()
    outcome = await piece.outcome()
    assert isinstance(outcome, Cut)
    assert isinstance(outcome.error, ValueError)


@virtual
async def test_a_result_that_is_already_on_its_way_is_kept() -> None:
    gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def work() -> str:
        try:
            return await gate
        except asyncio.CancelledError:
            return gate.result()

    piece = Piece(work)
    await settled()
    gate.set_result("just in time")
    piece.work.stop()
    assert await piece.outcome() == Returned("just in time")


@virtual
async def test_stopping_twice_does_not_cancel_twice() -> None:
    cancels = 0

    async def work() -> None:
        nonlocal cancels
        try:
            await for_ever()
        except asyncio.CancelledError:
            cancels += 1
            await passes(0.5)
            raise

    piece = Piece(work)
    await settled()
    piece.work.stop()
    await settled()
    piece.work.stop()
    assert await piece.outcome() == Cut()
    assert cancels == 1
    assert piece.rungs == [("cancel", 0.0)]


@virtual
async def test_a_thread_is_flagged_and_a_child_is_asked_but_neither_is_cancelled() -> None:
    for kind, rung, flags in ((WorkKind.THREAD, "flag", 1), (WorkKind.CHILD, "ask", 0)):
        gate = asyncio.Event()

        async def work(gate: asyncio.Event = gate) -> str:
            await gate.wait()
            return "left by itself"

        piece = Piece(work, stop_policy=StopPolicy(kind))
        await settled()
        piece.work.stop()
        await settled()
        assert piece.rungs == [(rung, 0.0)]
        assert piece.flags == flags
        gate.set()
        assert await piece.outcome() == Returned("left by itself")


@virtual
async def test_work_that_is_to_finish_is_left_alone_for_its_grace_and_then_cancelled() -> None:
    piece = Piece(for_ever, stop_policy=StopPolicy(finish=True, grace=4.0))
    await passes(1)
    assert (piece.work.rung, piece.work.rung_since) == (None, piece.began)
    piece.work.stop()
    assert (piece.work.rung, piece.work.rung_since) == (Rung.FINISH, piece.began + 1)
    assert await piece.outcome() == Cut()
    assert (piece.work.rung, piece.work.rung_since) == (Rung.CANCEL, piece.began + 5)
    assert piece.rungs == [("finish", 1.0), ("cancel", 5.0)]
    assert piece.ends == [5.0]


@virtual
async def test_work_that_finishes_in_time_hears_nothing_of_the_stop() -> None:
    piece = Piece(lambda: passes(3, "whole"), stop_policy=StopPolicy(finish=True, grace=4.0))
    await settled()
    piece.work.stop()
    assert await piece.outcome() == Returned("whole")
    assert piece.rungs == [("finish", 0.0)]
    assert piece.ends == [3.0]


# -- abandoned ---------------------------------------------------------------------------------------------------------


@virtual
async def test_what_does_not_stop_is_abandoned_at_the_end_of_its_plan() -> None:
    piece = Piece(stubborn(60))
    await passes(2)
    piece.work.stop()
    outcome = await piece.outcome()
    assert isinstance(outcome, Abandoned)
    assert piece.work.state is WorkState.ABANDONED
    assert piece.rungs == [("cancel", 2.0), ("abandon", 3.0)]
    assert piece.ends == [3.0]
    orphan = outcome.orphan
    assert (orphan.name, orphan.path, orphan.still_running) == ("piece", "test/piece", True)
    assert piece.work.task not in asyncio.all_tasks(), "asyncio.run must not wait for it"
    await passes(58)
    assert (orphan.still_running, orphan.result) == (False, "late")
    assert piece.work.outcome is outcome, "the outcome stays what it was"
    assert piece.ends == [3.0]


@virtual
async def test_a_task_is_cancelled_once_more_before_it_is_abandoned_and_what_ends_then_has_stopped() -> None:
    cancels: list[float] = []

    async def work() -> None:
        for _ in range(2):
            try:
                await for_ever()
            except asyncio.CancelledError:
                cancels.append(piece.age)

    piece = Piece(work)
    await settled()
    piece.work.stop()
    outcome = await piece.outcome()
    assert outcome == Returned(None)
    assert cancels == [0.0, 1.0]
    assert [rung for rung, _ in piece.rungs] == ["cancel"]


@virtual
async def test_work_that_ends_in_the_moment_in_which_it_would_be_abandoned_is_no_orphan() -> None:
    piece = Piece(for_ever, stop_policy=StopPolicy(WorkKind.THREAD, grace=0.0))
    piece.work.stop()
    assert piece.work.task is not None
    piece.work.task.cancel()  # before its first step, so that only the end of the task tells of it
    assert isinstance(await piece.outcome(), NeverRan)
    assert piece.work.orphan is None


@virtual
@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("force", [False, True])
async def test_a_task_that_ends_some_turns_of_the_loop_after_its_last_cancel_is_no_orphan(
    turns: int, force: bool
) -> None:
    async def work() -> None:
        try:
            await for_ever()
        finally:
            try:
                await for_ever()
            finally:
                await rounds(turns)

    piece = Piece(work)
    await settled()
    piece.work.stop(force=force)
    outcome = await piece.outcome()
    assert isinstance(outcome, Cut if turns <= 4 else Abandoned)
    assert piece.ends == [0.0 if force else 1.0]
    await settled()


@virtual
async def test_a_thread_or_a_child_that_is_abandoned_is_not_cancelled() -> None:
    for kind, seconds in ((WorkKind.THREAD, 0.25), (WorkKind.CHILD, 10.0)):
        gate = asyncio.Event()

        async def work(gate: asyncio.Event = gate) -> str:
            await gate.wait()
            return "late"

        piece = Piece(work, stop_policy=StopPolicy(kind))
        await settled()
        piece.work.stop()
        outcome = await piece.outcome()
        assert isinstance(outcome, Abandoned)
        assert piece.ends == [seconds]
        gate.set()
        await settled()
        assert (outcome.orphan.result, outcome.orphan.error) == ("late", None)


@virtual
async def test_a_late_error_goes_to_the_orphan() -> None:
    error = ValueError("late")

    async def work() -> None:
        await stubborn(5)()
        raise error

    piece = Piece(work)
    await settled()
    piece.work.stop()
    outcome = await piece.outcome()
    assert isinstance(outcome, Abandoned)
    await passes(5)
    assert outcome.orphan.error is error
    assert outcome.orphan.result is None


@virtual
async def test_stopping_what_is_abandoned_does_nothing() -> None:
    piece = Piece(stubborn(5))
    await settled()
    piece.work.stop()
    await piece.outcome()
    piece.work.stop(force=True)
    assert [rung for rung, _ in piece.rungs] == ["cancel", "abandon"]
    await passes(5)


# -- force -------------------------------------------------------------------------------------------------------------


@virtual
async def test_force_abandons_at_once_what_does_not_stop_at_once() -> None:
    piece = Piece(stubborn(5), stop_policy=StopPolicy(finish=True, grace=5.0))
    await settled()
    piece.work.stop(force=True)
    assert isinstance(await piece.outcome(), Abandoned)
    assert piece.rungs == [("cancel", 0.0), ("abandon", 0.0)]
    await passes(5)


@virtual
async def test_force_still_lets_a_polite_task_end() -> None:
    piece = Piece(for_ever)
    await settled()
    piece.work.stop(force=True)
    assert await piece.outcome() == Cut()


@virtual
async def test_force_cuts_short_a_grace_that_is_running() -> None:
    piece = Piece(stubborn(30), stop_policy=StopPolicy(finish=True, grace=5.0))
    await settled()
    piece.work.stop()
    await passes(2)
    piece.work.stop(force=True)
    piece.work.stop(force=True)
    assert isinstance(await piece.outcome(), Abandoned)
    assert piece.rungs == [("finish", 0.0), ("cancel", 2.0), ("abandon", 2.0)]
    await passes(30)


@virtual
async def test_force_leaves_a_child_a_moment_to_record() -> None:
    piece = Piece(lambda: passes(0.9, "recorded"), stop_policy=StopPolicy(WorkKind.CHILD))
    await settled()
    piece.work.stop(force=True)
    assert await piece.outcome() == Returned("recorded")
    assert piece.ends == [0.9]


# -- a limit of its own ------------------------------------------------------------------------------------------------


@virtual
async def test_work_with_a_limit_is_stopped_by_itself() -> None:
    piece = Piece(for_ever, limit=2.0)
    assert await piece.outcome() == Cut()
    assert piece.rungs == [("cancel", 2.0)]


@virtual
async def test_work_that_has_reached_its_limit_may_still_clean_up() -> None:
    async def work() -> None:
        try:
            await for_ever()
        finally:
            await passes(0.9)

    piece = Piece(work, limit=2.0)
    assert await piece.outcome() == Cut()
    assert piece.ends == [2.9]


@virtual
async def test_a_limit_does_not_touch_work_that_ended_before_it() -> None:
    piece = Piece(lambda: passes(1, "done"), limit=2.0)
    assert await piece.outcome() == Returned("done")
    await passes(5)
    assert piece.rungs == []


@virtual
async def test_of_two_limits_the_earlier_counts_and_the_later_word_says_how() -> None:
    piece = Piece(stubborn(9), limit=2.0)
    begun = asyncio.get_running_loop().time()
    piece.work.stop_at(begun + 5.0)
    piece.work.stop_at(begun + 1.0)
    piece.work.stop_at(begun + 3.0, force=True)
    assert isinstance(await piece.outcome(), Abandoned)
    assert piece.rungs == [("cancel", 1.0), ("abandon", 1.0)]


@virtual
async def test_a_limit_does_nothing_to_work_that_has_ended() -> None:
    piece = Piece(lambda: passes(1, "done"))
    await piece.outcome()
    piece.work.stop_at(asyncio.get_running_loop().time() + 2.0)
    await passes(5)
    assert piece.rungs == []


@virtual
async def test_no_plan_takes_longer_than_the_cap_whatever_is_in_it() -> None:
    ladder = Ladder(task=2.0, cap=3.0)

    async def work() -> None:
        await stubborn(30)()

    piece = Piece(work, stop_policy=StopPolicy(finish=True, grace=2.5), ladder=ladder)
    await settled()
    piece.work.shield(3.0)
    piece.work.stop()
    assert isinstance(await piece.outcome(), Abandoned)
    assert piece.ends == [3.0]
    await passes(30)


# -- processes ---------------------------------------------------------------------------------------------------------

PROCESS = StopPolicy(WorkKind.PROCESS)


class Processes:
    """Ends a while after it was asked to, and after it was killed; None is never."""

    pid: int | None = None

    def __init__(self, *, polite: float | None, mortal: float | None = 0.0) -> None:
        self.told: list[str] = []
        self._polite, self._mortal = polite, mortal
        self._gone = asyncio.Event()

    def terminate(self) -> None:
        self.told.append("term")
        self._end_in(self._polite)

    def kill(self) -> None:
        self.told.append("kill")
        self._end_in(self._mortal)

    def _end_in(self, seconds: float | None) -> None:
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, self._gone.set)

    async def run(self) -> str:
        await self._gone.wait()
        return "all gone"


def begun(processes: Processes, stop_policy: StopPolicy = PROCESS) -> Piece:
    piece = Piece(processes.run, stop_policy=stop_policy)
    piece.work.killable = processes
    return piece


@virtual
async def test_a_process_that_ends_when_asked_is_not_killed() -> None:
    processes = Processes(polite=0.5)
    piece = begun(processes)
    await settled()
    piece.work.stop()
    assert await piece.outcome() == Returned("all gone")
    assert (processes.told, piece.rungs, piece.age) == (["term"], [("term", 0.0)], 0.5)


@virtual
async def test_a_process_that_does_not_end_when_asked_is_killed() -> None:
    processes = Processes(polite=None)
    piece = begun(processes)
    await settled()
    piece.work.stop()
    assert await piece.outcome() == Returned("all gone")
    assert (processes.told, piece.rungs, piece.age) == (["term", "kill"], [("term", 0.0), ("kill", 2.0)], 2.0)


@virtual
async def test_force_kills_a_process_at_once_also_when_it_was_asked_before() -> None:
    for stops, told in (([True], ["kill"]), ([False, True], ["term", "kill"])):
        processes = Processes(polite=None, mortal=0.1)
        piece = begun(processes)
        await settled()
        for force in stops:
            piece.work.stop(force=force)
        assert await piece.outcome() == Returned("all gone")
        assert (processes.told, piece.age) == (told, 0.1)


@virtual
async def test_a_process_that_cannot_be_killed_is_abandoned_and_reported() -> None:
    processes = Processes(polite=None, mortal=5.0)
    piece = begun(processes)
    await settled()
    piece.work.stop()
    outcome = await piece.outcome()
    assert isinstance(outcome, Abandoned)
    assert piece.rungs == [("term", 0.0), ("kill", 2.0), ("abandon", 3.0)]
    await passes(20)
    assert (outcome.orphan.still_running, outcome.orphan.result) == (False, "all gone")


@virtual
async def test_before_it_has_a_process_the_task_itself_is_cancelled() -> None:
    piece = Piece(for_ever, stop_policy=PROCESS)
    await settled()
    piece.work.stop()
    assert await piece.outcome() == Cut()
    assert piece.rungs == [("term", 0.0)]


# -- at the edges ------------------------------------------------------------------------------------------------------


@virtual
async def test_work_that_may_not_start_never_runs_a_line() -> None:
    piece = Piece(lambda: raises(AssertionError("it ran")))
    piece.work.may_start = lambda: False
    assert await piece.outcome() == NeverRan()


@virtual
async def test_work_that_raises_generator_exit_by_itself_has_failed() -> None:
    outcome = await Piece(lambda: raises(GeneratorExit())).outcome()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, GeneratorExit)


def test_work_that_the_interpreter_tidies_up_is_told_to_nobody() -> None:
    async def begin() -> Piece:
        piece = Piece(for_ever)
        await settled()
        return piece

    loop = asyncio.new_event_loop()
    piece = loop.run_until_complete(begin())
    loop.close()
    task = piece.work.task
    assert task is not None
    disown(task)
    coroutine = task.get_coro()
    assert isinstance(coroutine, Coroutine)
    coroutine.close()
    assert (piece.work.outcome, piece.ends) == (None, [])


@virtual
async def test_a_timer_of_an_earlier_rung_does_not_hurry_the_next() -> None:
    async def work() -> None:
        piece.work.shield(1.0)
        await passes(0.5)
        piece.work.unshield()
        await stubborn(30)()

    piece = Piece(work)
    await settled()
    piece.work.stop()
    assert isinstance(await piece.outcome(), Abandoned)
    assert piece.rungs == [("shielded", 0.0), ("cancel", 0.5), ("abandon", 1.5)]
    await passes(30)


@virtual
async def test_work_that_has_finished_in_time_is_pushed_no_further() -> None:
    piece = Piece(lambda: passes(1, "done"), stop_policy=StopPolicy(finish=True, grace=2.0))
    await settled()
    piece.work.stop()
    assert await piece.outcome() == Returned("done")
    await passes(20)
    assert piece.rungs == [("finish", 0.0)]
