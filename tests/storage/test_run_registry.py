"""Both registries of runs mean the same by the same call: what is drawn in `run_records.py` and nothing else."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint.storage.memory import MemoryStorage
from safepoint.storage.run_records import (
    Cursor,
    KeyTaken,
    RecordMoved,
    RunRecord,
    RunRegistry,
    RunState,
    StoredCancelRequest,
)
from safepoint.storage.sqlite.storage import SqliteStorage

US, THEM = "here|1|born", "here|2|born"
QUEUED, LIVE, PAUSED, SUSPENDED, ENDED = RunState
# As the module draws it.
ARROWS = {
    (QUEUED, LIVE),
    (QUEUED, SUSPENDED),
    (QUEUED, ENDED),
    (LIVE, PAUSED),
    (LIVE, SUSPENDED),
    (LIVE, ENDED),
    (PAUSED, LIVE),
    (PAUSED, ENDED),
    (SUSPENDED, QUEUED),
    (SUSPENDED, ENDED),
}
WAYS = {QUEUED: (), LIVE: (LIVE,), PAUSED: (LIVE, PAUSED), SUSPENDED: (SUSPENDED,), ENDED: (ENDED,)}


def record(run_id: str, session: str = "s", **more: Any) -> RunRecord:  # Any: fields of it
    given: dict[str, Any] = {"state": QUEUED, "created_at": 1.0, "owner": US, **more}  # Any: as above
    return RunRecord(run_id, session, **given)


def with_each_book(test: Callable[[RunRegistry], Awaitable[None]], folder: Path) -> None:
    async def main() -> None:
        await test(MemoryStorage().runs)
        storage = SqliteStorage(folder / "runs.db")
        await test(storage.runs)
        await storage.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(("before", "after"), list(product(RunState, RunState)))
def test_a_record_moves_along_the_drawn_arrows_only(tmp_path: Path, before: RunState, after: RunState) -> None:
    async def body(book: RunRegistry) -> None:
        await book.accept(record("r"), since=0)
        for state in WAYS[before]:
            await book.move("r", state, epoch=0)
        if (before, after) in ARROWS:
            assert (await book.move("r", after, epoch=0, outcome="so")).outcome == "so"
        else:
            with pytest.raises(RecordMoved, match=f"is {before}"):
                await book.move("r", after, epoch=0, outcome="so")
        known = await book.get("r")
        assert known is not None
        assert (known.state, known.outcome) == ((after, "so") if (before, after) in ARROWS else (before, None))

    with_each_book(body, tmp_path)


def test_whoever_was_taken_for_dead_can_write_nothing(tmp_path: Path) -> None:
    async def body(book: RunRegistry) -> None:
        await book.accept(record("r", state=LIVE), since=0)
        taken = await book.take("r", THEM, epoch=0)
        assert (taken.owner, taken.epoch) == (THEM, 1)
        for late in (book.move("r", ENDED, epoch=0), book.take("r", US, epoch=0)):
            with pytest.raises(RecordMoved):
                await late
        assert await book.get("r") == taken
        await book.move("r", ENDED, epoch=1)
        with pytest.raises(RecordMoved):
            await book.take("r", US, epoch=1)

    with_each_book(body, tmp_path)


def test_a_live_run_leaves_behind_what_was_stopped_but_no_message_that_never_had_its_turn(tmp_path: Path) -> None:
    async def body(book: RunRegistry) -> None:
        stopped = [("paused", PAUSED, 1.0), ("suspended", SUSPENDED, 1.0), ("message", SUSPENDED, None)]
        for run_id, state, started in stopped:
            await book.accept(record(run_id, state=state, started_at=started), since=0)
        await book.accept(record("other session", "t", state=PAUSED), since=0)
        await book.accept(record("newer", state=PAUSED, created_at=3.0), since=0)
        await book.accept(record("next", created_at=2.0), since=0)
        assert {each.run_id for each in await book.still_open("s")} >= {"paused", "suspended", "message"}
        await book.move("next", LIVE, epoch=0, started_at=2.0)
        assert [each.run_id for each in await book.still_open("s")] == ["message", "next"], "as accepted"
        assert [each.run_id for each in await book.still_open("t")] == ["other session"]
        with pytest.raises(RecordMoved):  # whoever was about to go on with it
            await book.move("suspended", QUEUED, epoch=0)

    with_each_book(body, tmp_path)


def test_an_owner_hears_each_request_for_its_open_runs_until_it_has_acknowledged_it(tmp_path: Path) -> None:
    async def body(book: RunRegistry) -> None:
        for run_id, owner in (("mine", US), ("over", US), ("theirs", THEM)):
            await book.accept(record(run_id, owner=owner, state=LIVE), since=0)
            await book.request_cancel(run_id, {"id": f"ask {run_id}"})
        await book.request_cancel("mine", {"id": "asked here"}, acknowledged=True)
        await book.move("over", ENDED, epoch=0)
        await book.unheard_cancels(US)
        heard = await book.unheard_cancels(US)
        assert [(each.run_id, each.ask) for each in heard] == [("mine", {"id": "ask mine"})]
        await book.acknowledge_cancel(heard[0].number)
        assert await book.unheard_cancels(US) == []
        assert [each.ask["id"] for each in await book.cancel_requests("mine")] == ["ask mine", "asked here"]

    with_each_book(body, tmp_path)


def test_a_request_that_is_withdrawn_is_gone_and_no_other(tmp_path: Path) -> None:
    async def body(book: RunRegistry) -> None:
        await book.accept(record("r", state=LIVE), since=0)
        for ask in ({"id": "a"}, {"id": "b"}, {}):
            await book.request_cancel("r", ask)
        await book.withdraw_cancel("r", "a")
        await book.withdraw_cancel("r", "nobody's")
        assert [each.ask for each in await book.cancel_requests("r")] == [{"id": "b"}, {}]

    with_each_book(body, tmp_path)


# -- any calls in any order ------------------------------------------------------------------------------------------

RUNS = st.sampled_from(["r0", "r1", "r2"])
HOMES = st.sampled_from(["a/u/s", "a/u/t", "b/u/s"])
EPOCHS = st.integers(0, 2)
STATES = st.sampled_from(list(RunState))
NEW = st.builds(
    record,
    RUNS,
    HOMES,
    state=STATES,
    created_at=st.sampled_from([1.0, 2.0, 3.0]),
    owner=st.sampled_from([US, THEM]),
    key=st.sampled_from([None, "k"]),
    digest=st.sampled_from(["x", "y"]),
    started_at=st.sampled_from([None, 2.0]),
    request=st.just({"appName": "a"}),
)
CALLS: st.SearchStrategy[tuple[str, tuple[Any, ...], dict[str, Any]]] = st.one_of(  # Any: arguments of every method
    st.tuples(st.just("accept"), st.tuples(NEW), st.fixed_dictionaries({"since": st.sampled_from([0.0, 2.0])})),
    st.tuples(
        st.just("move"),
        st.tuples(RUNS, STATES),
        st.fixed_dictionaries(
            {"epoch": EPOCHS, "outcome": st.sampled_from([None, "cancelled"])}, optional={"key": st.none()}
        ),
    ),
    st.tuples(
        st.just("take"),
        st.tuples(RUNS, st.sampled_from([US, THEM])),
        st.fixed_dictionaries({"epoch": EPOCHS}),
    ),
    st.tuples(st.just("request_cancel"), st.tuples(RUNS, st.just({"id": "a", "reason": {"text": "t"}})), st.just({})),
    st.tuples(st.just("withdraw_cancel"), st.tuples(RUNS, st.sampled_from(["a", "b"])), st.just({})),
    st.tuples(st.just("answer_cancel"), st.tuples(st.integers(1, 4), st.just({"outcome": "stopped"})), st.just({})),
    st.tuples(st.just("touch"), st.tuples(HOMES, st.just(4.0)), st.just({})),
    st.tuples(st.just("forget"), st.tuples(HOMES), st.just({})),
)


@dataclass(frozen=True)
class Refused:
    kind: type[Exception]


async def result_of(call: Awaitable[Any]) -> Any:  # Any: of every method
    try:
        return await call
    except (RecordMoved, KeyTaken) as error:
        return Refused(type(error))


async def seen(book: RunRegistry) -> list[Any]:  # Any: answers of every method
    """Everything that can be asked."""
    found: list[Any] = [await book.find(), await book.find(prefix="a/u/", limit=2), await book.still_open()]
    found.append(await book.still_open(waiting=False))
    for home in ("a/u/s", "a/u/t", "b/u/s"):
        found += [await book.find(session=home), await book.still_open(home), await book.by_key(home, "k", since=2.0)]
    found += [await book.over(limit=9), await book.over(prefix="a/u/", limit=1)]
    found += [await book.over(after=Cursor(at, run), limit=9) for at in (2.0, 3.0) for run in ("r1", "r2")]
    found += [await book.cancel_answer(number) for number in range(1, 5)]
    for run in ("r0", "r1", "r2"):
        found += [await book.get(run), [replace(each, number=0) for each in await book.cancel_requests(run)]]
    return [*found, await book.touched("a/")]


@given(st.lists(CALLS, max_size=25))
@settings(max_examples=80, deadline=None)
def test_both_registries_answer_alike_whatever_is_called(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]
) -> None:
    async def main() -> None:
        store = SqliteStorage(tmp_path_factory.getbasetemp() / f"alike-{next(NUMBERS)}.db")
        books: Sequence[RunRegistry] = (MemoryStorage().runs, store.runs)
        accepted: set[str] = set()
        for name, args, more in calls:
            if name == "accept":
                if args[0].run_id in accepted:
                    continue  # ids are never used twice
                accepted.add(args[0].run_id)
            if name in ("request_cancel", "withdraw_cancel") and args[0] not in accepted:
                continue
            one, other = [await result_of(getattr(book, name)(*args, **more)) for book in books]
            if name in ("accept", "move", "take"):
                assert one == other, (name, args, more)
        assert await seen(books[0]) == await seen(books[1])
        await store.aclose()

    asyncio.run(main())


NUMBERS = count()

# -- processes -------------------------------------------------------------------------------------------------------

RACE = """
import asyncio, os, sys
from safepoint.storage.run_records import RecordMoved
from safepoint.storage.sqlite.storage import SqliteStorage

