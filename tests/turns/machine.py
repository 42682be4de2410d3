"""Everything that can be done to a loop, in any order, from two threads and from the loop itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from safepoint import SafePoint
from safepoint.turns import FailedTurn, preempt, stop
from tests.turns.world import Where, World

AT_REST: Final = -1
where: st.SearchStrategy[Where] = st.sampled_from(["thread", "loop", "outside"])
then = st.sampled_from([AT_REST, AT_REST, AT_REST, 0, 1, 2, 3])
points = st.sampled_from(
    [SafePoint.ANY, SafePoint.AFTER_TOOLS, SafePoint.AFTER_MODEL, SafePoint.BEFORE_EFFECT, SafePoint.named("never")]
)
seconds = st.sampled_from([0.5, 1.0, 3.0, 8.0])
wishes: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just(dict[str, Any]()),
    st.fixed_dictionaries({"preempt": points}),
    st.fixed_dictionaries({"preempt": points, "within": seconds}),
    st.fixed_dictionaries({"preempt": points, "delay": seconds}),
    st.fixed_dictionaries({"preempt": points, "within": seconds, "delay": seconds}),
    st.just({"interrupt": True}),
    st.fixed_dictionaries({"interrupt": st.just(True), "delay": seconds}),
    st.just({"join": True}),
)
stops: st.SearchStrategy[tuple[SafePoint | None, dict[str, Any]]] = st.one_of(
    st.just((None, {})),
    st.tuples(points, st.just({})),
    st.tuples(points, st.fixed_dictionaries({"within": seconds})),
    st.just((SafePoint.NOW, {})),
    st.just((SafePoint.FORCE, {})),
    st.just((None, {"skip_checkpoint": True})),
    st.just((None, {"cause": "because"})),
)


def try_again(failed: FailedTurn[str]) -> str:
    return "retry"


class TurnMachine(RuleBasedStateMachine):
    """The scheduler is the example: nothing moves unless a rule moves it.

    What ends a loop is not done before it has had `patience` steps to get somewhere.
    """

    counts: ClassVar[Counter[tuple[str, str, str]]] = Counter()
    world: World
    broken = False
    patience = 0
    age = 0

    @initialize(
        carry=st.sampled_from(["drop", "requeue"]),
        on_turn_error=st.sampled_from(["stop", "continue", "skip", "retry", try_again]),
        waits=st.booleans(),
        in_session=st.booleans(),
        begun=st.sampled_from([False, True, True, True]),
        patience=st.sampled_from([0, 4, 8, 12, 20]),
    )
    def begin(
        self, carry: Any, on_turn_error: Any, waits: bool, begun: bool, patience: int, in_session: bool = False
    ) -> None:  # Any: literals
        self.world = World(carry, on_turn_error, waits=waits, in_session=in_session)
        self.patience = patience
        if begun:
            self.world.push({}, "outside")
            self.world.start()
            self.go(AT_REST)

    def go(self, how_far: int) -> None:
        self.age += 1
        try:
            if how_far == AT_REST:
                self.world.event_loop.settle()
            for _ in range(max(0, how_far)):
                self.world.event_loop.round()
            self.world.check()
        except BaseException:
            self.broken = True
            raise

    def old_enough(self) -> bool:
        return self.age >= self.patience

    def stands_at(self, kind: str) -> bool:
        return self.world.gates.of(kind) is not None

    def give(self, kind: str, command: Any, how_far: int) -> None:  # Any: as the gate understands it
        gate = self.world.gates.of(kind)
        assert gate is not None
        gate.through.set_result(command)
        self.go(how_far)

    # -- what callers do -----------------------------------------------------------------------------------------------

    @rule(wish=wishes, where=where, by_strategy=st.booleans(), then=then)
    def push(self, wish: dict[str, Any], where: Where, by_strategy: bool, then: int) -> None:  # Any: options
        self.world.push(wish, where, by_strategy=by_strategy and bool(wish))
        self.go(then)

    @precondition(lambda self: self.world.may_withdraw())
    @rule(which=st.integers(0, 20), where=where, then=then)
    def withdraw(self, which: int, where: Where, then: int) -> None:
        self.world.withdraw(which, where)
        self.go(then)

    @precondition(lambda self: bool(self.world.loop.view.failed))
    @rule(requeue=st.sampled_from([True, True, False]), then=then)
    def decide(self, requeue: bool, then: int) -> None:
        self.world.decide(requeue=requeue)
        self.go(then)

    @precondition(old_enough)
    @rule(how=stops, where=where, then=then)
    def stop(self, how: tuple[SafePoint | None, dict[str, Any]], where: Where, then: int) -> None:  # Any: as above
        self.world.stop(how[0], how[1], where)
        self.go(then)

    @precondition(lambda self: self.world.started and not self.world.loop.ended and bool(self.world.loop.questions))
    @rule(then=then)
    def answer(self, then: int) -> None:
        self.world.answer()
        self.go(then)

    @precondition(lambda self: self.world.started and not self.world.loop.ended and bool(self.world.loop.questions))
    @rule(then=then)
    def cancel_waiting(self, then: int) -> None:
        self.world.cancel_waiting()
        self.go(then)

    @rule(seconds=seconds)
    def time_passes(self, seconds: float) -> None:
        self.world.event_loop.advance(seconds)
        self.go(0)

    # -- what the loop's own parts do ----------------------------------------------------------------------------------

    @precondition(lambda self: not self.world.started)
    @rule(then=then)
    def start(self, then: int) -> None:
        self.world.start()
        self.go(then)

    @precondition(lambda self: self.stands_at("plan"))
    @rule(consumed=st.integers(1, 3), dropped=st.sampled_from([0, 0, 1]), then=then)
    def plan(self, consumed: int, dropped: int, then: int) -> None:
        self.give("plan", (consumed, dropped), then)

    @precondition(lambda self: self.stands_at("prepare"))
    @rule(then=then)
    def prepare(self, then: int) -> None:
        self.give("prepare", "go", then)

    @precondition(lambda self: self.stands_at("model"))
    @rule(command=st.sampled_from(["work", "work", "work", "say", "ask", "fail"]), then=then)
    def model(self, command: str, then: int) -> None:
        self.give("model", command, then)

    @precondition(lambda self: self.stands_at("tool"))
    @rule(command=st.sampled_from(["go", "go", "fail"]), then=then)
    def tool(self, command: str, then: int) -> None:
        self.give("tool", command, then)

    @precondition(lambda self: self.stands_at("watch"))
    @rule(then=then)
    def watch(self, then: int) -> None:
        self.give("watch", "go", then)

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    @precondition(old_enough)
    @rule(
        trouble=st.sampled_from(
            ["until idle", "plan", "prepare", "watch", "later", "store", "store is well", "cancel", "crash", "restart"]
        ),
        seconds=seconds,
        where=where,
        then=then,
    )
    def trouble(self, trouble: str, seconds: float, where: Where, then: int) -> None:
        world = self.world
        if trouble == "until idle":
            world.stop(None, {"idle_for": seconds}, where)
        elif trouble in ("plan", "prepare", "watch") and self.stands_at(trouble):
            self.give(trouble, "fail", 0)
        elif trouble == "later" and self.stands_at("plan"):
            self.give("plan", "later", 0)
        elif trouble.startswith("store"):
            world.store.fails = OSError("told to fail") if trouble == "store" else None
        elif trouble == "cancel":
            world.cancel_task()
        elif trouble == "crash":
            self._again(world.crash)
        elif trouble == "restart":
            self._again(world.restart)
        self.go(then)

    def _again(self, act: Callable[[], None]) -> None:
        self._guarded(act)
        self.age = 0
        self.world.start()

    def _guarded(self, act: Callable[[], object]) -> None:
        try:
            act()
        except BaseException:
            self.broken = True
            self.world.give_up()
            raise

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        if self.broken:
            self.world.give_up()
            return
        self._guarded(self.world.end)
        self.counts.update(self.world.moves)


def drawn_arrows() -> list[tuple[str, str, str]]:
    """All arrows of the two machines, as their modules draw them."""
    tables = (("preempt", preempt._MOVES), ("stop", stop._MOVES))  # pyright: ignore[reportPrivateUsage]  # the drawing
    return [
        (name, str(before), str(after))
        for name, moves in tables
        for before, afters in moves.items()
        for after in afters
    ]


def table(counts: Counter[tuple[str, str, str]]) -> str:
    rows = [
        f"{name:8} {before:>10} → {after:10} {counts[name, before, after]:>9,}"
        for name, before, after in drawn_arrows()
    ]
    return "\n".join(sorted(rows))
