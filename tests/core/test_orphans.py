"""What did not stop is never silent: name, age, stack and late result can be read while it lives and after."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator

import pytest

from safepoint._core.ladder import Rung
from safepoint._core.orphans import Orphan, disown
from safepoint._core.work import Abandoned
from tests.core.piece import Piece, for_ever, settled, stubborn
from tests.virtual import passes, virtual


async def abandoned(piece: Piece) -> Orphan:
    await settled()
    piece.work.stop(force=True)
    outcome = await piece.outcome()
    assert isinstance(outcome, Abandoned)
    return outcome.orphan


@virtual
async def test_an_orphan_tells_what_it_is_and_where() -> None:
    orphan = await abandoned(Piece(stubborn(60)))
    assert (orphan.name, orphan.path, orphan.rung) == ("piece", "test/piece", Rung.ABANDON)
    assert orphan.thread is None
    assert orphan.still_running
    assert orphan.age == 0.0
    await passes(7)
    assert orphan.age == 7.0
    assert "in work" in orphan.stack()
    assert "await asyncio.sleep" in orphan.stack()
    assert repr(orphan) == "<Orphan 'piece' at test/piece, running>"
    await passes(60)
    assert repr(orphan) == "<Orphan 'piece' at test/piece, ended>"
    assert orphan.stack() == ""
    assert orphan.result == "late"


@virtual
async def test_whoever_wants_to_know_is_told_of_a_late_end_once_it_is_recorded() -> None:
    told: list[tuple[object, bool]] = []
    orphan = await abandoned(Piece(stubborn(5, result=[1, 2])))
    orphan.when_late(lambda late: told.append((late.result, late.still_running)))
    await passes(4)
    assert told == []
    await passes(1)
    await settled()
    assert told == [([1, 2], False)]


@virtual
async def test_whoever_asks_after_the_late_end_is_told_at_once_and_nobody_twice() -> None:
    told: list[object] = []
    orphan = await abandoned(Piece(stubborn(5, result="late")))
    await passes(6)
    orphan.when_late(lambda late: told.append(late.result))
    assert told == ["late"]
    orphan.returned_late("again")
    assert told == ["late"]


@virtual
@pytest.mark.parametrize("returns", [True, False])
async def test_an_orphan_matters_while_it_runs_and_if_it_has_returned(returns: bool) -> None:
    async def work() -> str:
        await stubborn(5)()
        if not returns:
            raise asyncio.CancelledError
        return "late"

    orphan = await abandoned(Piece(work))
    assert (orphan.still_running, orphan.returned, orphan.matters) == (True, False, True)
    await passes(5)
    assert (orphan.still_running, orphan.returned, orphan.matters) == (False, returns, returns)
    assert (orphan.result, orphan.error) == ("late" if returns else None, None)


@virtual
async def test_the_stack_goes_on_through_generators() -> None:
    async def numbers() -> AsyncGenerator[int]:
        await stubborn(5)()
        yield 1

    async def reads() -> None:
        async for _ in numbers():
            pass

    async def takes() -> None:
        await anext(aiter(numbers()), None)

    for work in (reads, takes):
        orphan = await abandoned(Piece(work))
        functions = [line.split(" in ")[1] for line in orphan.stack().splitlines() if line.startswith("  File")]
        assert functions == ["guard", work.__name__, "numbers", "work", "sleep"]
        await passes(5)


@virtual
async def test_an_orphan_is_kept_while_it_runs_and_let_go_when_it_has_ended() -> None:
    async def work() -> None:
        while True:
            try:
                await for_ever()
            except asyncio.CancelledError:
                if loop.time() > end:
                    return

    loop = asyncio.get_running_loop()
    end = loop.time() + 5
    piece = Piece(work)
    orphan = weakref.ref(await abandoned(piece))
    task = piece.work.task
    assert task is not None
    del piece
    gc.collect()
    assert orphan() is not None, "nobody else holds it, and it still runs"
    await passes(6)
    task.cancel()
    await settled()
    del task
    gc.collect()
    assert orphan() is None


@virtual
async def test_an_orphan_that_nobody_holds_runs_on() -> None:
    let_go: list[bool] = []

    async def lonely() -> None:
        while not let_go:
            try:
                await for_ever()
            except asyncio.CancelledError:
                continue

    orphan = weakref.ref(await abandoned(Piece(lonely)))
    gc.collect()
    found = orphan()
    assert found is not None
    assert found.still_running
    let_go.append(True)
    task = found._task  # pyright: ignore[reportPrivateUsage]  # nobody else has it
    task.cancel()
    await settled()
    assert not found.still_running


def test_a_disowned_task_is_no_surprise_when_its_loop_is_closed_and_it_is_collected() -> None:
    errors: list[dict[str, object]] = []

    async def pages() -> AsyncGenerator[int]:
        await for_ever()
        yield 1

    async def read() -> None:
        async for _ in pages():
            pass

    async def main() -> None:
        task = asyncio.ensure_future(read())
        await settled()
        disown(task)
        assert task not in asyncio.all_tasks()
        await asyncio.get_running_loop().shutdown_asyncgens()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    loop.run_until_complete(main())
    loop.close()
    gc.collect()
    assert errors == []
