"""Watching changes nothing, and sees everything. Each test of the first part runs on a plain and on a watched loop."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any, TypeVar

import anyio
import anyio.abc
import pytest

from safepoint.testing.clock import VirtualLoop
from safepoint.testing.frames import Owner, chain, landed_at, owner_of, timed_by
from safepoint.testing.points import Aim, Moment, Watch, WatchedLoop
from safepoint.testing.virtual_sleep import pass_time

T = TypeVar("T")


def watched(watch: Watch | None = None) -> WatchedLoop:
    return WatchedLoop(watch or Watch("main"), complaints=[], max_rounds=10_000)


def run_on(loop: Callable[[], asyncio.AbstractEventLoop], main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)


def record(main: Callable[[], Coroutine[Any, Any, object]], aim: Aim | None = None) -> Watch:
    watch = Watch("main", aim)
    loop = watched(watch)
    try:
        loop.run_until_complete(loop.create_task(main()))
    except asyncio.CancelledError:
        pass
    finally:
        watch.closed = True
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    return watch


def line_of(function: Callable[..., object], text: str) -> int:
    """The line of `function` that contains `text`."""
    lines, first = inspect.getsourcelines(function)
    return next(first + number for number, line in enumerate(lines) if text in line)


both_loops = pytest.mark.parametrize("loop", [VirtualLoop, watched], ids=["plain", "watched"])


@both_loops
def test_a_task_shows_its_own_coroutine(loop: Callable[[], VirtualLoop]) -> None:
    async def child() -> None:
        await pass_time(1)

    async def main() -> None:
        coro = child()
        task = asyncio.create_task(coro, name="a name")
        assert task.get_coro() is coro
        assert inspect.getcoroutinestate(coro) == inspect.CORO_CREATED
        await asyncio.sleep(0)
        assert inspect.getcoroutinestate(coro) == inspect.CORO_SUSPENDED
        assert [frame.f_code for frame in task.get_stack()] == [child.__code__]
        assert "child() running at" in repr(task)
        assert "name='a name'" in repr(task)
        await task

    run_on(loop, main())


@both_loops
def test_the_current_task_is_the_one_that_was_created(loop: Callable[[], VirtualLoop]) -> None:
    async def child() -> asyncio.Task[Any] | None:
        await asyncio.sleep(0)
        return asyncio.current_task()

    async def main() -> None:
        task = asyncio.create_task(child())
        assert await task is task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_on(loop, main())


@both_loops
def test_a_task_keeps_its_context(loop: Callable[[], VirtualLoop]) -> None:
    setting = contextvars.ContextVar("setting", default="unset")

    async def child(value: str) -> str:
        before = setting.get()
        setting.set(value)
        await asyncio.sleep(0)
        return f"{before}, then {setting.get()}"

    async def main() -> None:
        setting.set("parent's")
        empty = contextvars.Context()
        assert await asyncio.create_task(child("child's")) == "parent's, then child's"
        assert await asyncio.create_task(child("other"), context=empty) == "unset, then other"
        assert (setting.get(), empty[setting]) == ("parent's", "other")

    run_on(loop, main())


@both_loops
@pytest.mark.parametrize("value", [None, (1, 2), StopIteration(3), ValueError("a value, not raised")], ids=repr)
def test_a_task_returns_what_its_coroutine_returns(loop: Callable[[], VirtualLoop], value: object) -> None:
    async def child() -> object:
        await asyncio.sleep(0)
        return value

    async def main() -> object:
        return await asyncio.create_task(child())

    assert run_on(loop, main()) is value


@both_loops
def test_a_task_raises_what_its_coroutine_raises(loop: Callable[[], VirtualLoop]) -> None:
    async def child(error: BaseException) -> None:
        await asyncio.sleep(0)
        raise error

    async def main() -> None:
        error = LookupError("no such key")
        with pytest.raises(LookupError) as caught:
            await asyncio.create_task(child(error))
        assert caught.value is error
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.create_task(child(StopIteration()))

    run_on(loop, main())


@both_loops
def test_cancelling_is_counted_and_can_be_taken_back(loop: Callable[[], VirtualLoop]) -> None:
    async def child() -> list[object]:
        me = asyncio.current_task()
        assert me is not None
        seen: list[object] = []
        try:
            await pass_time(1)
        except asyncio.CancelledError as cancelled:
            seen += [cancelled.args, me.cancelling(), me.uncancel()]
        await pass_time(1)
        return seen

    async def main() -> list[object]:
        task = asyncio.create_task(child())
        await asyncio.sleep(0)
        task.cancel("why")
        return await task

    assert run_on(loop, main()) == [("why",), 1, 0]


@both_loops
def test_a_time_out_inside_a_cancel_stays_a_cancel(loop: Callable[[], VirtualLoop]) -> None:
    async def child() -> None:
        async with asyncio.timeout(5):
            await pass_time(10)

    async def main() -> bool:
        task = asyncio.create_task(child())
        asyncio.get_running_loop().call_later(5, task.cancel)
        await asyncio.wait([task])
        return task.cancelled()

    assert run_on(loop, main())


@both_loops
def test_a_task_cancelled_before_its_first_step_runs_no_line_and_warns_of_nothing(
    loop: Callable[[], VirtualLoop],
) -> None:
    ran: list[str] = []

    async def child() -> None:
        ran.append("first line")

    async def main() -> bool:
        task = asyncio.create_task(child())
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_on(loop, main())
        gc.collect()
    assert ran == []


@both_loops
def test_only_coroutines_can_be_tasks(loop: Callable[[], VirtualLoop]) -> None:
    wrong: Any = 3

    async def main() -> None:
        with pytest.raises(TypeError, match="a coroutine was expected"):
            asyncio.get_running_loop().create_task(wrong)

    run_on(loop, main())


@both_loops
def test_a_task_factory_of_the_user_s_is_used(loop: Callable[[], VirtualLoop]) -> None:
    class Mine(asyncio.Task[T]): ...

    async def child() -> str:
        await asyncio.sleep(0)
        return "done"

    async def main() -> str:
        def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
            return Mine(coro, loop=loop, **options)

        asyncio.get_running_loop().set_task_factory(factory)
        task = asyncio.create_task(child())
        assert type(task).__name__ == "Mine"
        await asyncio.sleep(0)
        coro: Any = task.get_coro()
        assert inspect.getcoroutinestate(coro) == inspect.CORO_SUSPENDED
        assert coro.__name__ == "child"
        return await task

    assert run_on(loop, main()) == "done"


@pytest.mark.python(3, 12)
@both_loops
def test_an_eager_task_runs_its_first_step_at_once(loop: Callable[[], VirtualLoop]) -> None:
    async def child() -> str:
        me = asyncio.current_task()
        await asyncio.sleep(0)
        assert asyncio.current_task() is me
        return "done"

    async def quick() -> int:
        return 3

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(vars(asyncio)["eager_task_factory"])
        me = asyncio.current_task()
        task = asyncio.create_task(quick())
        assert task.done()
        assert await asyncio.create_task(child()) == "done"
        assert asyncio.current_task() is me

    run_on(loop, main())


@both_loops
def test_an_anyio_task_group_works(loop: Callable[[], VirtualLoop]) -> None:
    ended: list[str] = []

    async def child(name: str, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await pass_time(1)
            ended.append(name)

    async def main() -> None:
        with anyio.move_on_after(10):
            async with anyio.create_task_group() as group:
                await group.start(child, "first")
                group.start_soon(child, "second")
                await pass_time(3)
                group.cancel_scope.cancel()

    run_on(loop, main())
    assert sorted(ended) == ["first", "second"]


class Waits:
    """An awaitable written by hand."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from pass_time(1).__await__()


