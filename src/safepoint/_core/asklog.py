"""One append-only list per node: asks, withdrawals, and the marks that decide who came first.

The list is the only thing that other threads and signal handlers write. `list.append` is atomic, so an ask takes no
lock, and every question of timing ("was it in time?", "was it taken back before anybody acted?") has one answer: the
order of the entries. Nothing is ever removed or changed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from safepoint._core.asks import Ask, Request, fold, join
from safepoint._core.points import Level, SafePoint


@dataclass(frozen=True, slots=True)
class Withdrawn:
    ask_id: str


@dataclass(frozen=True, slots=True)
class ActedOn:
    ask_id: str


class Mark(Enum):
    """ANSWERED: the node's own result is recorded; later asks find it finished. SEALED: nothing can follow."""

    ANSWERED = "answered"
    SEALED = "sealed"


Entry: TypeAlias = Ask | Withdrawn | ActedOn | Mark


@dataclass(frozen=True, slots=True)
class Standing:
    """What the log amounts to: the asks that stand, those that came after the answer, and what was acted on.

    `request` is the fold of the asks that stand; `pressing` has the late ones too, which do not change the answer any
    more but cut what follows it.
    """

    asks: tuple[Ask, ...]
    late: tuple[Ask, ...]
    acted: frozenset[str]
    withdrawn: frozenset[str]
    refused: frozenset[str]
    sealed: bool
    request: Request | None
    pressing: Request | None


def replay(entries: list[Entry]) -> Standing:
    """Read the log from its first entry. Pure; the same entries always amount to the same."""
    asks: dict[str, Ask] = {}
    late: dict[str, Ask] = {}
    acted: set[str] = set()
    withdrawn: set[str] = set()
    refused: set[str] = set()
    answered = sealed = False
    for entry in entries:
        match entry:
            case Ask():
                if sealed:
                    refused.add(entry.id)
                else:
                    (late if answered else asks)[entry.id] = entry
            case Withdrawn(ask_id):
                if not sealed and ask_id not in acted and (ask_id in asks or ask_id in late):
                    asks.pop(ask_id, None)
                    late.pop(ask_id, None)
                    withdrawn.add(ask_id)
            case ActedOn(ask_id):
                if ask_id not in withdrawn:
                    acted.add(ask_id)
            case Mark.ANSWERED:
                answered = True
            case Mark.SEALED:
                sealed = True
    request = fold(_engaged(ask) if ask.id in acted else ask for ask in asks.values())
    return Standing(
        tuple(asks.values()),
        tuple(late.values()),
        frozenset(acted),
        frozenset(withdrawn),
        frozenset(refused),
        sealed,
        request,
        pressing=join(request, fold(late.values())),
    )


def _engaged(ask: Ask) -> Ask:
    """Once any node has stopped for an ask, no new work starts for it anywhere: every boundary is its safe point."""
    return replace(ask, at=SafePoint.ANY) if ask.at.level is Level.SAFE else ask


class AskLog:
    """The list, and the last reading of it, which is good until the next entry."""

    __slots__ = ("_entries", "_reading")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        # One tuple, replaced whole: a reader in another thread sees a length and the reading that belongs to it.
        self._reading: tuple[int, Standing] = (0, _NOTHING)

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)

    def standing(self) -> Standing:
        """What the log amounts to now. Safe in any thread."""
        length, standing = self._reading
        if length == len(self._entries):
            return standing
        entries = self._entries.copy()
        standing = replay(entries)
        self._reading = (len(entries), standing)
        return standing


_NOTHING = replay([])
