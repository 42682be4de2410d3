"""The rules that both machines share. The machine is the scheduler: nothing moves unless a rule moves it.

A rule gives one command and then says how far the loop may run: not at all, a few rounds, or until nothing is ready.
So two commands can fall into the same moment, in either order, and an ask can fall between any two steps of a run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Final, TypeAlias, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from safepoint import Source
from safepoint.agent.events import ReasoningStreamed, RunEnded, TextStreamed
from safepoint.errors import ModelError, ModelUnavailable, Retry
from tests.machines.arrows import Arrow
from tests.machines.course import Stage
from tests.machines.gates import (
    AskSomebody,
    Begin,
    End,
    EnterShield,
    Gate,
    LeaveShield,
    Manner,
    ModelGate,
    Reach,
    Return,
    Speak,
    Throw,
    ToolGate,
    Wanted,
)
from tests.machines.reference import EVERYWHERE, Push, Wish
from tests.machines.stillness import faults_at_rest, faults_of_requests
from tests.machines.world import PATIENCE, Audience, Held, Plan, World

T = TypeVar("T")

Opening: TypeAlias = "tuple[tuple[Wanted, ...], ...] | None"
"""None: the run is not begun. Otherwise it is, and each entry is what every model that is asked then answers with."""

AT_REST: Final = -1
then = st.sampled_from([AT_REST, AT_REST, AT_REST, AT_REST, 0, 1, 2, 3])
pick = st.integers(0, 11)
_SAFE: Final = [
    *(frozenset({place}) for place in ("after_tools", "after_tool", "after_model", "before_effect", "point:p")),
    frozenset({"after_tools", "before_effect"}),
    frozenset({"point:p", "point:q"}),
    frozenset({"after_model", "point:q", "after_tool"}),
    EVERYWHERE,
]
safe_wishes = st.sampled_from([Wish(Push.SAFE, places) for places in _SAFE])
withins = st.sampled_from([None, None, None, 0.5, 2.0])
sources = st.sampled_from([Source.USER, Source.POLICY, Source.DEADLINE, Source.SHUTDOWN])
seconds = st.sampled_from([0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0])
manners = st.sampled_from(Manner)
model_errors = st.sampled_from(["busy", "busy", "broken", "bug"])
tool_errors = st.sampled_from(["value", "retry", "cancelled", "exit"])


def make_model_error(name: str) -> Exception:
    return {
        "busy": ModelUnavailable("the provider is busy"),
        "broken": ModelError("the provider is broken"),
        "bug": KeyError("the client has a bug"),
    }[name]


def make_tool_error(name: str) -> BaseException:
    return {
        "value": ValueError("it does not work"),
        "retry": Retry("once more, please"),
        "cancelled": asyncio.CancelledError(),
        "exit": SystemExit(3),
    }[name]


class StopMachine(RuleBasedStateMachine):
    """Everything that can be done to one run. `wanted` is what its model may ask for."""

    counts: ClassVar[Counter[Arrow]] = Counter()
    wanted: tuple[Wanted, ...] = ()
    openings: st.SearchStrategy[Opening] = st.none()
    world: World
    broken = False

    def begin(self, plan: Plan, opening: Opening) -> None:
        self.world = World(plan, self.counts)
        self.world.prepare()
        self.open(opening)

    def open(self, opening: Opening) -> None:
        """Play the first moves, so that an example need not find its way to where tools run."""
        if opening is None:
            return
        self.world.start(waits=True)
        self.go(AT_REST)
        for hook in self.others():
            hook.give(Return("done"))
        self.go(AT_REST)
        for calls in opening:
            for gate in self.models():
                gate.give(End(tuple(call for call in calls if call.name in self.world.tools_of(gate.node))))
            self.go(AT_REST)

    def go(self, how_far: int) -> None:
        """Run the loop, and hold what happened against the reference."""
        world = self.world
        if how_far == AT_REST:
            world.loop.settle()
        for _ in range(max(0, how_far)):
            world.loop.round()
        self.check(at_rest=how_far == AT_REST)

    def check(self, *, at_rest: bool) -> None:
        world = self.world
        faults = [*world.faults, *faults_of_requests(world)]
        if at_rest:
            faults += faults_at_rest(world)
        self.broken = bool(faults)
        assert not faults, "\n".join(faults)

    def choose(self, things: Sequence[T], which: int) -> T:
        return things[which % len(things)]

    # -- starting ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.owner is None)
    @rule(waits=st.booleans(), how_far=then)
    def start(self, waits: bool, how_far: int) -> None:
        self.world.start(waits=waits)
        self.go(how_far)

    @precondition(lambda self: self.world.owner is not None and not self.world.live)
    @rule(keep_history=st.booleans(), data=st.data())
    def start_over(self, keep_history: bool, data: st.DataObject) -> None:
        """The agent is usable at once, and what the last run left is a valid beginning."""
        self.finish_owner()
        assert self.world.run is not None
        self.world.history = self.world.run.result.messages if keep_history else []
        self.world.prepare()
        self.open(data.draw(self.openings))

    # -- asking --------------------------------------------------------------------------------------------------------

    @rule(at=safe_wishes, within=withins, recursive=st.booleans(), source=sources, node=pick, how_far=then)
    def ask_at_safe_point(
        self, at: Wish, within: float | None, recursive: bool, source: Source, node: int, how_far: int
    ) -> None:
        self.world.ask(self.choose(self.world.nodes(), node), at, within, recursive, source)
        self.go(how_far)

    @precondition(lambda self: self.world.gates.models)
    @rule(source=sources, node=pick, how_far=then)
    def ask_now(self, source: Source, node: int, how_far: int) -> None:
        self.world.ask(self.choose(self.world.nodes(), node), Wish(Push.NOW), None, False, source)
        self.go(how_far)

    @precondition(lambda self: len(self.world.held) > 1)
    @rule(node=pick, how_far=then)
    def ask_force(self, node: int, how_far: int) -> None:
        self.world.ask(self.choose(self.world.nodes(), node), Wish(Push.FORCE), None, False, Source.USER)
        self.go(how_far)

    @precondition(lambda self: self.world.held)
    @rule(which=pick, how_far=then)
    def withdraw(self, which: int, how_far: int) -> None:
        self.world.withdraw(self.choose(self.world.held[::-1], which))
        self.go(how_far)

    @precondition(lambda self: self.unwaited())
    @rule(which=pick, how_far=then)
    def wait_for_receipt(self, which: int, how_far: int) -> None:
        self.world.wait_for(self.choose(self.unwaited(), which))
        self.go(how_far)

    def unwaited(self) -> list[Held]:
        return [held for held in self.world.held if held.waiter is None and held.receipt.node.started]

    # -- time and the caller -------------------------------------------------------------------------------------------

    @rule(passes=seconds)
    def let_time_pass(self, passes: float) -> None:
        self.world.loop.settle()
        self.check(at_rest=True)
        self.world.loop.advance(passes)
        self.check(at_rest=True)

    @precondition(lambda self: self.world.entered and len(self.world.gates.models) > 1)
    @rule(how_far=then)
    def cancel_caller(self, how_far: int) -> None:
        self.world.cancel_owner()
        self.go(how_far)

    @precondition(lambda self: self.world.block is not None and not self.world.block.done() and self.world.held)
    @rule(how_far=then)
    def raise_in_block(self, how_far: int) -> None:
        self.world.fail_block()
        self.go(how_far)

    # -- the model -----------------------------------------------------------------------------------------------------

    def models(self) -> list[ModelGate]:
        return [gate for gate in self.world.gates.models if gate.waiting]

    @precondition(lambda self: self.models())
    @rule(which=pick, text=st.sampled_from(["Well, ", "let me see. "]), how_far=then)
    def model_says(self, which: int, text: str, how_far: int) -> None:
        self.choose(self.models(), which).give(Speak(text))
        self.go(how_far)

    @precondition(lambda self: self.models())
    @rule(which=pick, how_far=then)
    def model_begins_a_call(self, which: int, how_far: int) -> None:
        gate = self.choose(self.models(), which)
        if not gate.begun:
            gate.give(Begin())
        self.go(how_far)

    @precondition(lambda self: self.models())
    @rule(which=pick, data=st.data(), counted=st.booleans(), how_far=then)
    def model_asks_for_calls(self, which: int, data: st.DataObject, counted: bool, how_far: int) -> None:
        calls = data.draw(st.lists(st.sampled_from(self.wanted), min_size=1, max_size=4))
        self.choose(self.models(), which).give(End(tuple(calls), counted))
        self.go(how_far)

    @precondition(lambda self: self.models())
    @rule(which=pick, counted=st.booleans(), how_far=then)
    def model_answers(self, which: int, counted: bool, how_far: int) -> None:
        self.choose(self.models(), which).give(End(counted=counted))
        self.go(how_far)

    @precondition(lambda self: self.models())
    @rule(which=pick, error=model_errors, how_far=then)
    def model_fails(self, which: int, error: str, how_far: int) -> None:
        self.choose(self.models(), which).give(Throw(make_model_error(error)))
        self.go(how_far)

    @precondition(lambda self: self.models())
    @rule(which=pick, how_far=then)
    def model_hangs_up(self, which: int, how_far: int) -> None:
        self.choose(self.models(), which).give(End(finish=False))
        self.go(how_far)

    @precondition(lambda self: self.models() and self.world.entered and len(self.world.gates.models) > 1)
    @rule(which=pick, data=st.data(), rounds=st.integers(1, 3), at=safe_wishes, how_far=then)
    def caller_leaves_as_calls_begin(
        self, which: int, data: st.DataObject, rounds: int, at: Wish, how_far: int
    ) -> None:
        """Three things rarely meet by chance: work before its first step, NOW, and a look at the log."""
        self.model_asks_for_calls(which, data, True, rounds)
        self.world.cancel_owner()
        self.world.ask(self.world.nodes()[0], at, None, False, Source.USER)
        self.go(how_far)

    # -- tools, undos and hooks ----------------------------------------------------------------------------------------

    def tools(self) -> list[ToolGate]:
        return [gate for gate in self.world.gates.tools if gate.waiting and gate.label != "delegate"]

    def others(self) -> list[Gate]:
        return [gate for gate in (*self.world.gates.undos, *self.world.gates.hooks) if gate.waiting]

    def everyone(self) -> list[Gate]:
        return [*self.models(), *self.tools(), *self.others()]

    @precondition(lambda self: self.tools())
    @rule(which=pick, how_far=then)
    def tool_finishes(self, which: int, how_far: int) -> None:
        self.choose(self.tools(), which).give(Return("done"))
        self.go(how_far)

    @precondition(lambda self: self.tools())
    @rule(which=pick, error=tool_errors, how_far=then)
    def tool_fails(self, which: int, error: str, how_far: int) -> None:
        self.choose(self.tools(), which).give(Throw(make_tool_error(error)))
        self.go(how_far)

    @precondition(lambda self: self.tools())
    @rule(which=pick, point=st.sampled_from(["p", "q"]), how_far=then)
    def tool_reaches_point(self, which: int, point: str, how_far: int) -> None:
        self.choose(self.tools(), which).give(Reach(point))
        self.go(how_far)

    @precondition(lambda self: self.tools())
    @rule(which=pick, how_far=then)
    def tool_asks_somebody(self, which: int, how_far: int) -> None:
        self.choose(self.tools(), which).give(AskSomebody())
        self.go(how_far)

    @precondition(lambda self: self.tools())
    @rule(which=pick, how_far=then)
    def tool_enters_shield(self, which: int, how_far: int) -> None:
        self.choose(self.tools(), which).give(EnterShield())
        self.go(how_far)

    @precondition(lambda self: any(gate.shields for gate in self.tools()))
    @rule(which=pick, how_far=then)
    def tool_leaves_shield(self, which: int, how_far: int) -> None:
        self.choose([gate for gate in self.tools() if gate.shields], which).give(LeaveShield())
        self.go(how_far)

    @precondition(lambda self: self.others())
    @rule(which=pick, fails=st.booleans(), how_far=then)
    def undo_or_hook_ends(self, which: int, fails: bool, how_far: int) -> None:
        self.choose(self.others(), which).give(Throw(ValueError("it broke")) if fails else Return("done"))
        self.go(how_far)

    @precondition(lambda self: self.everyone())
    @rule(which=pick, stop_policy=manners)
    def change_manner(self, which: int, stop_policy: Manner) -> None:
        """From now on this one obeys a cancellation, swallows it, answers all the same, or raises something else."""
        self.choose(self.everyone(), which).stop_policy = stop_policy

    # -- readers -------------------------------------------------------------------------------------------------------

    @rule(how_far=then)
    def attach_reader(self, how_far: int) -> None:
        self.world.attach_reader()
        self.go(how_far)

    def attached(self) -> list[Audience]:
        return [audience for audience in self.world.audiences if not audience.detached]

    @precondition(lambda self: self.attached())
    @rule(which=pick, by_cancelling=st.booleans(), how_far=then)
    def detach_reader(self, which: int, by_cancelling: bool, how_far: int) -> None:
        self.world.detach_reader(self.choose(self.attached(), which), by_cancelling=by_cancelling)
        self.go(how_far)

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish_owner(self) -> None:
        """The run has ended: whoever stands in its block leaves, and nothing of it is left."""
        world = self.world
        if world.block is not None and not world.block.done():
            world.block.set_result(None)
        world.loop.settle()
        self.check(at_rest=True)
        assert world.owner is not None
        assert world.owner.done()
        assert isinstance(world.events[-1], RunEnded)
        self.check_audiences()
        world.held.clear()
        world.audiences.clear()

    def check_audiences(self) -> None:
        kept = [event for event in self.world.events if not isinstance(event, TextStreamed | ReasoningStreamed)]
        for audience in self.world.audiences:
            assert audience.task.done(), "a reader is still waiting after the terminal event"
            heard = [event for event in audience.heard if not isinstance(event, TextStreamed | ReasoningStreamed)]
            expected = kept[: len(heard)] if audience.detached else kept
            assert heard == expected, f"a reader heard {heard} and not {expected}"

    def teardown(self) -> None:
        world = getattr(self, "world", None)
        if world is None:
            return
        try:
            if not self.broken:
                self.end_run()
                self.run_once_more()
        finally:
            world.close()

    def end_run(self) -> None:
        """NOW ends it within the ladder; then not a task is left."""
        world = self.world
        assert world.run is not None
        if world.owner is None:
            world.start(waits=True)
        world.loop.settle()
        if world.live:
            world.ask(world.run.node, Wish(Push.NOW), None, False, Source.USER)
        world.loop.advance(PATIENCE)
        assert not world.live, f"the run did not end within {PATIENCE} s: {world.run.why_not_stopped()}"
        self.finish_owner()
        world.release()
        world.loop.settle()
        assert not asyncio.all_tasks(world.loop), asyncio.all_tasks(world.loop)
        assert not [gate for gate in world.gates.every() if not gate.left]

    def run_once_more(self) -> None:
        """The agent runs again, on what the last run has left."""
        world = self.world
        assert world.run is not None
        world.history = world.run.result.messages
        world.prepare()
        world.start(waits=True)
        for _ in range(5):
            world.loop.settle()
            for gate in self.everyone():
                gate.give(Speak("All is well.") if isinstance(gate, ModelGate) and not gate.said else _last_word(gate))
        world.loop.settle()
        assert not world.live
        assert world.run.result.text == "All is well."
        assert world.courses[world.run.id].runner is Stage.OVER
        self.finish_owner()


def _last_word(gate: Gate) -> End | Return:
    return End() if isinstance(gate, ModelGate) else Return("done")