async def ticks() -> AsyncIterator[int]:
    await pass_time(1)
    yield 1


async def reads_ticks() -> None:
    async for _ in ticks():
        pass


async def asks_for_a_tick() -> None:
    await anext(ticks(), None)


async def awaits_by_hand() -> None:
    await Waits()


@pytest.mark.parametrize(
    ("outer", "inner"),
    [(reads_ticks, ticks), (asks_for_a_tick, ticks), (awaits_by_hand, Waits.__await__)],
)
def test_a_chain_leads_through_everything_that_can_wait(
    outer: Callable[[], Coroutine[Any, Any, None]], inner: Callable[..., object]
) -> None:
    coro = outer()
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        task = runner.get_loop().create_task(coro)
        runner.run(asyncio.sleep(0))
        names = [place.function for place in chain(coro)]
        assert names == [outer.__qualname__, inner.__qualname__, "pass_time", "sleep"]
        task.cancel()


def test_a_reader_is_shown_the_innermost_line_outside_the_machinery() -> None:
    watch = record(reads_ticks)
    assert [(point.place.function, point.place.line) for point in watch.points] == [
        ("ticks", line_of(ticks, "await pass_time")),
    ]
    assert {place.function for place in watch.sites} == {"reads_ticks", "ticks", "pass_time", "sleep"}


def test_each_file_has_an_owner() -> None:
    owners = [
        owner_of(module.__file__ or "") for module in (asyncio, anyio, pytest, sys.modules[VirtualLoop.__module__])
    ]
    assert owners == [Owner.MACHINERY, Owner.MACHINERY, Owner.INSTALLED, Owner.SAFEPOINT]
    assert owner_of(__file__) is Owner.USER


def test_places_of_an_ended_coroutine_are_none() -> None:
    coro = reads_ticks()
    coro.close()
    assert chain(coro) == []
    assert timed_by([]) is None
    assert landed_at([]) is None


async def family() -> None:
    async def grandchild() -> None:
        await pass_time(2)

    async def child() -> None:
        await asyncio.gather(grandchild(), grandchild())

    for _ in range(2):
        await asyncio.create_task(child(), name=f"named {id(object())}")


