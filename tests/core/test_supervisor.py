"""One supervisor per loop owns every task and knows every root that is live."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextvars import ContextVar, copy_context
from typing import Any

from safepoint._core.endings import Ending
from safepoint._core.ladder import Ladder
from safepoint._core.supervisor import Supervisor, wind_down
from safepoint._core.tree import Node, NodeState, Propagation
from safepoint._core.work import Returned
from tests.core.piece import Piece, for_ever, settled, stubborn
from tests.virtual import now, passes, virtual

ENDED = Ending(cancelled=False, stopped_at=0.0)


def node(name: str, parent: Node | None = None) -> Node:
    return Node(name, name, "run", parent=parent, propagation=Propagation.TO_CALLS)


@virtual
async def test_there_is_one_supervisor_per_loop() -> None:
    assert Supervisor.current() is Supervisor.current()
    assert Supervisor.current().clock.now() == now()


def test_another_loop_has_another_supervisor_and_a_dead_loop_has_none() -> None:
    async def current() -> weakref.ref[Supervisor]:
        return weakref.ref(Supervisor.current())

    first, second = asyncio.run(current()), asyncio.run(current())
    gc.collect()
    assert first() is None
    assert second() is None


@virtual
async def test_a_root_is_listed_from_its_enrolment_to_its_end() -> None:
    supervisor, root = Supervisor.current(), node("root")
    assert supervisor.roots == {}
    supervisor.enrol(root)
    assert supervisor.roots == {"root": root}
    assert root.state is NodeState.LIVE
    child = node("child", parent=root)
    supervisor.enrol(child)
    assert supervisor.roots == {"root": root}, "a child is its root's"
    child.seal()
    child.finish(ENDED)
    root.seal()
    assert supervisor.roots == {"root": root}
    root.finish(ENDED)
    assert supervisor.roots == {}


@virtual
async def test_a_node_whose_parent_has_ended_meanwhile_is_a_root() -> None:
    supervisor, root = Supervisor.current(), node("root")
    supervisor.enrol(root)
    child = node("child", parent=root)
    root.seal()
    root.finish(ENDED)
    supervisor.enrol(child)
    assert child.parent is None
    assert supervisor.roots == {"child": child}
    child.seal()
    child.finish(ENDED)


@virtual
async def test_a_spawned_task_is_kept_until_it_is_done() -> None:
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()

    task = weakref.ref(Supervisor.current().spawn(work(), "thing", copy_context()))
    gc.collect()
    await settled()
    found = task()
    assert found is not None
    assert found.get_name() == "safepoint:thing"
    del found
    gate.set()
    await settled()
    gc.collect()
    assert task() is None


@virtual
async def test_work_runs_in_the_context_that_it_is_given() -> None:
    name: ContextVar[str] = ContextVar("name", default="nobody")
    context = copy_context()
    context.run(name.set, "kim")
    seen: list[str] = []

    async def read() -> None:
        seen.append(name.get())

    work = Supervisor.current().begin(read, name="w", path="w", ladder=Ladder(), on_end=lambda: None, context=context)
    await settled()
    assert work.ended
    assert seen == ["kim"]
    assert work.task is not None
    assert work.task.get_name() == "safepoint:w"


@virtual
async def test_the_outcome_is_there_when_the_end_is_told() -> None:
    piece = Piece(lambda: passes(1, "done"))
    assert await piece.outcome() == Returned("done")
    other = Piece(for_ever)
    await settled()
    other.work.stop()
    await other.outcome()


@virtual
async def test_a_task_that_nobody_else_holds_is_held_by_its_supervisor() -> None:
    task = weakref.ref(Supervisor.current().spawn(for_ever(), "lonely", None))
    await settled()
    gc.collect()
    found = task()
    assert found is not None
    found.cancel()
    await settled()


# -- before a loop of our own is closed --------------------------------------------------------------------------------


@virtual
async def test_winding_down_ends_the_tasks_that_were_left_behind() -> None:
    async def tidies_up() -> str:
        try:
            await for_ever()
        finally:
            await passes(0.5)
        return "never"

    task = asyncio.ensure_future(tidies_up())
    await settled()
    began = now()
    await wind_down(Ladder(task=1.0))
    assert task.cancelled(), "and its clean-up was waited for"
    assert now() == began + 0.5


@virtual
async def test_winding_down_waits_for_nobody_past_the_ladder() -> None:
    task = asyncio.ensure_future(stubborn(30)())
    await settled()
    began = now()
    await wind_down(Ladder(task=1.0))
    assert now() == began + 1.0
    assert task not in asyncio.all_tasks()
    await passes(30)
    assert task.done()


@virtual
async def test_winding_down_lets_runs_close_themselves_within_the_cap() -> None:
    ladder, quick, slow = Ladder(task=1.0, cap=4.0), node("quick"), node("slow")
    for root, seconds in ((quick, 3), (slow, 30)):
        Supervisor.current().enrol(root)
        asyncio.get_running_loop().call_later(seconds, _end, root)
    began = now()
    await wind_down(ladder)
    assert now() == began + 4.0
    assert (quick.state, slow.state) == (NodeState.ENDED, NodeState.LIVE)
    await passes(30)


def _end(root: Node) -> None:
    root.seal()
    root.finish(ENDED)


@virtual
async def test_winding_down_closes_generators_and_parts_with_what_they_start() -> None:
    closed: list[str] = []
    started: list[asyncio.Future[object]] = []

    async def tidy() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            await passes(0.5)
            started.append(asyncio.ensure_future(stubborn(5)()))
            closed.append("tidy")

    async def endless() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            await for_ever()

    generators = [tidy(), endless()]
    for generator in generators:
        await anext(generator)
    began = now()
    await wind_down(Ladder(task=1.0))
    assert closed == ["tidy"]
    assert now() == began + 1.0, "nothing is waited for twice"
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await passes(10)
    assert started[0].done()


class Begun(Coroutine[Any, Any, None]):  # Any: as in asyncio
    """A coroutine whose first step was made before it got a task, as the eager tasks of Python 3.12 do."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._coroutine = coroutine
        self._first: list[object] = [coroutine.send(None)]

    def send(self, value: object, /) -> object:
        return self._first.pop() if self._first else self._coroutine.send(value)

    def throw(self, *error: Any) -> object:
        self._first.clear()
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        yield from self._coroutine.__await__()


