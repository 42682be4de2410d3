"""One append-only list per node: asks, withdrawals, and the marks that decide who came first.

The list is the only thing that other threads and signal handlers write. `list.append` is atomic, so an ask takes no
lock, and every question of timing ("was it in time?", "was it taken back before anybody acted?") has one answer: the
order of the entries. Nothing is ever removed or changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import reduce
from typing import NamedTuple, TypeAlias

from safepoint._core.asks import Ask, Request, alone, fold, join
from safepoint._core.points import Level, SafePoint


@dataclass(frozen=True, slots=True)
class Withdrawn:
    ask_id: str


@dataclass(frozen=True, slots=True)
class ActedOn:
    ask_id: str


class Mark(Enum):
    """ANSWERED: the node's own result is recorded; later asks find it finished. SEALED: nothing can follow."""

    ANSWERED = auto()
    SEALED = auto()


Entry: TypeAlias = Ask | Withdrawn | ActedOn | Mark


class Standing(NamedTuple):
    """What the log amounts to: the asks that stand, those that came after the answer, and what was acted on.

    `request` is the fold of the asks that stand; `pressing` has the late ones too, which do not change the answer any
    more but cut what follows it. A tuple and no dataclass, because one is made for every entry of every log.
    """

    asks: tuple[Ask, ...] = ()
    late: tuple[Ask, ...] = ()
    acted: frozenset[str] = frozenset()
    withdrawn: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    answered: bool = False
    sealed: bool = False
    request: Request | None = None
    pressing: Request | None = None

    def after(self, entry: Entry) -> Standing:
        """What the log amounts to with one more entry. Pure."""
        match entry:
            case Ask():
                return self._asked(entry)
            case Withdrawn(ask_id):
                return self._taken_back(ask_id)
            case ActedOn(ask_id):
                return self._acted_on(ask_id)
            case Mark.ANSWERED:
                return self._replace(answered=True)
            case Mark.SEALED:
                return self._replace(sealed=True)

    def _asked(self, ask: Ask) -> Standing:
        # Two threads may hand in one ask, each not knowing of the other: the first time counts, also if it was since
        # taken back.
        if ask.id in self.withdrawn or any(ask.id == each.id for each in (*self.asks, *self.late)):
            return self
        if self.sealed:
            return self._replace(refused=self.refused | {ask.id})
        request = alone(ask)
        pressing = join(self.pressing, request)
        if self.answered:
            return self._replace(late=(*self.late, ask), pressing=pressing)
        return self._replace(asks=(*self.asks, ask), request=join(self.request, request), pressing=pressing)

    def _taken_back(self, ask_id: str) -> Standing:
        asks, late = _without(self.asks, ask_id), _without(self.late, ask_id)
        if self.sealed or ask_id in self.acted or (asks, late) == (self.asks, self.late):
            return self
        return self._folded(asks, late)._replace(withdrawn=self.withdrawn | {ask_id})

    def _acted_on(self, ask_id: str) -> Standing:
        if ask_id in self.withdrawn:
            return self
        after = self._replace(acted=self.acted | {ask_id})
        # NOW and FORCE stay what they are: the request is the same object, and all that was made of it stays good.
        is_safe = any(ask.id == ask_id and ask.at.level is Level.SAFE for ask in self.asks)
        return after._folded(self.asks, self.late) if is_safe else after

    def _folded(self, asks: tuple[Ask, ...], late: tuple[Ask, ...]) -> Standing:
        request = fold([_engaged(ask) if ask.id in self.acted else ask for ask in asks] if self.acted else asks)
        return self._replace(asks=asks, late=late, request=request, pressing=join(request, fold(late)))


def _without(asks: tuple[Ask, ...], ask_id: str) -> tuple[Ask, ...]:
    return tuple(ask for ask in asks if ask.id != ask_id)


def _engaged(ask: Ask) -> Ask:
    """Once any node has stopped for an ask, no new work starts for it anywhere: every boundary is its safe point."""
    return replace(ask, at=SafePoint.ANY) if ask.at.level is Level.SAFE else ask


def replay(entries: Iterable[Entry]) -> Standing:
    """Read a log from its first entry. Pure; the same entries always amount to the same."""
    return reduce(Standing.after, entries, Standing())


class AskLog:
    """The list, and how far it was read."""

    __slots__ = ("_entries", "_reading")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        # One tuple, replaced whole: a reader in another thread sees a length and the reading that belongs to it.
        self._reading: tuple[int, Standing] = (0, Standing())

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)

    def standing(self) -> Standing:
        """What the log amounts to now. Safe in any thread."""
        length, standing = self._reading
        if length < len(self._entries):
            new = self._entries[length:]
            standing = reduce(Standing.after, new, standing)
            self._reading = (length + len(new), standing)
        return standing
