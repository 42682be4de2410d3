"""Faults: each strikes where its part of the world outside is waited for, is counted if it arrived, and finds bugs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import pytest

from safepoint import Agent, RunFailed, ToolContext, tool
from safepoint.agent.model import Chunk, Finish, Model, ModelRequest, TextDelta
from safepoint.errors import ModelUnavailable, StoreError
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import (
    Injection,
    Moment,
    Report,
    ScriptedModel,
    Shot,
    call,
    check_cancellable,
    clock_jump,
    disconnect,
    model_error,
    must_return,
    pass_time,
    say,
    store_error,
    tool_error,
)
from safepoint.testing.models import Act, Player
from safepoint.testing.subject import NullSubject
from tests.injection.parts import SlowStore, StepModel

A_MOMENT = 0.01


def check(scenario: Callable[[], Coroutine[Any, Any, object]], *kinds: Injection, **options: Any) -> Report:
    return check_cancellable(scenario, kinds=kinds, **options)


def problems_of(report: Report) -> str:
    return "\n".join(problem for failure in report.failures for problem in failure.problems)


@tool
async def work(x: int = 0) -> str:
    """Wait twice."""
    await pass_time(A_MOMENT)
    await asyncio.sleep(0)
    return f"done {x}"


@tool
def count() -> int:
    """Run in a thread."""
    return 1


def worker() -> Agent:
    model = StepModel([say("I work", pieces=2), call("work", x=1), call("count")], say("done"))
    return Agent("worker", model=model, tools=[work, count])


async def one_run() -> None:
    await worker().run("go")


# --- where they strike ----------------------------------------------------------------------------------------------


def test_a_model_error_strikes_while_the_model_connects_and_while_it_speaks() -> None:
    report = check(one_run, model_error())
    report.raise_for_failures()
    # Two calls connect, and say three pieces; each is one bare wait.
    assert (report.injections, report.idle, report.missed) == (5, 0, [])
    assert {case.file.rpartition("/")[2] for case in report.cases} == {"models.py"}


def test_a_model_that_fails_before_its_first_word_is_tried_again() -> None:
    ends: list[str] = []

    async def scenario() -> None:
        try:
            ends.append((await worker().run("go")).text)
        except RunFailed as failed:
            ends.append(f"{failed.result.stop_reason}: {failed.__cause__!r}")

    check(scenario, model_error(ModelUnavailable("busy"))).raise_for_failures()
    assert set(ends) == {"done", "error: ModelUnavailable('busy')"}


def test_a_tool_error_strikes_in_the_tool_s_own_code_and_goes_to_the_model() -> None:
    told: list[str | None] = []

    async def scenario() -> None:
        told.append((await worker().run("go")).ledger[0].error)

    report = check(scenario, tool_error(LookupError("no such thing")))
    report.raise_for_failures()
    assert report.injections == 3, "blocked and woken at the first wait, blocked at the bare second one"
    assert {case.file for case in report.cases} == {__file__}
    assert [error for error in told if error] == ["LookupError: no such thing"] * 3


async def in_a_session() -> None:
    """Whatever fails, the session can be used again, and others can have it."""
    store = SlowStore(MemoryStore())
    with suppress(StoreError):
        session = await Session.create(store, "s")
        with suppress(RunFailed):
            await worker().run("go", session=session)
        again = await Session.load(store, "s")
        await worker().run("again", session=again if again.messages else session)


@pytest.mark.parametrize("error", [StoreError("gone"), OSError("disk")])
def test_a_store_error_strikes_wherever_a_session_waits_for_its_store(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    report = check(in_a_session, store_error(error))
    report.raise_for_failures()
    assert report.injections >= 40
    assert report.missed == []
    assert {case.file.rpartition("/")[2] for case in report.cases} == {"parts.py"}, "in the store, and nowhere else"
    assert re.search(r"the end of the run \w+ could not be stored, and is tried again: .*(gone|disk)", caplog.text)


async def read() -> None:
    async with worker().start("go") as run:
        async for _ in run.events():
            await pass_time(A_MOMENT)


async def streamed() -> None:
    async with worker().stream("go") as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("scenario", [read, streamed])
def test_a_reader_that_goes_away_leaves_nothing_behind(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    report = check(scenario, disconnect())
    report.raise_for_failures()
    assert report.injections > 5
    assert report.idle == 0


def test_a_stream_whose_reader_goes_away_is_stopped_as_disconnected() -> None:
    sources: list[str | None] = []

    async def scenario() -> None:
        events = worker().stream("go")
        try:
            async for _ in events:
                pass
        except ConnectionResetError:
            cancellation = events.run.result.cancellation
            sources.append(cancellation.reason.source if cancellation is not None else None)
            raise

    check(scenario, disconnect(), moments=[Moment.BLOCKED]).raise_for_failures()
    assert set(sources[:-1]) == {"disconnect"}
    assert sources[-1] is None, "the last one waited for the end, and that had come"


def test_readers_in_a_task_group_may_take_the_group_down() -> None:
    async def scenario() -> None:
        async with worker().start("go") as run, asyncio.TaskGroup() as group:

            async def follow() -> None:
                async for _ in run.events():
                    pass

            group.create_task(follow())

    report = check(scenario, disconnect())
    report.raise_for_failures()
    assert report.injections > 5


def test_all_kinds_at_once_are_counted_apart() -> None:
    async def scenario() -> None:
        session = await Session.create(SlowStore(MemoryStore()), "s")
        async with worker().start("go", session=session) as run:
            async for _ in run.events():
                pass

    kinds = [model_error(), tool_error(), store_error(), disconnect(), clock_jump(100)]
    report = check(scenario, *kinds)
    report.raise_for_failures()
    assert {case.kind for case in report.cases} == {kind.name for kind in kinds}
    assert report.placeless == []


# --- what is counted ------------------------------------------------------------------------------------------------


def test_a_kind_without_a_place_is_reported_and_not_counted() -> None:
    report = check(one_run, store_error(), disconnect(), tool_error())
    assert report.placeless == ["disconnect(ConnectionResetError('injected'))", "store_error(StoreError('injected'))"]
    assert "no place for store_error(StoreError('injected'))" in str(report)
    assert {case.kind for case in report.cases} == {"tool_error(ConnectionError('injected'))"}


def test_a_fault_that_a_cancel_came_before_is_not_counted_and_the_cancel_is_not_lost() -> None:
    cuts: list[str] = []

    async def waits() -> None:
        try:
            await pass_time(1)
        except BaseException as error:
            cuts.append(type(error).__name__)
            raise

    async def scenario() -> None:
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    def fire(shot: Shot) -> bool:
        if not shot.point.task.endswith(".waits"):
            return False
        return shot.throw(LookupError())

    late = Injection("late", fire, must_return)
    report = check(scenario, late, moments=[Moment.WOKEN], subject=NullSubject())
    report.raise_for_failures()
    assert report.injections == 0
    assert set(cuts) == {"CancelledError"}


def test_a_cancel_that_comes_after_a_fault_was_thrown_is_not_lost_either() -> None:
    cuts: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def waits() -> None:
        try:
            await pass_time(1)
        except BaseException as error:
            cuts.append(type(error).__name__)
            raise

    async def scenario() -> None:
        tasks[:] = [asyncio.create_task(waits())]
        with suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)

    def fire(shot: Shot) -> bool:
        if not shot.point.task.endswith(".waits"):
            return False
        thrown = shot.throw(LookupError())
        tasks[0].cancel()
        return thrown

    report = check(scenario, Injection("both", fire, must_return), moments=[Moment.BLOCKED], subject=NullSubject())
    report.raise_for_failures()
    assert report.injections == 0
    assert "LookupError" not in cuts
    assert cuts.count("CancelledError") == 1


def test_a_task_that_received_a_fault_does_not_count_as_cancelled() -> None:
    counts: list[int] = []

    async def scenario() -> None:
        with suppress(LookupError):
            await pass_time(1)
        task = asyncio.current_task()
        assert task is not None
        counts.append(task.cancelling())
        await pass_time(1)

    fault = Injection("fault", lambda shot: shot.throw(LookupError()), must_return)
    report = check(scenario, fault, subject=NullSubject())
    assert [failure.problems[0][:31] for failure in report.failures] == ["the scenario raised LookupError"] * 2
    assert report.injections == 4
    assert set(counts) == {0}


# --- what they find -------------------------------------------------------------------------------------------------


class Forgetful(Player):
    """A model that gives its stream back when it is cut, and forgets to when its provider fails."""

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        return self._open(request)

    @asynccontextmanager
    async def _open(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk]]:
        self.open_streams += 1
        try:
            yield self._speak()
        except OSError:
            raise
        except BaseException:
            self.open_streams -= 1
            raise
        else:
            self.open_streams -= 1

    async def _speak(self) -> AsyncIterator[Chunk]:
        await pass_time(A_MOMENT)
        yield TextDelta("hello")
        yield Finish("end_turn")


class Wrapped:
    """A model around another one; it says how many streams the inner one has open."""

    def __init__(self, model: Forgetful) -> None:
        self.name = model.name
        self.stream = model.stream
        self._model = model

    @property
    def open_streams(self) -> int:
        return self._model.open_streams


def bare(model: Forgetful) -> Forgetful:
    return model


@pytest.mark.parametrize("wrap", [bare, Wrapped])
def test_a_model_that_leaves_its_stream_open_when_it_fails_is_found(wrap: Callable[[Forgetful], Model]) -> None:
    async def scenario() -> None:
        await Agent("one", model=wrap(Forgetful())).run("go")

    check_cancellable(scenario).raise_for_failures()
    report = check(scenario, model_error(ConnectionResetError()))
    assert report.injections == len(report.failures) > 0
    assert "1 streams of the model 'scripted' are still open" in problems_of(report)


class NeverCloses(ScriptedModel):
    """A model whose stream is opened and kept: only the end of the loop would close it."""

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        return self._kept(super().stream(request))

    @asynccontextmanager
    async def _kept(
        self, stream: AbstractAsyncContextManager[AsyncIterator[Chunk]]
    ) -> AsyncGenerator[AsyncIterator[Chunk]]:
        self.kept = stream
        yield await stream.__aenter__()


def test_a_stream_that_only_the_end_of_the_loop_would_close_is_found() -> None:
    async def scenario() -> None:
        await Agent("one", model=NeverCloses(say("hello"))).run("go")

    report = check_cancellable(scenario)
    assert "1 streams of the model 'scripted' are still open" in problems_of(report)


def test_a_permit_that_only_an_error_loses_is_found_with_the_line_and_how_to_see_it_again() -> None:
    held = 0

    @tool
    async def takes() -> str:
        """Give a permit back, unless something unforeseen happens."""
        nonlocal held
        held += 1
        try:
            await pass_time(1)
        except asyncio.CancelledError:
            held -= 1
            raise
        held -= 1
        return "ok"

    async def scenario() -> None:
        await Agent("one", model=StepModel(call("takes"), say("done")), tools=[takes]).run("go")

    def came_back() -> None:
        nonlocal held
        lost, held = held, 0
        assert lost == 0, "the permit was lost"

    check_cancellable(scenario, oracles=[came_back]).raise_for_failures()
    report = check(scenario, tool_error(), oracles=[came_back])
    assert len(report.failures) == report.injections == 2
    assert problems_of(report).count("oracle came_back: the permit was lost") == 2
    first = report.failures[0]
    assert re.search(r"landed at tests/testing/test_faults\.py:\d+ in .*takes", str(first))
    assert "kinds=[tool_error(ConnectionError('injected'))]" in first.again
    id = first.again.partition('only="')[2].rstrip('")')
    again = check(scenario, tool_error(), oracles=[came_back], only=id)
    assert [failure.problems for failure in again.failures] == [first.problems]


def test_an_error_of_a_tool_that_comes_out_of_the_run_is_found() -> None:
    async def scenario() -> None:
        result = await Agent("one", model=StepModel(call("work"), say("done")), tools=[work]).run("go")
        if result.ledger[0].error:
            raise LookupError(result.ledger[0].error)

    assert "the scenario raised LookupError" in problems_of(check(scenario, tool_error()))


def test_what_goes_on_for_ever_after_a_fault_is_left_over_and_a_short_recovery_is_not() -> None:
    seconds = 1.0

    async def scenario() -> None:
        async def recover() -> None:
            await pass_time(seconds)

        @tool
        async def breaks(ctx: ToolContext) -> None:
            """Recover in the background."""
            try:
                await pass_time(A_MOMENT)
            except ConnectionError:
                left.append(asyncio.create_task(recover()))

        await Agent("one", model=StepModel(call("breaks"), say("done")), tools=[breaks]).run("go")

    left: list[asyncio.Task[None]] = []
    check(scenario, tool_error()).raise_for_failures()
    seconds = 1e9
    assert "a task is left" in problems_of(check(scenario, tool_error()))


@pytest.mark.parametrize("make", [model_error, tool_error, store_error, disconnect])
def test_a_fault_is_made_of_an_exception(make: Callable[[Any], Injection]) -> None:
    with pytest.raises(ValueError, match=r"pass an exception, as in \w+\(ConnectionError\('reset'\)\)"):
        make(KeyboardInterrupt())
    assert make(LookupError("x")).name == f"{make.__name__}(LookupError('x'))"


def test_acts_of_a_scripted_model_wait_once_before_their_first_word() -> None:
    acts: list[Act] = [say("hello")]

    async def scenario() -> None:
        await Agent("one", model=ScriptedModel(acts), retries=0).run("go")

    report = check(scenario, model_error())
    report.raise_for_failures()
    assert report.injections == 2
