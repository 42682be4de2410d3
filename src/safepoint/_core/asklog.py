"""One append-only list per node: asks, withdrawals, and the marks that decide which came first.

The list is the only object that other threads and signal handlers write. `list.append` is atomic, so an ask takes no
lock, and every question of timing ("was the ask in time?", "was it withdrawn before the node acted on it?") has one
answer: the order of the entries. No entry is ever removed or changed.

Each entry is read once, at the same cost however many entries precede it. Two threads may read the same entry; both
record the same facts. Each fact is stored with the index of its entry, and a reading counts only the facts of earlier
entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from safepoint._core.asks import Ask, Folded, Request, earlier, join, stronger_at
from safepoint._core.holds import Hold, Released
from safepoint._core.points import BOUNDARIES, EVERYWHERE, NO_PLACES, Level, SafePoint
from safepoint._values import Value

# Asks in the order in which they were made, and what they amount to together. Any of them can be taken out again.
#
# The asks are the leaves of perfect binary trees, the largest first, as the digits of a binary number. Each branch
# knows what the asks below it amount to. One more ask makes one new branch on average; one fewer makes a new way from
# its leaf to the root of its tree. Nothing is ever changed in place, so any thread can read one sequence while another
# makes the next.


class Amount(NamedTuple):
    """What asks amount to together, apart from their reasons."""

    at: SafePoint
    deadline: float | None
    recursive: bool

    @staticmethod
    def of(one: Ask | Request) -> Amount:
        return Amount(one.at, one.deadline, one.recursive)

    def plus(self, ask: Ask) -> Amount:
        recursive = self.recursive or ask.recursive
        return Amount(stronger_at(self.at, ask.at), earlier(self.deadline, ask.deadline), recursive)


class _Branch(NamedTuple):
    amount: Amount | None
    left: _Tree
    right: _Tree


# None: a leaf whose ask was taken out.
_Tree: TypeAlias = _Branch | Ask | None


_NO_IDS: frozenset[str] = frozenset()
# The key of asks with a deadline in the index of a sequence. No place is called that: named points have a prefix.
_WITH_DEADLINE = "deadline"


class AskSequence:
    """`count`: how many asks it has ever had, which is the number of the next one."""

    __slots__ = ("_alike", "_asks", "_first", "_ids", "_index", "_is_thinned", "_last_hitting", "_trees", "count")

    def __init__(
        self,
        trees: tuple[tuple[int, _Tree], ...] = (),
        count: int = 0,
        *,
        after: AskSequence | None = None,
        first: Ask | None = None,
    ) -> None:
        # Each with the number of its leaves.
        self._trees = trees
        self.count = count
        self._first = first
        # All it has ever had were for the same place, without a deadline.
        self._alike: bool = after is None or after._alike
        self._is_thinned: bool = after is not None and after._is_thinned
        # The asks that name a place, by their numbers. It is only ever added to, and all sequences of one log share
        # it: each counts the asks whose numbers are below its own count.
        self._index: dict[str, dict[int, Ask]] = after._index if after is not None and after.count else {}
        # Listed once. Two threads may both do so; they come to the same.
        self._asks: tuple[Ask, ...] | None = None
        self._ids: frozenset[str] | None = None
        self._last_hitting: tuple[str | None, frozenset[str]] | None = None

    def plus(self, ask: Ask) -> AskSequence:
        """With one more ask, at the place `count`."""
        trees, leaves = self._trees, 1
        tree: _Tree = ask
        while trees and trees[-1][0] == leaves:
            tree = _branch(trees[-1][1], tree)
            trees, leaves = trees[:-1], 2 * leaves
        longer = AskSequence((*trees, (leaves, tree)), self.count + 1, after=self, first=self._first or ask)
        longer._take(ask)
        return longer

    def _take(self, ask: Ask) -> None:
        """Note the ask that was added last, while this is being made. Two threads may note the same."""
        first, index = self._first, self._index
        self._alike = self._alike and ask.deadline is None and first is not None and ask.at is first.at
        for place in ask.at.places:
            index.setdefault(place, {})[self.count - 1] = ask
        if ask.deadline is not None:
            index.setdefault(_WITH_DEADLINE, {})[self.count - 1] = ask

    def minus(self, place: int) -> AskSequence:
        """Without the ask at that place."""
        number = 0
        while place >= self._trees[number][0]:
            place -= self._trees[number][0]
            number += 1
        leaves, tree = self._trees[number]
        smaller = (leaves, _without(tree, leaves, place))
        trees = (*self._trees[:number], smaller, *self._trees[number + 1 :])
        shorter = AskSequence(trees, self.count, after=self, first=self._first)
        shorter._is_thinned = True
        return shorter

    def covers(self, place: str) -> bool:
        """Whether one of them names this place."""
        if place in BOUNDARIES:
            return any(ask.at.covers(place) for ask in self.asks())
        return place not in NO_PLACES and bool(self._noted(place) or self._noted(EVERYWHERE))

    def hitting(self, place: str | None, now: float) -> frozenset[str]:
        """The ids of those that hit the place, each by itself."""
        # Thousands of asks usually name the same point; then all of them hit or none does.
        if self._alike and self._first is not None:
            return self.ids() if self._first.hits(place, now) else _NO_IDS
        last = self._last_hitting
        has_deadline = _WITH_DEADLINE in self._index
        if last is not None and last[0] == place and not has_deadline:
            return last[1]
        found = frozenset([ask.id for ask in self._find(place)])
        if has_deadline:
            found |= frozenset([ask.id for ask in self._noted(_WITH_DEADLINE) if ask.hits(place, now)])
        self._last_hitting = (place, found)
        return found

    def _find(self, place: str | None) -> Iterable[Ask]:
        """Those that hit the place, whatever the time is."""
        if place in BOUNDARIES:
            return [ask for ask in self.asks() if ask.at.level is not Level.SAFE or ask.at.covers(place)]
        places = () if place is None or place in NO_PLACES else (EVERYWHERE, place)
        return [ask for each in dict.fromkeys((*NO_PLACES, *places)) for ask in self._noted(each)]

    def _noted(self, key: str) -> list[Ask]:
        noted = self._index.get(key)
        if noted is None:
            return []
        count, is_thinned = self.count, self._is_thinned
        # A copy: another thread may add to it.
        return [ask for n, ask in tuple(noted.items()) if n < count and not (is_thinned and self._is_out(n))]

    def _is_out(self, number: int) -> bool:
        """Whether the ask with that number was taken out."""
        for leaves, root in self._trees:
            if number < leaves:
                tree = root
                while isinstance(tree, _Branch):
                    leaves //= 2
                    tree, number = (tree.left, number) if number < leaves else (tree.right, number - leaves)
                return tree is None
            number -= leaves
        return True

    def amount(self) -> Amount | None:
        """What all of them amount to; None if there is none."""
        total: Amount | None = None
        for _, tree in self._trees:
            total = _together(total, _amount(tree))
        return total

    def asks(self) -> tuple[Ask, ...]:
        """All that were not taken out, in their order."""
        asks = self._asks
        if asks is None:
            found: list[Ask] = []
            for _, tree in self._trees:
                _gather(tree, found)
            asks = self._asks = tuple(found)
        return asks

    def ids(self) -> frozenset[str]:
        """The ids of these."""
        ids = self._ids
        if ids is None:
            ids = self._ids = frozenset([ask.id for ask in self.asks()])
        return ids


def _gather(tree: _Tree, found: list[Ask]) -> None:
    if isinstance(tree, _Branch):
        _gather(tree.left, found)
        _gather(tree.right, found)
    elif tree is not None:
        found.append(tree)


def _branch(left: _Tree, right: _Tree) -> _Branch:
    return _Branch(_together(_amount(left), _amount(right)), left, right)


def _without(tree: _Tree, leaves: int, place: int) -> _Tree:
    if not isinstance(tree, _Branch):
        return None
    half = leaves // 2
    if place < half:
        return _branch(_without(tree.left, half, place), tree.right)
    return _branch(tree.left, _without(tree.right, half, place - half))


def _amount(tree: _Tree) -> Amount | None:
    if isinstance(tree, Ask):
        return Amount.of(tree)
    return tree.amount if tree is not None else None


def _together(one: Amount | None, other: Amount | None) -> Amount | None:
    if one is None or other is None:
        return other if one is None else one
    recursive = one.recursive or other.recursive
    return Amount(stronger_at(one.at, other.at), earlier(one.deadline, other.deadline), recursive)


class Withdrawn(Value, frozen=True):
    ask_id: str


class ActedOn(Value, frozen=True):
    ask_ids: frozenset[str]


class Mark(Enum):
    """ANSWERED: the node's own result is recorded; later asks find it finished. SEALED: nothing can follow."""

    ANSWERED = auto()
    SEALED = auto()


