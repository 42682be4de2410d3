"""Storages that each break one rule of `check_storage`, by the name of the rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar, cast

from safepoint.storage import operations as op
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.operations import Query, Statement
from safepoint.storage.run_records import RunState

T = TypeVar("T")
Statements = tuple[Statement[Any], ...]  # Any: of every result
Results = tuple[Any, ...]  # Any: of every statement


class OneByOne(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        if len(statements) > 1 and isinstance(statements[0], op.Share):
            return (*await super().commit(statements[0]), *await super().commit(*statements[1:]))
        return await super().commit(*statements)


class OnlyTheLast(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        results = await super().commit(*statements)
        reads = any(isinstance(each, op.ReadShared) for each in statements)
        return results[-1:] if reads else results


class ForgetsItsClaim(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        results = await super().commit(*statements)
        match statements:
            case (op.ClaimSession(session_id, claimant, None), op.AppendChanges()):
                await super().commit(op.ReleaseSession(session_id, claimant))
            case _:
                pass
        return results


class ExpectsNothing(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        return await super().commit(
            *(replace(each, expected=None) if isinstance(each, op.ClaimSession) else each for each in statements)
        )


class WritesAgain(MemoryStorage):
    def _was_written(self, statement: Statement[Any]) -> bool:  # Any: of every result
        return False


class LetsAnybodyBegin(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        return await super().commit(
            *(replace(each, only_first=False) if isinstance(each, op.AcceptRun) else each for each in statements)
        )


class ForgetsUsage(MemoryStorage):
    async def read(self, query: Query[T]) -> T:
        found = await super().read(query)
        if isinstance(query, op.GetRun) and found is not None:
            return cast("T", replace(cast("Any", found), usage=None))
        return found


class MovesAnywhere(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        match statements:
            case (op.MoveRun(run_id, RunState.LIVE, 0, {"outcome": "so"}),):
                known = await self.runs.get(run_id)
                if known is not None and known.state is RunState.LIVE:
                    return (known,)
            case _:
                pass
        return await super().commit(*statements)


class TakesAgain(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        match statements:
            case (op.TakeRun(run_id, owner, _),):
                known = await self.runs.get(run_id)
                epoch = known.epoch if known is not None else 0
                return await super().commit(op.TakeRun(run_id, owner, epoch))
            case _:
                return await super().commit(*statements)


class ForgetsDigests(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        match statements:
            case (op.AcceptRun(record, since, first),) if record.key is not None and record.state is RunState.LIVE:
                return await super().commit(op.AcceptRun(replace(record, digest="d"), since, first))
            case _:
                return await super().commit(*statements)


class LeavesNothingBehind(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        match statements:
            case (op.MoveRun("next", RunState.LIVE),):
                stopped = [each for each in await self.runs.find() if each.state is RunState.SUSPENDED]
                results = await super().commit(*statements)
                for each in stopped:
                    self._tables.records[each.run_id] = each
                return results
            case _:
                return await super().commit(*statements)


class FindsTheOldestFirst(MemoryStorage):
    async def read(self, query: Query[T]) -> T:
        found = await super().read(query)
        return cast("T", cast("list[Any]", found)[::-1]) if isinstance(query, op.EndedRuns) else found


class KnowsNoMarks(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        match statements:
            case (op.TouchSession("a/u/t", 3.0),):
                return (None,)
            case _:
                return await super().commit(*statements)


class HearsOnce(MemoryStorage):
    """Keeps a high-water mark."""

    heard = 0

    async def read(self, query: Query[T]) -> T:
        found = await super().read(query)
        if isinstance(query, op.UnheardCancels):
            new = [each for each in cast("list[Any]", found) if each.number > self.heard]
            self.heard = max([self.heard, *(each.number for each in new)])
            return cast("T", new)
        return found


class WithdrawsAll(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        match statements:
            case (op.WithdrawCancel(run_id, "a"),):
                return await super().commit(op.WithdrawCancel(run_id, "b"))
            case _:
                return await super().commit(*statements)


class ForgetsTooMuch(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        match statements:
            case (op.ForgetRuns("a/u/s"),):
                results = await super().commit(*statements)
                self._tables.requests.clear()
                self._tables.of_run.clear()
                return results
            case _:
                return await super().commit(*statements)


class TakesAllForDead(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.alive = set[str]()


class NeverDeletes(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        return await super().commit(*map(_without_none, statements))


def _without_none(statement: Statement[Any]) -> Statement[Any]:  # Any: of every result
    if isinstance(statement, op.Share) and None in statement.delta.values():
        return op.Share(statement.place, {n: v for n, v in statement.delta.items() if v is not None})
    return statement


class HandsOutItsOwn(MemoryStorage):
    async def read(self, query: Query[T]) -> T:
        if isinstance(query, op.ReadShared):
            found: dict[str, Any] = {}  # Any: JSON values
            for place in query.places:
                found |= self._tables.shared.get(place, {})
            return cast("T", found)
        return await super().read(query)


class SortsNotes(MemoryStorage):
    async def read(self, query: Query[T]) -> T:
        found = await super().read(query)
        if isinstance(query, op.ReadNotes):
            return cast("T", sorted(cast("list[Any]", found), key=lambda note: note.at))
        return found


class KeepsTheFirst(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        match statements:
            case (op.ReplaceLoop(id, _),) if id in self._tables.loops:
                return (None,)
            case _:
                return await super().commit(*statements)


class ForgetsTheLastChange(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        match statements:
            case (op.ChangeLoop(id, epoch, changes),) if len(changes) > 1:
                return await super().commit(op.ChangeLoop(id, epoch, changes[:-1]))
            case _:
                return await super().commit(*statements)


class TakesChangesOfAnyEpoch(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        match statements:
            case (op.ChangeLoop(id, _, changes),):
                return await super().commit(op.ChangeLoop(id, self._tables.loop_claims[id][1], changes))
            case _:
                return await super().commit(*statements)


class ReleasesLoopsForAnybody(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        match statements:
            case (op.ReleaseLoop(id, _),):
                self._tables.loop_claims.pop(id, None)
                return (None,)
            case _:
                return await super().commit(*statements)


class NeverWakes(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self._changes.publish = lambda statements, results: None  # type: ignore[method-assign]  # as a broken one would


class ThawsNothing(MemoryStorage):
    async def commit(self, *statements: Statement[Any]) -> Results:  # Any: of every result
        kept = [each for each in statements if not isinstance(each, op.RemoveFreeze)]
        return await super().commit(*kept) if len(kept) == len(statements) else (True,)


class TellsTheTrailBackwards(MemoryStorage):
    async def read(self, query: Query[T]) -> T:
        found = await super().read(query)
        return cast("T", cast("list[Any]", found)[::-1]) if isinstance(query, op.ReadAudit) else found


BROKEN: dict[str, type[MemoryStorage]] = {
    "a unit of work happens whole or not at all": OneByOne,
    "a commit gives one result for each statement, in their order": OnlyTheLast,
    "a claim and the writes under it are one unit of work": ForgetsItsClaim,
    "a claim that expects another version is refused": ExpectsNothing,
    "a numbered write happens once": WritesAgain,
    "a run that is to be the first is refused while another is live or waits": LetsAnybodyBegin,
    "a record comes back as it was": ForgetsUsage,
    "a record moves as drawn, and in no other way": MovesAnywhere,
    "a record that was taken over is closed to its old owner": TakesAgain,
    "an idempotency key belongs to one request of its session": ForgetsDigests,
    "a live run leaves what its session had stopped behind": LeavesNothingBehind,
    "runs are found by session, prefix, state and owner, in their order": FindsTheOldestFirst,
    "sessions are listed by when they were last changed": KnowsNoMarks,
    "a cancel request is heard until it is acknowledged, and kept after that": HearsOnce,
    "a cancel request is answered, or withdrawn": WithdrawsAll,
    "a forgotten session leaves no record": ForgetsTooMuch,
    "what a worker owns is no orphan while it lives": TakesAllForDead,
    "shared values are set, replaced and deleted in their place only": NeverDeletes,
    "shared values are copies": HandsOutItsOwn,
    "notes of a session come in order and go with it": SortsNotes,
    "freezes are there until they are removed": ThawsNothing,
    "the audit trail keeps what is added, in order": TellsTheTrailBackwards,
    "the record of a loop is replaced whole": KeepsTheFirst,
    "a change of a loop is written, in its order": ForgetsTheLastChange,
    "a loop that was replaced cannot write": TakesChangesOfAnyEpoch,
    "a loop has one claimant at a time": ReleasesLoopsForAnybody,
    "a commit wakes those who wait for its run or session": NeverWakes,
}
