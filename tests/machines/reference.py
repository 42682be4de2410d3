"""What the contract says about asks, as plainly as it can be written. It shares no code with the runtime.

A node has asks. Those that stand amount to one request: the strongest level, the places joined, the earliest deadline,
recursive if any is. A parent hands down NOW and FORCE always; a safe-point request goes from a run to its own tool
calls, from a sub-agent's call into the sub-agent if it is recursive or was asked of that call, and never through a
tool that was written by hand. Once any node has stopped for an ask, every boundary is a safe point for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final

from safepoint import Source


class Push(IntEnum):
    """How hard a request pushes."""

    NONE = 0
    SAFE = 1
    NOW = 2
    FORCE = 3


class Kind(StrEnum):
    """What a node is, as far as handing down goes."""

    RUN = "run"
    PLAIN = "plain"
    AGENT = "agent"
    HANDMADE = "handmade"


PLACES: Final = ("after_tools", "after_tool", "after_model", "before_effect", "point:p", "point:q", "point:elsewhere")
EVERYWHERE: Final = frozenset(PLACES)
_STRENGTH: Final = {source: rank for rank, source in enumerate(reversed(Source))}


@dataclass(frozen=True, slots=True)
class Wish:
    """The `at` of an ask."""

    push: Push
    places: frozenset[str] = frozenset()


@dataclass
class Asked:
    """One ask. `recorded`: the round after which it was there. `late`: the answer was complete by then."""

    id: str
    wish: Wish
    deadline: float | None
    recursive: bool
    source: Source
    recorded: int
    late: bool = False
    withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """An ask as one node sees it."""

    ask: Asked
    wish: Wish
    source: Source


@dataclass(frozen=True, slots=True)
class Fold:
    """What several asks amount to."""

    heard: tuple[Heard, ...]

    @property
    def asked(self) -> Push:
        return max(each.wish.push for each in self.heard)

    @property
    def places(self) -> frozenset[str]:
        return frozenset[str]().union(*(each.wish.places for each in self.heard))

    @property
    def deadline(self) -> float | None:
        return min((each.ask.deadline for each in self.heard if each.ask.deadline is not None), default=None)

    @property
    def recursive(self) -> bool:
        return any(each.ask.recursive for each in self.heard)

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(each.ask.id for each in self.heard)

    @property
    def first_place(self) -> str | None:
        """Where a run stops that waits for a person: any place will do, so it is always the same one."""
        return "any" if self.places == EVERYWHERE else min(self.places, default=None)

    @property
    def headline(self) -> Source:
        return max((each.source for each in self.heard), key=_STRENGTH.__getitem__)

    def expired(self, now: float) -> bool:
        return self.asked is Push.SAFE and self.deadline is not None and now >= self.deadline

    def push(self, now: float) -> Push:
        return Push.NOW if self.expired(now) else self.asked

    def hits(self, place: str | None, now: float) -> bool:
        return self.push(now) >= Push.NOW or place in self.places or (place == "any" and self.places == EVERYWHERE)


@dataclass
class Stopped:
    """Why and where a node stops."""

    place: str
    push: Push
    fold: Fold
    timed_out: bool

    @property
    def escalated(self) -> bool:
        return self.push >= Push.NOW and any(each.wish.push is Push.SAFE for each in self.fold.heard)

    def contributed(self, ask: Asked) -> bool:
        """It was there when the node stopped, and was one of those that made it stop there and that hard."""
        for each in self.fold.heard:
            if each.ask is ask:
                if each.wish.push >= Push.NOW:
                    return each.wish.push is self.push or (self.place == "now" and not self.timed_out)
                by_time = self.timed_out and ask.deadline is not None and ask.deadline == self.fold.deadline
                everywhere = self.place == "any" and each.wish.places == EVERYWHERE
                return by_time or everywhere or self.place in each.wish.places
        return False


@dataclass(eq=False)
class Party:
    """A node of the tree, as the reference keeps it. `met_under`: what pushed its parent when it was first seen.

    `pushed_at`: when NOW or FORCE first reached it.
    """

    label: str
    kind: Kind
    parent: Party | None
    met_under: Push = Push.NONE
    asks: list[Asked] = field(default_factory=list[Asked])
    stopped: Stopped | None = None
    answered: bool = False
    started: bool = False
    pushed: Push = Push.NONE
    pushed_at: float = 0.0
    over: bool = False
    cancelled: bool = False

    def lineage(self) -> Iterator[Party]:
        """This one and all above it."""
        party: Party | None = self
        while party is not None:
            yield party
            party = party.parent


class Reference:
    """All parties of one example, and which asks have been acted on."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.acted: set[str] = set()
        self._time = time

    @property
    def now(self) -> float:
        return self._time()

    # -- what stands ---------------------------------------------------------------------------------------------------

    def request(self, party: Party) -> Fold | None:
        """What is asked of it."""
        return _fold([*self._own(party, late=False), *self._from_above(party)])

    def pressing(self, party: Party) -> Fold | None:
        """The same, with asks that came after the answer: they only cut what follows it."""
        return _fold([*self._own(party, late=True), *self._from_above(party)])

    def push(self, party: Party) -> Push:
        pressing = self.pressing(party)
        return Push.NONE if pressing is None else pressing.push(self.now)

    def _own(self, party: Party, *, late: bool) -> list[Heard]:
        return [
            Heard(ask, self._wish(ask), ask.source)
            for ask in party.asks
            if not ask.withdrawn and (late or not ask.late)
        ]

    def _wish(self, ask: Asked) -> Wish:
        if ask.id in self.acted and ask.wish.push is Push.SAFE:
            return Wish(Push.SAFE, EVERYWHERE)
        return ask.wish

    def _from_above(self, party: Party) -> list[Heard]:
        parent = party.parent
        pressing = self.pressing(parent) if parent is not None else None
        if parent is None or pressing is None:
            return []
        push = pressing.push(self.now)
        if push >= Push.NOW:
            pushing = [each for each in pressing.heard if Fold((each,)).push(self.now) >= Push.NOW]
            return [Heard(each.ask, Wish(push), Source.PARENT) for each in pushing]
        match parent.kind:
            case Kind.RUN:
                passed = list(pressing.heard) if party.kind is not Kind.RUN else []
            case Kind.AGENT:
                passed = list(pressing.heard) if pressing.recursive else self._own(parent, late=False)
            case Kind.PLAIN | Kind.HANDMADE:
                passed = []
        return [Heard(each.ask, each.wish, Source.PARENT) for each in passed]

    # -- what follows --------------------------------------------------------------------------------------------------

    def check_safe_point(self, party: Party, place: str | None) -> bool:
        """It stands at this place (None: at no safe point). True if it stops, or has stopped before."""
        request = self.request(party)
        if party.stopped is None and request is not None and self._open(party) and request.hits(place, self.now):
            push = request.push(self.now)
            self._act(request, place)
            where = place if place is not None and push is Push.SAFE else push.name.lower()
            party.stopped = Stopped(where, push, request, request.expired(self.now))
        return party.stopped is not None

    def pause(self, party: Party) -> bool:
        """It waits for a person, and ends by itself there unless any ask at all stands."""
        request = self.request(party)
        return self.check_safe_point(party, request.first_place if request is not None else None)

    def settle(self, party: Party, told: int) -> None:
        """It ends in a round in which it may or may not have heard of the last asks: `told` is how hard it stopped."""
        if party.stopped is not None and told > party.stopped.push:
            self._strengthen(party, party.stopped)

    def _strengthen(self, party: Party, stopped: Stopped) -> None:
        request = self.request(party)
        if request is None or request.push(self.now) <= stopped.push or not self._open(party):
            return
        timed_out = stopped.timed_out or request.expired(self.now)
        party.stopped = Stopped(stopped.place, request.push(self.now), request, timed_out)

    def _act(self, fold: Fold, place: str | None) -> None:
        """From now on nobody can take those asks back that alone would have done the same."""
        self.acted |= {each.ask.id for each in fold.heard if Fold((each,)).hits(place, self.now)}

    def _open(self, party: Party) -> bool:
        return party.started and not party.answered and not party.over

    def deliver(self, party: Party, rounds: int) -> None:
        """A round is over: what was asked before it has reached the party by now, if it is NOW or FORCE."""
        pressing = self.pressing(party)
        if pressing is None:
            return
        told = any(each.wish.push >= Push.NOW and each.ask.recorded < rounds for each in pressing.heard)
        if told or pressing.expired(self.now):
            self._push(party, pressing)

    def told(self, party: Party) -> None:
        """The party says that NOW or FORCE has reached it, maybe in the very round in which that was asked."""
        pressing = self.pressing(party)
        if pressing is not None and pressing.push(self.now) >= Push.NOW:
            self._push(party, pressing)

    def _push(self, party: Party, pressing: Fold) -> None:
        # Whoever is pushed that hard already does nothing about one more ask; it can still be taken back.
        if party.started and not party.over and pressing.push(self.now) > party.pushed:
            if party.pushed < Push.NOW:
                party.pushed_at = self.now
            party.pushed = pressing.push(self.now)
            self._act(pressing, None)
        if party.stopped is None:
            self.check_safe_point(party, None)
        else:
            self._strengthen(party, party.stopped)


def _fold(heard: list[Heard]) -> Fold | None:
    distinct = tuple({each.ask.id: each for each in heard}.values())
    return Fold(distinct) if distinct else None