Entry: TypeAlias = Ask | Withdrawn | ActedOn | Mark | Hold | Released


_NONE = AskSequence()


class _Place(NamedTuple):
    """Where an ask stands: its entry, and its place in the sequence of those in time, or of the late ones."""

    entry: int
    place: int
    late: bool


class _Facts:
    """What is known of each ask, by its id, with the index of the entry that says so. Facts are only ever added."""

    __slots__ = ("acted", "asked", "refused", "safe", "withdrawn")

    def __init__(self) -> None:
        self.asked: dict[str, _Place] = {}
        self.acted: dict[str, int] = {}
        self.withdrawn: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        # The safe-point asks that came in time.
        self.safe: set[str] = set()


class Standing:
    """What the first `length` entries of a log amount to. Immutable.

    `request` is the fold of the asks that stand; `pressing` has the late ones too, which do not change the answer any
    more but cut what follows it.
    """

    __slots__ = (
        "_asks",
        "_facts",
        "_late",
        "answered",
        "engaged",
        "holds",
        "length",
        "pressing",
        "request",
        "sealed",
    )

    def __init__(
        self,
        facts: _Facts,
        length: int = 0,
        asks: AskSequence = _NONE,
        late: AskSequence = _NONE,
        *,
        before: Standing | None = None,
    ) -> None:
        self._facts = facts
        self.length = length
        self._asks = asks
        self._late = late
        self.answered: bool = before is not None and before.answered
        self.sealed: bool = before is not None and before.sealed
        # The safe-point asks for which some node has stopped: no new work starts for them anywhere.
        self.engaged: frozenset[str] = before.engaged if before is not None else frozenset()
        # The holds that stand. While a request stands too, they are void.
        self.holds: tuple[Hold, ...] = before.holds if before is not None else ()
        self.request: Request | None = before.request if before is not None else None
        self.pressing: Request | None = before.pressing if before is not None else None

    def after(self, entry: Entry) -> Standing:
        """What the log amounts to with one more entry."""
        match entry:
            case Ask():
                return self._asked(entry)
            case Withdrawn(ask_id):
                return self._taken_back(ask_id)
            case ActedOn(ask_ids):
                return self._acted_on(ask_ids)
            case Hold():
                return self._held(entry)
            case Released(hold_id):
                return self._released(hold_id)
            case Mark.ANSWERED:
                after = self._next()
                after.answered = True
                return after
            case Mark.SEALED:
                after = self._next()
                after.sealed = True
                return after

    def _next(self, asks: AskSequence | None = None, late: AskSequence | None = None) -> Standing:
        """The same with one entry more, and these asks."""
        asks = self._asks if asks is None else asks
        late = self._late if late is None else late
        return Standing(self._facts, self.length + 1, asks, late, before=self)

    def _asked(self, ask: Ask) -> Standing:
        late = self.answered
        place = _Place(self.length, (self._late if late else self._asks).count, late)
        # Two threads may hand in one ask, each not knowing of the other: the first time counts, also if it was since
        # taken back.
        if self._facts.asked.setdefault(ask.id, place).entry != self.length:
            return self._next()
        if self.sealed:
            self._facts.refused.setdefault(ask.id, self.length)
            return self._next()
        if late:
            after = self._next(late=self._late.plus(ask))
            after._press()
        else:
            after = self._next(self._asks.plus(ask))
            if ask.at.level is Level.SAFE:
                self._facts.safe.add(ask.id)
            after._fold(Amount.of(ask) if self.request is None else Amount.of(self.request).plus(ask))
        return after

    def _taken_back(self, ask_id: str) -> Standing:
        place = self._facts.asked.get(ask_id)
        if place is None or place.entry >= self.length or self.sealed or self._knows(self._facts.acted, ask_id):
            return self._next()
        if self._facts.withdrawn.setdefault(ask_id, self.length) != self.length:
            return self._next()
        if place.late:
            after = self._next(late=self._late.minus(place.place))
            after._press()
        else:
            after = self._next(self._asks.minus(place.place))
            after._fold(after._asks.amount())
        return after

    def _held(self, hold: Hold) -> Standing:
        after = self._next()
        if self.sealed:
            self._facts.refused.setdefault(hold.id, self.length)
        else:
            after.holds = (*self.holds, hold)
        return after

    def _released(self, hold_id: str) -> Standing:
        after = self._next()
        if not self.sealed and any(hold.id == hold_id for hold in self.holds):
            self._facts.withdrawn.setdefault(hold_id, self.length)
            after.holds = tuple([hold for hold in self.holds if hold.id != hold_id])
        return after

    def _acted_on(self, ask_ids: frozenset[str]) -> Standing:
        facts, after = self._facts, self._next()
        acted = ask_ids - facts.withdrawn.keys() if facts.withdrawn else ask_ids
        facts.acted.update(dict.fromkeys(acted - facts.acted.keys() if facts.acted else acted, self.length))
        engaged = self.engaged | (acted & facts.safe)
        # NOW and FORCE stay what they are: the request is the same object, and all that was made of it stays good.
        if engaged != self.engaged:
            after.engaged = engaged
            after._fold(after._asks.amount())
        return after

    def _fold(self, amount: Amount | None) -> None:
        """Work out the requests anew, while this is being made."""
        if amount is None:
            self.request = None
        else:
            at = SafePoint.ANY if self.engaged and amount.at.level is Level.SAFE else amount.at
            recursive = amount.recursive
            self.request = Folded(at, amount.deadline, self._asks, recursive=recursive, engaged=self.engaged)
        self._press()

    def _press(self) -> None:
        late = self._late.amount()
        if late is None:
            self.pressing = self.request
        else:
            behind = Folded(late.at, late.deadline, self._late, recursive=late.recursive)
            self.pressing = join(self.request, behind)

    def _knows(self, facts: dict[str, int], ask_id: str) -> bool:
        index = facts.get(ask_id)
        return index is not None and index < self.length

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def asks(self) -> tuple[Ask, ...]:
        """The asks that stand, as they were made."""
        return self._asks.asks()

    @property
    def late(self) -> tuple[Ask, ...]:
        """Those that came after the answer."""
        return self._late.asks()

    @property
    def has_late(self) -> bool:
        return self.pressing is not self.request

    @property
    def acted(self) -> frozenset[str]:
        return self._all_known(self._facts.acted)

    @property
    def withdrawn(self) -> frozenset[str]:
        return self._all_known(self._facts.withdrawn)

    @property
    def refused(self) -> frozenset[str]:
        return self._all_known(self._facts.refused)

    def _all_known(self, facts: dict[str, int]) -> frozenset[str]:
        return frozenset([ask_id for ask_id, index in tuple(facts.items()) if index < self.length])

    def was_acted_on(self, ask_id: str) -> bool:
        return self._knows(self._facts.acted, ask_id)

    def was_withdrawn(self, ask_id: str) -> bool:
        return self._knows(self._facts.withdrawn, ask_id)

    def was_refused(self, ask_id: str) -> bool:
        return self._knows(self._facts.refused, ask_id)

    def is_first(self, ask: Ask, index: int) -> bool:
        """Is the entry at that index this ask's first, and does it stand?"""
        place = self._facts.asked.get(ask.id)
        first = place is not None and place.entry == index
        return first and not self.was_withdrawn(ask.id) and not self.was_refused(ask.id)

    def not_acted_on(self, ask_ids: frozenset[str]) -> frozenset[str]:
        acted = self._facts.acted
        return ask_ids - acted.keys() if acted else ask_ids

    def open_among(self, ask_ids: frozenset[str]) -> frozenset[str]:
        """Which of them stand here, and can still be taken back."""
        facts = self._facts
        left = self.not_acted_on(ask_ids) & facts.asked.keys() if facts.asked else _NO_IDS
        for settled in (facts.withdrawn, facts.refused):
            if left and settled:
                left -= settled.keys()
        return left