def begin_at_once(loop: Any, coroutine: Any, /, **options: Any) -> Any:  # Any: as in asyncio
    return asyncio.Task(Begun(coroutine), loop=loop, **options)


@virtual
async def test_no_task_of_ours_makes_a_step_before_it_is_known_whatever_the_loop_does_with_tasks() -> None:
    steps: list[str] = []

    async def body(name: str) -> None:
        steps.append(name)
        await asyncio.sleep(0)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(begin_at_once)
    try:
        theirs = asyncio.create_task(body("theirs"))
        assert steps == ["theirs"], "the factory does what it should"
        ours = Supervisor.current().spawn(body("ours"), "ours", None)
        assert steps == ["theirs"]
        await asyncio.wait((theirs, ours))
        assert steps == ["theirs", "ours"]
        piece = Piece(lambda: body("cut"))
        piece.work.stop()
        await settled()
        assert "cut" not in steps
    finally:
        loop.set_task_factory(None)


@virtual
async def test_an_eager_task_has_taken_its_first_step_as_the_current_task_in_its_own_context() -> None:
    outer, seen = asyncio.current_task(), list[object]()
    variable: ContextVar[str] = ContextVar("variable", default="outside")

    async def body() -> None:
        seen.extend([asyncio.current_task(), variable.get()])
        variable.set("changed")
        await asyncio.sleep(0)
        seen.append(variable.get())

    context = copy_context()
    context.run(variable.set, "inside")
    task = Supervisor.current().spawn_eagerly(body(), "eager", context)
    assert seen == [task, "inside"]
    assert (asyncio.current_task(), variable.get(), task.done()) == (outer, "outside", False)
    await task
    assert seen[2] == "changed"


@virtual
async def test_an_eager_task_that_needs_no_turn_of_the_loop_is_done_at_once() -> None:
    async def body() -> None:
        pass

    assert Supervisor.current().spawn_eagerly(body(), "eager", copy_context()).done()


@virtual
async def test_an_eager_task_that_is_cancelled_in_its_first_step_hears_of_it_at_its_first_wait() -> None:
    async def body() -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(0)

    task = Supervisor.current().spawn_eagerly(body(), "eager", copy_context())
    await asyncio.wait([task])
    assert task.cancelled()
