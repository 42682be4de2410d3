"""Stores that break one rule each. A class's docstring is the rule that it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import Any

from safepoint.agent.journal import Called, Counted, Ended, Inside, Opened, Said
from safepoint.errors import SessionBusy, SessionExists
from safepoint.history.parts import Message, Text
from safepoint.sessions import LateResult, Stored
from safepoint.sessions.store import Change, LateSet, Released, StateSet, Truncated
from safepoint.storage.reducer import apply
from tests.testing.plain_store import PlainStore

State = Mapping[str, Any]  # Any: JSON values


class Applying(PlainStore):
    """A store that means something else by a change, or loads something else than it has."""

    def applied(self, stored: Stored, change: Change) -> Stored:
        return apply(stored, change)

    def shown(self, stored: Stored) -> Stored:
        return stored

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        await super().append(session_id, epoch, ())  # refuses what has to be refused
        stored = self._get(session_id)
        for change in changes:
            stored = self.applied(stored, deepcopy(change))
        self._sessions[session_id] = stored
        await super().append(session_id, epoch, [change for change in changes if isinstance(change, Released)])

    async def load(self, session_id: str) -> Stored:
        return self.shown(await super().load(session_id))


class ForgetsItsState(PlainStore):
    """a new session is empty and has its state"""

    async def create(self, session_id: str, state: State) -> None:
        await super().create(session_id, dict(list(state.items())[:1]))


class Overwrites(PlainStore):
    """an id that is taken is refused"""

    async def create(self, session_id: str, state: State) -> None:
        try:
            await super().create(session_id, state)
        except SessionExists:
            self._sessions[session_id] = replace(self._sessions[session_id], state=dict(state))


class MakesSessionsUp(PlainStore):
    """an unknown session is not found"""

    def __init__(self) -> None:
        super().__init__()
        self._deleted: set[str] = set()

    async def delete(self, session_id: str) -> None:
        self._deleted.add(session_id)
        await super().delete(session_id)

    async def load(self, session_id: str) -> Stored:
        if session_id not in self._sessions and session_id not in self._deleted and not self._closed:
            return Stored((), {})
        return await super().load(session_id)


class ListsAsItCame(PlainStore):
    """the ids are complete and sorted"""

    async def list_ids(self, prefix: str = "") -> list[str]:
        await super().list_ids(prefix)
        return list(self._sessions)


class ListsOldStates(PlainStore):
    """states are listed as they are stored"""

    async def create(self, session_id: str, state: Mapping[str, Any]) -> None:
        await super().create(session_id, state)
        self._first = {**getattr(self, "_first", {}), session_id: dict(state)}

    async def states(self, prefix: str = "") -> dict[str, Mapping[str, Any]]:
        return {id: self._first[id] for id in await self.list_ids(prefix)}


class OneStateForAll(PlainStore):
    """sessions do not touch each other"""

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        await super().append(session_id, epoch, changes)
        for id, stored in self._sessions.items():
            if any(isinstance(change, StateSet) for change in changes) and stored.state == {"mine": 1}:
                self._sessions[id] = replace(stored, state=self._sessions[session_id].state)


class KeepsTheCallersState(PlainStore):
    """what is stored is a copy"""

    async def create(self, session_id: str, state: State) -> None:
        await super().create(session_id, {})
        self._sessions[session_id] = replace(self._sessions[session_id], state=state)


class HasManyClaimants(PlainStore):
    """a session has one claimant at a time"""

    async def claim(self, session_id: str, claimant: str) -> int:
        if claimant == "another" and session_id in self._claimed:
            self._claimed[session_id] = claimant
        return await super().claim(session_id, claimant)


class LooksThenTakes(PlainStore):
    """of many claims at once one succeeds"""

    async def claim(self, session_id: str, claimant: str) -> int:
        self._get(session_id)
        if self._claimed.get(session_id, claimant) != claimant:
            raise SessionBusy("taken")
        await asyncio.sleep(0)
        self._claimed[session_id] = claimant
        return await super().claim(session_id, claimant)


class RefusesItsOwnClaimant(PlainStore):
    """a claimant may claim again"""

    async def claim(self, session_id: str, claimant: str) -> int:
        if self._claimed.get(session_id) == claimant:
            raise SessionBusy("taken, by you")
        return await super().claim(session_id, claimant)


class HidesItsEpoch(Applying):
    """load tells the epoch of the last claim"""

    def shown(self, stored: Stored) -> Stored:
        return replace(stored, epoch=0)


class ReleasesForAnybody(PlainStore):
    """a release by another claimant does nothing"""

    async def release(self, session_id: str, claimant: str) -> None:
        self._claimed.pop(session_id, None)


class TakesOldEpochs(PlainStore):
    """a write with an old epoch is refused"""

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        current = self._get(session_id).epoch
        await super().append(session_id, current if current - epoch == 1 else epoch, changes)


class AppendsOneByOne(PlainStore):
    """an append is all or nothing"""

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        for change in changes:
            await super().append(session_id, epoch, [change])


class ReadsWaitsAndWrites(PlainStore):
    """appends at the same time are all kept"""

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        stored = self._get(session_id)
        await asyncio.sleep(0)
        self._sessions[session_id] = stored
        await super().append(session_id, epoch, changes)


class SortsPlacesAsText(Applying):
    """messages keep their places"""

    def shown(self, stored: Stored) -> Stored:
        order = sorted(range(len(stored.messages)), key=str)
        return replace(stored, messages=tuple(stored.messages[place] for place in order))


class WritesTheTimeAgain(Applying):
    """messages keep when they were said"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        after = apply(stored, change)
        if not isinstance(change, Ended):
            return after
        return replace(after, times=after.times[: change.index] + (change.at,) * len(change.messages))