def replay(entries: Iterable[Entry]) -> Standing:
    """Read a log from its first entry. The same entries always amount to the same."""
    log = AskLog()
    for entry in entries:
        log.append(entry)
    return log.standing()


class AskLog:
    """The list, and how far it was read.

    `is_quiet`: nothing was ever asked here; the log holds marks at most.
    """

    __slots__ = ("_entries", "_reading", "is_quiet")

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        # Replaced whole: a reader in another thread sees a length and the reading that belongs to it. A quiet log is
        # most likely never read, so its reading is made when it is.
        self._reading: Standing | None = None
        self.is_quiet = True

    def append(self, entry: Entry) -> None:
        # Before the entry: who finds the log quiet knows that no ask precedes what it has written itself.
        if not isinstance(entry, Mark):
            self.is_quiet = False
        self._entries.append(entry)

    def __len__(self) -> int:
        return len(self._entries)

    def standing(self) -> Standing:
        """What the log amounts to now. Safe in any thread."""
        standing = self._reading
        if standing is None:
            standing = Standing(_Facts())
        while standing.length < len(self._entries):
            standing = standing.after(self._entries[standing.length])
        self._reading = standing
        return standing

    def asks_from(self, index: int, *, most: int) -> tuple[list[Ask], int]:
        """The asks that stand among the entries from that one on, and the entry to go on from next time.

        `most`: how many asks are taken at once.
        """
        length = len(self._entries)  # first: an ask that is counted here has made the log loud before
        if self.is_quiet:
            return [], length
        standing, found = self.standing(), list[Ask]()
        while index < standing.length and len(found) < most:
            entry = self._entries[index]
            if isinstance(entry, Ask) and standing.is_first(entry, index):
                found.append(entry)
            index += 1
        return found, index

    def first_ask(self, level: Level, index: int) -> Ask | None:
        """The first ask at that level that stands, among the entries from that one on."""
        standing = self.standing()
        for number in range(index, standing.length):
            entry = self._entries[number]
            if isinstance(entry, Ask) and entry.at.level is level and standing.is_first(entry, number):
                return entry
        return None