async def main():
    book = SqliteStorage(sys.argv[1]).runs
    found = await book.still_open()
    print("ready", flush=True)
    sys.stdin.readline()
    for record in found:
        try:
            await book.take(record.run_id, f"here|{os.getpid()}|born", epoch=record.epoch)
            print(record.run_id, flush=True)
        except RecordMoved:
            pass

asyncio.run(main())
"""


def test_of_processes_that_race_for_a_run_one_gets_it(tmp_path: Path) -> None:
    async def fill() -> None:
        store = SqliteStorage(tmp_path / "runs.db")
        book = store.runs
        for number in range(60):
            await book.accept(record(f"r{number}", owner=THEM, state=LIVE), since=0)
        await store.aclose()

    asyncio.run(fill())
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path / "runs.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [racer.communicate(timeout=60)[0].split() for racer in racers]
    assert sorted(run for each in won for run in each) == sorted(f"r{number}" for number in range(60))


def test_a_stored_request_is_what_was_asked(tmp_path: Path) -> None:
    async def body(book: RunRegistry) -> None:
        await book.accept(record("r", state=LIVE), since=0)
        await book.request_cancel("r", {"id": "a", "reason": {"text": "enough", "by": None}})
        [kept] = await book.cancel_requests("r")
        assert kept == StoredCancelRequest(kept.number, "r", {"id": "a", "reason": {"text": "enough", "by": None}})

    with_each_book(body, tmp_path)