class LosesHalfWords(Applying):
    """every part of a message comes back as it was"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        if isinstance(change, Said):
            parts = (Text(part.text) if isinstance(part, Text) else part for part in change.message.parts)
            change = replace(change, message=Message(change.message.role, tuple(parts)))
        return apply(stored, change)


class ForgetsWhyItEnded(Applying):
    """a run is kept from its opening to its end"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        after = apply(stored, change)
        whys = [
            replace(run, stop_reason="end_turn") if run.checkpoint else replace(run, stop_reason=None)
            for run in after.runs
        ]
        return replace(after, runs=tuple(whys)) if isinstance(change, Ended) else after


class ForgetsWhatIsInside(Applying):
    """what a run has used, and what runs inside it have written, is kept until it ends"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        return stored if isinstance(change, Inside | Counted) else apply(stored, change)


class NeverForgetsWhatIsInside(Applying):
    """what a run has used, and what runs inside it have written, is kept until it ends"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        after = apply(stored, change)
        if not isinstance(change, Ended):
            return after
        last = replace(after.runs[-1], inside=stored.runs[-1].inside)
        return replace(after, runs=(*after.runs[:-1], last))


class ForgetsMemories(Applying):
    """a call's memory is kept until there is a newer one"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        after = apply(stored, change)
        if not isinstance(change, Called) or change.memory is not None:
            return after
        return replace(after, runs=(*after.runs[:-1], replace(after.runs[-1], memories={})))


class OnlyAdds(Applying):
    """opening and ending replace what follows their index"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        after = apply(stored, change)
        rest = stored.messages[len(after.messages) :] if isinstance(change, Ended) else ()
        return replace(after, messages=(*after.messages, *rest))


class HalfACheckpoint(Applying):
    """a checkpoint comes back whole"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        if isinstance(change, Ended) and change.checkpoint is not None:
            change = replace(change, checkpoint=replace(change.checkpoint, pending=(), used={}))
        return apply(stored, change)


class KeepsBothRuns(Applying):
    """a continued run takes the place of the one before"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        after = apply(stored, change)
        continues = isinstance(change, Opened) and change.continues is not None
        return replace(after, runs=(*stored.runs, after.runs[-1])) if continues else after


class KeepsEveryCheckpoint(Applying):
    """a new turn drops the open view of the one before"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        after = apply(stored, change)
        new_turn = isinstance(change, Opened) and change.continues is None
        return replace(after, runs=(*stored.runs, after.runs[-1])) if new_turn else after


class ForgetsWhatItContinues(Applying):
    """a continued run takes the place of the one before"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        after = apply(stored, change)
        runs = [replace(run, continued=None) for run in after.runs]
        return replace(after, runs=tuple(runs))


class ContinuesForEver(Applying):
    """a checkpoint is continued once"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        again = isinstance(change, Opened) and bool(stored.runs) and stored.runs[-1].run_id == "run_2"
        return apply(stored, replace(change, continues=None) if again and isinstance(change, Opened) else change)


class KeepsRewoundRuns(Applying):
    """a truncation forgets the runs that it cuts off"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        after = apply(stored, change)
        return replace(after, runs=stored.runs) if isinstance(change, Truncated) else after


class MergesState(Applying):
    """state is replaced whole"""

    def applied(self, stored: Stored, change: Change) -> Stored:
        return apply(stored, StateSet({**stored.state, **change.state}) if isinstance(change, StateSet) else change)


class SharesMessages(PlainStore):
    """a fork has messages of its own"""

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        before = self._get(session_id).messages
        await super().append(session_id, epoch, changes)
        for id, other in self._sessions.items():
            if before and other.messages == before:
                self._sessions[id] = replace(other, messages=self._get(session_id).messages)


class HandsOutItsOwn(PlainStore):
    """what was loaded does not change"""

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        old = self._get(session_id)
        await super().append(session_id, epoch, changes)
        if isinstance(old.state, dict):
            state = dict(self._get(session_id).state)
            old.state.clear()
            old.state.update(state)