def test_points_are_named_by_family_line_and_visit_and_not_by_task_name() -> None:
    create, gather, sleep = (line_of(family, text) for text in ("create_task", "gather", "pass_time"))
    visits = [
        [
            f"!main/{n}.child@test_points.py:{create}#0",
            f"main@test_points.py:{create}#{n - 1}",
            f"!main/{n}.child/1.grandchild@test_points.py:{gather}#0",
            f"!main/{n}.child/2.grandchild@test_points.py:{gather}#0",
            f"main/{n}.child@test_points.py:{gather}#0",
            f"main/{n}.child/1.grandchild@test_points.py:{sleep}#0",
            f"main/{n}.child/2.grandchild@test_points.py:{sleep}#0",
        ]
        for n in (1, 2)
    ]
    assert [point.id for point in record(family).points] == visits[0] + visits[1]


def test_a_task_made_by_a_callback_belongs_to_the_loop() -> None:
    async def child() -> None:
        await pass_time(1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        made: asyncio.Future[asyncio.Task[None]] = loop.create_future()
        loop.call_later(1, lambda: made.set_result(loop.create_task(child())))
        await (await made)

    assert [point.task for point in record(main).points] == ["main", "loop/2.child", "loop/2.child", "main"]


@pytest.mark.python(3, 12)
def test_a_child_of_an_eager_task_belongs_to_that_task_and_the_next_to_its_parent() -> None:
    async def leaf() -> None:
        await pass_time(1)

    async def child() -> None:
        await asyncio.create_task(leaf())

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(vars(asyncio)["eager_task_factory"])
        await asyncio.gather(child(), leaf())

    starts = [point.task for point in record(main).points if point.moments == (Moment.UNSTARTED,)]
    assert starts == ["main/1.child", "main/1.child/1.leaf", "main/2.leaf"]


def test_a_coroutine_that_a_task_factory_refuses_can_be_closed() -> None:
    closed: list[object] = []

    async def child() -> None: ...

    async def main() -> None:
        def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
            coro.close()
            closed.append(coro)
            raise LookupError("no more tasks")

        asyncio.get_running_loop().set_task_factory(factory)
        coro = child()
        with pytest.raises(LookupError):
            await asyncio.create_task(coro)
        asyncio.get_running_loop().set_task_factory(None)
        assert inspect.getcoroutinestate(coro) == inspect.CORO_CLOSED

    record(main)
    assert closed


def test_forty_recordings_are_the_same() -> None:
    first = record(family).points
    assert all(record(family).points == first for _ in range(40))


@pytest.mark.parametrize(
    ("point", "moment", "seen"),
    [
        ("main@test_points.py:{wait}#0", Moment.BLOCKED, ["child began"]),
        ("main@test_points.py:{wait}#0", Moment.WOKEN, ["child began", "child sent"]),
        ("!main/1.child@test_points.py:{create}#0", Moment.UNSTARTED, []),
    ],
)
def test_each_moment_comes_at_its_own_time(point: str, moment: Moment, seen: list[str]) -> None:
    events: list[str] = []

    async def main() -> None:
        parcel: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def child() -> None:
            events.append("child began")
            await pass_time(1)
            parcel.set_result("sent")
            events.append("child sent")

        task = asyncio.create_task(child())
        await parcel
        events.append("main received")
        await task

    place = point.format(wait=line_of(main, "await parcel"), create=line_of(main, "create_task"))
    aim = Aim(place, moment, lambda: events.append("fired"))
    watch = record(main, aim)
    assert watch.fired
    assert events[: events.index("fired")] == seen
    assert events[events.index("fired") + 1 :] == ["child began", "child sent", "main received"][len(seen) :]


def test_a_bare_yield_has_one_moment_because_its_wake_up_is_already_scheduled() -> None:
    async def main() -> None:
        await asyncio.sleep(0)
        await pass_time(1)

    assert [point.moments for point in record(main).points] == [
        (Moment.BLOCKED,),
        (Moment.BLOCKED, Moment.WOKEN),
    ]


def test_a_cancel_is_seen_where_it_lands_and_only_after_the_shot() -> None:
    async def stops_early(task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.wait([task])

    async def waits() -> None:
        await pass_time(5)

    async def main() -> None:
        await stops_early(asyncio.create_task(waits()))
        unstarted = asyncio.create_task(waits())
        unstarted.cancel()
        started = asyncio.create_task(waits())
        await pass_time(1)
        await stops_early(started)

    wait = line_of(stops_early, "asyncio.wait")
    aim = Aim(f"main@test_points.py:{wait}#0", Moment.WOKEN, lambda: None)
    landings = record(main, aim).landings
    assert [(landing.task, landing.started, landing.place.line) for landing in landings] == [
        ("main/2.waits", False, line_of(waits, "async def")),
        ("main/3.waits", True, line_of(waits, "pass_time")),
    ]
    assert str(landings[0]).endswith("before its first line")


def test_a_line_that_is_cancelled_twice_is_one_landing() -> None:
    async def stubborn() -> None:
        for _ in range(3):
            try:
                await pass_time(5)
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        task = asyncio.create_task(stubborn())
        for _ in range(2):
            await pass_time(1)
            task.cancel()
        await task

    create = line_of(main, "create_task")
    aim = Aim(f"!main/1.stubborn@test_points.py:{create}#0", Moment.UNSTARTED, lambda: None)
    assert [landing.task for landing in record(main, aim).landings] == ["main/1.stubborn"]
