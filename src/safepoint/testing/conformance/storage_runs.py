"""Rules for storages: records of runs, and requests to cancel them."""

from __future__ import annotations

from itertools import product
from typing import Any

from safepoint.storage.run_records import FREE, MOVES, Cursor, KeyTaken, RecordMoved, RunRecord, RunState
from safepoint.testing.conformance.rules import Rules
from safepoint.testing.conformance.storage_maker import StorageMaker, record
from safepoint.testing.conformance.store_maker import refused

RULES: Rules[StorageMaker] = Rules()
# Only for a storage that other storages can share.
SHARED: Rules[StorageMaker] = Rules()


@RULES.rule("a record comes back as it was", "keep every field of RunRecord; text may have any character")
async def _kept(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        words: dict[str, Any] = {"text": "Zoë 🙂 \0 \ud800", "list": [1, 2.5, None, {"x": {}}]}
        times: dict[str, Any] = {"started_at": 2.5, "ended_at": 3.5, "epoch": 4, "by": "laptop"}
        ended: dict[str, Any] = {"outcome": "cancelled", "reason": words, "usage": {"inputTokens": 3}}
        full = record(storage, request=words, key="k", digest="d", state=RunState.ENDED, **times, **ended)
        for each in (full, record(storage, "run_2")):
            assert await storage.runs.accept(each, since=0) == each, "accept gives another record"
            found = await storage.runs.get(each.run_id)
            assert found == each, f"it is now {found!r}"
        assert await storage.runs.get("no such run") is None, "a run that was never accepted is found"


@RULES.rule("a record moves as drawn, and in no other way", "raise RecordMoved for every move that MOVES does not have")
async def _moves(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        for before, after in product(RunState, RunState):
            run_id = f"{before} to {after}"
            await storage.runs.accept(record(storage, run_id, f"a/u/{run_id}", state=before), since=0)
            if after in MOVES[before]:
                await storage.runs.move(run_id, after, epoch=0, outcome="so")
            else:
                await refused(RecordMoved, run_id, storage.runs.move(run_id, after, epoch=0, outcome="so"))
            found = await storage.runs.get(run_id)
            expected = (after, "so") if after in MOVES[before] else (before, None)
            assert found is not None, f"after {run_id} it is gone"
            assert (found.state, found.outcome) == expected, f"after {run_id} it is {found.state}, {found.outcome}"


@RULES.rule("a record that was taken over is closed to its old owner", "raise its epoch in take(); refuse old epochs")
async def _take_over(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        await storage.runs.accept(record(storage), since=0)
        moved = await storage.runs.take("run_1", "1" * 32, epoch=0)
        assert (moved.owner, moved.epoch) == ("1" * 32, 1), f"take gives {moved!r}"
        await refused(RecordMoved, "a move by the old owner", storage.runs.move("run_1", RunState.ENDED, epoch=0))
        await refused(RecordMoved, "a second take", storage.runs.take("run_1", "2" * 32, epoch=0))
        await storage.runs.move("run_1", RunState.ENDED, epoch=1)
        await refused(RecordMoved, "taking a run that has ended", storage.runs.take("run_1", "2" * 32, epoch=1))


@RULES.rule(
    "an idempotency key belongs to one request of its session",
    "in the transaction of accept(): return the record of the same key and digest, raise KeyTaken for another digest",
)
async def _keys(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        first = await storage.runs.accept(record(storage, "first", key="k", digest="d"), since=0)
        again = await storage.runs.accept(record(storage, "again", key="k", digest="d"), since=0)
        assert again == first, f"the same request gave {again.run_id}"
        other = record(storage, "other", key="k", digest="e")
        await refused(KeyTaken, "another request with the same key", storage.runs.accept(other, since=0))
        assert await storage.runs.accept(record(storage, "there", "a/u/t", key="k", digest="e"), since=0), "by session"
        assert await storage.runs.by_key("a/u/s", "k", since=1.0) == first, "by_key does not find it"
        assert await storage.runs.by_key("a/u/s", "k", since=1.5) is None, "by_key finds one that is too old"
        late = await storage.runs.accept(record(storage, "late", key="k", digest="e", created_at=9.0), since=5.0)
        assert late.run_id == "late", "a key that is too old still counts"


@RULES.rule(
    "a live run leaves what its session had stopped behind",
    "with the move to live: end paused records of the session, and older suspended ones that had begun; raise epochs",
)
async def _left_behind(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        runs = storage.runs
        for run_id, state, started in (
            ("paused", RunState.PAUSED, 1.0),
            ("suspended", RunState.SUSPENDED, 1.0),
            ("message", RunState.SUSPENDED, None),
        ):
            await runs.accept(record(storage, run_id, state=state, started_at=started), since=0)
        await runs.accept(record(storage, "other session", "a/u/t", state=RunState.PAUSED), since=0)
        await runs.accept(record(storage, "next", state=RunState.QUEUED, created_at=2.0), since=0)
        await runs.move("next", RunState.LIVE, epoch=0)
        left = [each.run_id for each in await runs.still_open()]
        assert left == ["message", "other session", "next"], f"still open are {left}"
        await refused(RecordMoved, "going on with one of them", runs.move("suspended", RunState.QUEUED, epoch=0))


@RULES.rule("runs are found by session, prefix, state and owner, in their order", "see the protocol RunRegistry")
async def _found(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        runs, places = storage.runs, ("a/u/s", "a/u/t", "b/u/s")
        for number, (place, state) in enumerate(product(places, (RunState.ENDED, RunState.PAUSED, RunState.LIVE))):
            owner = storage.worker if number % 2 else "1" * 32
            made = record(storage, f"r{number}", place, state=state, created_at=float(number), owner=owner)
            await runs.accept(made, since=0)
        # A paused record ends with the live one of its session that comes after it.
        looks = {
            "find(session)": (await runs.find(session="a/u/t"), [5, 4, 3]),
            "find(prefix, limit)": (await runs.find(prefix="a/u/", limit=4), [5, 4, 3, 2]),
            "over()": (await runs.over(limit=9), [7, 6, 4, 3, 1, 0]),
            "over(after)": (await runs.over(after=Cursor(6.0, "r6"), limit=1), [4]),
            "over(prefix)": (await runs.over(prefix="a/", limit=9), [4, 3, 1, 0]),
            "still_open(session)": (await runs.still_open("b/u/s", waiting=False), [8]),
            "still_open(owner)": (await runs.still_open(owner=storage.worker), [5]),
        }
        for what, (found, expected) in looks.items():
            ids, wanted = [each.run_id for each in found], [f"r{number}" for number in expected]
            assert ids == wanted, f"{what} gives {ids}, not {wanted}"


@RULES.rule("sessions are listed by when they were last changed", "touched(): the latest of marks, ends and beginnings")
async def _touched(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        await storage.runs.accept(record(storage, "r1", "a/u/s", created_at=5.0, state=RunState.LIVE), since=0)
        await storage.runs.touch("a/u/s", 4.0)
        await storage.runs.touch("a/u/t", 3.0)
        await storage.runs.touch("b/u/s", 9.0)
        found = await storage.runs.touched("a/")
        assert found == {"a/u/s": 5.0, "a/u/t": 3.0}, f"it gives {found}"
        await storage.runs.move("r1", RunState.ENDED, epoch=0, ended_at=7.0)
        assert (await storage.runs.touched("a/u/s"))["a/u/s"] == 7.0, "the end of a run does not count"


@RULES.rule(
    "a cancel request is heard until it is acknowledged, and kept after that",
    "keep no high-water mark: an owner's open requests are those that it has not acknowledged",
)
async def _requests(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        runs = storage.runs
        for run_id, owner in (("mine", storage.worker), ("over", storage.worker), ("theirs", "1" * 32)):
            await runs.accept(record(storage, run_id, f"a/u/{run_id}", owner=owner), since=0)
            await runs.request_cancel(run_id, {"id": f"ask {run_id}"})
        await runs.request_cancel("mine", {"id": "asked here"}, acknowledged=True)
        await runs.move("over", RunState.ENDED, epoch=0)
        await runs.unheard_cancels(storage.worker)
        heard = await runs.unheard_cancels(storage.worker)
        assert [each.ask for each in heard] == [{"id": "ask mine"}], f"the second time it hears {heard!r}"
        await runs.acknowledge_cancel(heard[0].number)
        assert await runs.unheard_cancels(storage.worker) == [], "it is heard again"
        kept = [each.ask["id"] for each in await runs.cancel_requests("mine")]
        assert kept == ["ask mine", "asked here"], f"of its requests there are {kept}"


@RULES.rule("a cancel request is answered, or withdrawn", "answer by number, withdraw by the id of the ask")
async def _answers(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        runs = storage.runs
        await runs.accept(record(storage), since=0)
        numbers = [await runs.request_cancel("run_1", {"id": id}) for id in ("a", "b", None)]
        assert numbers == sorted(set(numbers)), f"the numbers are {numbers}"
        assert await runs.cancel_answer(numbers[1]) is None, "it is answered before it was"
        await runs.answer_cancel(numbers[1], {"outcome": "stopped"})
        assert await runs.cancel_answer(numbers[1]) == {"outcome": "stopped"}, "the answer is not there"
        await runs.withdraw_cancel("run_1", "a")
        await runs.withdraw_cancel("run_1", "no such ask")
        await runs.answer_cancel(numbers[0], {"outcome": "stopped"})
        left = [each.ask for each in await runs.cancel_requests("run_1")]
        assert left == [{"id": "b"}, {"id": None}], f"after a withdrawal there are {left}"


@RULES.rule("a forgotten session leaves no record", "forget() deletes records, requests, keys and marks of the session")
async def _forgotten(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        runs = storage.runs
        for place in ("a/u/s", "a/u/t"):
            await runs.accept(record(storage, place, place, key="k", digest="d"), since=0)
            await runs.request_cancel(place, {})
            await runs.touch(place, 1.0)
        await runs.forget("a/u/s")
        assert [each.run_id for each in await runs.find()] == ["a/u/t"], "the records are others"
        assert await runs.cancel_requests("a/u/s") == [], "its requests are still there"
        assert list(await runs.touched("a/")) == ["a/u/t"], "its mark is still there"
        assert await runs.by_key("a/u/s", "k", since=0) is None, "its key is still taken"
        assert len(await runs.cancel_requests("a/u/t")) == 1, "the requests of another session are gone"


@RULES.rule("what a worker owns is no orphan while it lives", "a run is an orphan when its owner is dead or FREE")
async def _orphans(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        await storage.runs.accept(record(storage, "mine"), since=0)
        await storage.runs.accept(record(storage, "dead", "a/u/t", owner="1" * 32), since=0)
        await storage.runs.accept(record(storage, "waits", "a/u/v", owner="1" * 32, state=RunState.PAUSED), since=0)
        await storage.runs.accept(record(storage, "over", "a/u/w", owner="1" * 32, state=RunState.ENDED), since=0)
        await storage.runs.accept(record(storage, "freed", "a/u/x"), since=0)
        await storage.runs.move("freed", RunState.SUSPENDED, epoch=0, owner=FREE)
        looks: tuple[tuple[list[RunRecord], list[str]], ...] = (
            (await storage.runs.orphans(), ["dead", "waits", "freed"]),
            (await storage.runs.orphans(waiting=False), ["dead", "freed"]),
            (await storage.runs.orphans(run_id="waits"), ["waits"]),
            (await storage.runs.orphans(run_id="mine"), []),
        )
        for found, expected in looks:
            ids = [each.run_id for each in found]
            assert ids == expected, f"the orphans are {ids}, not {expected}"


@SHARED.rule("the runs of another open storage are no orphans", "keep workers and leases where all storages see them")
async def _other_runs(maker: StorageMaker) -> None:
    async with maker.opened() as storage, maker.reopened(storage) as other:
        assert storage.worker != other.worker, "two storages are one worker"
        await storage.runs.accept(record(storage), since=0)
        found = [each.run_id for each in await other.runs.still_open()]
        assert found == ["run_1"], f"the other storage finds {found}"
        assert await other.runs.orphans() == [], "the other storage takes a live worker for dead"