class LastLateFirst(PlainStore):
    """late results wait in order until they are told"""

    async def add_late(self, session_id: str, late: LateResult) -> None:
        stored = self._get(session_id)
        self._sessions[session_id] = replace(stored, late=(late, *stored.late))


class LateTakesOver(PlainStore):
    """a late result disturbs no claim"""

    async def add_late(self, session_id: str, late: LateResult) -> None:
        await super().add_late(session_id, late)
        stored = self._get(session_id)
        if len(stored.late) == 1 and not stored.messages:
            self._sessions[session_id] = replace(stored, epoch=stored.epoch + 1)

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        told = any(isinstance(change, LateSet) for change in changes)
        await super().append(session_id, self._get(session_id).epoch if told else epoch, changes)


class HoldsOn(PlainStore):
    """a write can give the session back"""

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        await super().append(session_id, epoch, [change for change in changes if not isinstance(change, Released)])


class WritesIntoTheVoid(PlainStore):
    """a deleted session is gone"""

    def __init__(self) -> None:
        super().__init__()
        self._deleted: set[str] = set()

    async def delete(self, session_id: str) -> None:
        await super().delete(session_id)
        self._deleted.add(session_id)

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        if session_id in self._sessions or session_id not in self._deleted:
            await super().append(session_id, epoch, changes)


class CountsFromZero(PlainStore):
    """a new session under an old id is new"""

    def __init__(self) -> None:
        super().__init__()
        self._first_epochs = count(0, 0)


class NeverCloses(PlainStore):
    """a closed store refuses everything"""

    async def aclose(self) -> None:
        pass


class HalfWhenCut(PlainStore):
    """a cancelled call happens whole or not at all, and the store stays usable"""

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        before = self._get(session_id)
        await super().append(session_id, epoch, changes)
        if len(changes) > 1:
            after = self._get(session_id)
            self._sessions[session_id] = replace(before, messages=after.messages)
            await asyncio.sleep(0)
            self._sessions[session_id] = after


class KeepsItsLock(PlainStore):
    """a cancelled call happens whole or not at all, and the store stays usable"""

    def __init__(self) -> None:
        super().__init__()
        self._lock = asyncio.Lock()

    async def claim(self, session_id: str, claimant: str) -> int:
        await self._lock.acquire()
        await asyncio.sleep(0)
        try:
            return await super().claim(session_id, claimant)
        finally:
            self._lock.release()


class Swallows(PlainStore):
    """a cancellation is never swallowed"""

    async def load(self, session_id: str) -> Stored:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return await super().load(session_id)


# -- stores on one place, and spoilt ones ----------------------------------------------------------------------------


class OnePlace(PlainStore):
    """A store whose sessions others can see, and of which one may be spoilt."""

    def __init__(self, shared: OnePlace | None = None) -> None:
        super().__init__()
        self.unreadable: set[str] = set() if shared is None else shared.unreadable
        if shared is not None:
            self._sessions, self._claimed = shared._sessions, shared._claimed

    async def aclose(self) -> None:
        self._closed = True


class ShowsNothing(OnePlace):
    """another store on the same place sees what was written"""

    def __init__(self, shared: OnePlace | None = None) -> None:
        super().__init__(shared)
        self._late_too = shared is None

    async def load(self, session_id: str) -> Stored:
        stored = await super().load(session_id)
        return stored if self._late_too else replace(stored, late=())


class ClaimsForItself(OnePlace):
    """a session that another store holds is busy"""

    def __init__(self, shared: OnePlace | None = None) -> None:
        super().__init__(shared)
        self._claimed = {}


BROKEN: list[type[PlainStore]] = [
    ForgetsItsState,
    Overwrites,
    MakesSessionsUp,
    ListsAsItCame,
    ListsOldStates,
    OneStateForAll,
    KeepsTheCallersState,
    HasManyClaimants,
    LooksThenTakes,
    RefusesItsOwnClaimant,
    HidesItsEpoch,
    ReleasesForAnybody,
    HoldsOn,
    TakesOldEpochs,
    AppendsOneByOne,
    ReadsWaitsAndWrites,
    SortsPlacesAsText,
    WritesTheTimeAgain,
    LosesHalfWords,
    ForgetsWhyItEnded,
    ForgetsWhatIsInside,
    NeverForgetsWhatIsInside,
    ForgetsMemories,
    OnlyAdds,
    HalfACheckpoint,
    KeepsBothRuns,
    ForgetsWhatItContinues,
    KeepsEveryCheckpoint,
    ContinuesForEver,
    KeepsRewoundRuns,
    MergesState,
    SharesMessages,
    HandsOutItsOwn,
    LastLateFirst,
    LateTakesOver,
    WritesIntoTheVoid,
    CountsFromZero,
    NeverCloses,
    HalfWhenCut,
    KeepsItsLock,
    Swallows,
]
