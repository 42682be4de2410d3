"""Rules for storages: what is committed together happens together, once, and is decided inside."""

from __future__ import annotations

from safepoint.agent.journal import Said
from safepoint.errors import SessionBusy, Superseded
from safepoint.storage import operations as op
from safepoint.storage.run_records import RecordMoved, RunState
from safepoint.storage.session_data import SessionOutdated, StateSet, Version
from safepoint.storage.shared_state import Note
from safepoint.testing.conformance.rules import Rules
from safepoint.testing.conformance.storage_maker import StorageMaker, record
from safepoint.testing.conformance.store_maker import refused
from safepoint.testing.conformance.store_samples import said

RULES: Rules[StorageMaker] = Rules()


@RULES.rule(
    "a unit of work happens whole or not at all", "run all statements of a commit in one transaction; roll it back"
)
async def _whole(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        await storage.sessions.create("s", {})
        unit = (
            op.Share("app", {"x": 1}),
            op.AddNote("s", Note(1.0, {})),
            op.ClaimSession("s", "me"),
            op.AppendChanges("s", None, [StateSet({"is": "new"})], 1),
            op.AcceptRun(record(storage), 0.0),
            op.RequestCancel("run_1", {}),
            op.MoveRun("no such run", RunState.ENDED, 0),
        )
        await refused(RecordMoved, "a unit of work whose last operation is refused", storage.commit(*unit))
        assert await storage.shared.shared(["app"]) == {}, "its shared value is there"
        assert await storage.shared.notes("s") == [], "its note is there"
        assert (await storage.sessions.load("s")).state == {}, "its state is there"
        assert await storage.runs.find() == [], "its record is there"
        assert await storage.runs.cancel_requests("run_1") == [], "its request is there"
        await storage.sessions.claim("s", "another")


@RULES.rule("a commit gives one result for each statement, in their order", "return a tuple as long as the call")
async def _results(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        await storage.sessions.create("s", {})
        mine = record(storage)
        found = await storage.commit(op.Share("app", {"x": 1}), op.AcceptRun(mine, 0.0), op.ReadShared(("app",)))
        assert list(found) == [None, mine, {"x": 1}], f"it gives {found!r}"


@RULES.rule(
    "a claim and the writes under it are one unit of work", "an AppendChanges without an epoch has that of the claim"
)
async def _claimed(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        await storage.sessions.create("s", {})
        unit = (op.ClaimSession("s", "me"), op.AppendChanges("s", None, [Said(0, said("hi"))], 1))
        epoch, _ = await storage.commit(*unit)
        stored = await storage.sessions.load("s")
        assert (len(stored.messages), stored.version) == (1, Version(epoch, 1)), f"it is now {stored.version}"
        await refused(SessionBusy, "a second claim", storage.sessions.claim("s", "another"))


@RULES.rule(
    "a claim that expects another version is refused",
    "compare epoch and number of the last write in the transaction of the claim; raise SessionOutdated",
)
async def _expected(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        (version,) = await storage.commit(op.CreateSession("s", {}))
        assert version == (await storage.sessions.load("s")).version, f"create gives {version}"
        await storage.commit(op.ClaimSession("s", "me", version), op.AppendChanges("s", None, [StateSet({"x": 1})], 1))
        await storage.sessions.release("s", "me")
        await refused(SessionOutdated, "the same claim again", storage.commit(op.ClaimSession("s", "me", version)))
        newer = (await storage.sessions.load("s")).version
        assert newer is not None, "load gives no number"
        await storage.commit(op.ClaimSession("s", "another", newer))
        await storage.commit(op.AppendChanges("s", newer.epoch + 1, [StateSet({"x": 2})], 1))
        await storage.sessions.release("s", "another")
        claimed = Version(newer.epoch + 1, 0)
        await refused(
            SessionOutdated, "a claim that missed a write", storage.commit(op.ClaimSession("s", "me", claimed))
        )


@RULES.rule(
    "a numbered write happens once",
    "keep the number of the last write with the epoch; a unit of work whose number is not above it does nothing",
)
async def _once(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        await storage.sessions.create("s", {})
        epoch = await storage.sessions.claim("s", "me")
        unit = (op.AppendChanges("s", epoch, [Said(0, said("hi"))], 1), op.AddNote("s", Note(1.0, {})))
        for _ in range(2):
            await storage.commit(*unit)
        assert len(await storage.shared.notes("s")) == 1, "what belongs to the write happened twice"
        await storage.commit(op.AppendChanges("s", epoch, [Said(1, said("ho"))], 2))
        assert len((await storage.sessions.load("s")).messages) == 2, "the next number was taken for the same write"
        await storage.sessions.claim("s", "me")
        await refused(Superseded, "an old write of a new epoch", storage.commit(*unit))


@RULES.rule(
    "a run that is to be the first is refused while another is live or waits",
    "look for open runs of the session in the transaction that accepts; raise SessionBusy",
)
async def _first(maker: StorageMaker) -> None:
    async with maker.opened() as storage:
        for state in (RunState.PAUSED, RunState.SUSPENDED, RunState.ENDED):
            await storage.runs.accept(record(storage, f"run_{state}", "s", state=state), since=0)
        await storage.commit(op.AcceptRun(record(storage, "first", "s", state=RunState.QUEUED), 0.0, only_first=True))
        for state in (RunState.QUEUED, RunState.LIVE):
            late = op.AcceptRun(record(storage, f"late {state}", "s"), 0.0, only_first=True)
            await refused(SessionBusy, f"another run, while one is {state},", storage.commit(late))
            await storage.runs.move("first", RunState.LIVE if state is RunState.QUEUED else RunState.ENDED, epoch=0)
        await storage.commit(op.AcceptRun(record(storage, "next", "s"), 0.0, only_first=True))
