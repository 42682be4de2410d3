"""One example: a loop that stands still, agents whose every move is a command, and the reference beside them.

`World` gives the commands and lets the loop run; what happens is told to the reference at once, through the gates and
the events. `faults` collects what does not agree. Nothing here decides what comes next: that is the machine's part.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from safepoint import Agent, Reason, SafePoint, Source, Usage
from safepoint._core.asks import Ask
from safepoint._core.points import Level
from safepoint._core.receipts import Outcome, Receipt
from safepoint._core.tree import Node, NodeState
from safepoint._core.work import WorkState
from safepoint.agent.event_hub import EventReader
from safepoint.agent.events import Event, ModelCallEnded, RunStarted
from safepoint.agent.live import watch_runs
from safepoint.agent.run import Run
from safepoint.history.parts import Message
from safepoint.tools.base import BaseTool
from tests.machines.arrows import Arrow, Watch
from tests.machines.course import Call, Course, Setting, Stage, plain
from tests.machines.gates import (
    AGENT_TOOLS,
    HANDMADE_TOOLS,
    INSIDE,
    LADDER,
    PLAIN_TOOLS,
    Gate,
    GatedHooks,
    GatedModel,
    Gates,
    Manner,
    ModelGate,
    Return,
    ToolGate,
    UndoGate,
)
from tests.machines.leftovers import Leftovers
from tests.machines.reference import EVERYWHERE, PLACES, Asked, Fold, Kind, Party, Push, Reference, Wish
from tests.machines.stepping import SteppingLoop

AnyRun: TypeAlias = Run[Any, Any]  # Any: runs of every agent

PATIENCE: Final = LADDER.cap + LADDER.undo + LADDER.task
"""No stop takes longer than this: the cap, then an undo that does not stop by itself."""
_HANDMADE: Final = frozenset(tool.name for tool in HANDMADE_TOOLS)
_POINTS: Final = {
    "after_tools": SafePoint.AFTER_TOOLS,
    "after_tool": SafePoint.AFTER_TOOL,
    "after_model": SafePoint.AFTER_MODEL,
    "before_effect": SafePoint.BEFORE_EFFECT,
    "point:p": SafePoint.named("p"),
    "point:q": SafePoint.named("q"),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How the agents of an example are made."""

    parallel: int | None = None
    retries: int = 1
    fallback: bool = False
    hooks: bool = False
    tree: bool = False


@dataclass(eq=False)
class Held:
    """A receipt in somebody's hand."""

    receipt: Receipt
    asked: Asked
    party: Party
    accepted: bool
    waiter: asyncio.Task[Outcome] | None = None
    checked: bool = False


@dataclass(eq=False)
class Audience:
    """Somebody who reads the events of a run."""

    reader: EventReader
    task: asyncio.Task[None]
    heard: list[Event]
    detached: bool = False


class BlockFailed(Exception):
    """Raised inside a run's block by the example."""


class World:
    """See the module."""

    def __init__(self, plan: Plan, counts: Counter[Arrow]) -> None:
        self.plan = plan
        self.faults: list[str] = []
        self.loop = SteppingLoop()
        self.loop.on_round = self._round_over
        self.reference = Reference(self.loop.time)
        self.rounds = 0
        self.gates = Gates(self)
        self.watch = Watch(counts, self.faults.append)
        self._parties: dict[Node, Party] = {}
        self._stack = ExitStack()
        self._runs = self._stack.enter_context(watch_runs())
        self.courses: dict[str, Course] = {}
        self.events: list[Event] = []
        self.held: list[Held] = []
        self.audiences: list[Audience] = []
        self.agent, self._settings = self._make_agents()
        self.run: AnyRun | None = None
        self.owner: asyncio.Task[None] | None = None
        self.owner_cancelled = self.block_failed = False
        self.block: asyncio.Future[None] | None = None
        self.history: list[Message] = []
        self.leftovers = Leftovers(self.faults.append)
        self.pushed_at: dict[Party, float] = {}

    # -- agents --------------------------------------------------------------------------------------------------------

    def _make_agents(self) -> tuple[Agent[Gates], dict[str, Setting]]:
        settings: dict[str, Setting] = {}

        def make(name: str, tools: list[BaseTool]) -> Agent[Gates]:
            models = [GatedModel(f"{name}-model", self.gates), GatedModel(f"{name}-fallback", self.gates)]
            count = 2 if self.plan.fallback else 1
            names = frozenset(tool.name for tool in tools)
            settings[name] = Setting(names, self.plan.parallel, self.plan.retries, count, self.plan.hooks)
            return Agent[Gates](
                name,
                model=models[0],
                fallback=models[1:count],
                tools=tools,
                retries=self.plan.retries,
                max_parallel_tools=self.plan.parallel,
                hooks=[GatedHooks(self.gates)] if self.plan.hooks else [],
            )

        plain_tools: list[BaseTool] = list(PLAIN_TOOLS)
        if not self.plan.tree:
            return make("top", plain_tools), settings
        leaf = make("leaf", plain_tools)
        middle = make("middle", [*plain_tools, leaf.as_tool()])
        self.gates.inner = make("inner", plain_tools)
        return make("top", [*plain_tools, middle.as_tool(), *HANDMADE_TOOLS]), settings

    # -- the owner -----------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """A handle, not entered yet. It is made inside the loop, so that it lives on this clock from the first."""
        self.loop.run_until_complete(self._prepare())

    async def _prepare(self) -> None:
        self.run = run = self.agent.start("go on", history=self.history, deps=self.gates)
        run.hub.listen(self._hear)
        self.events = []
        party = self.party_of(run.node)
        base = [plain(message) for message in self.history]
        self.courses[run.id] = self._course(run, party, [*base, ("user", "go on")])
        self.owner, self.block = None, None
        self.owner_cancelled = self.block_failed = False

    def start(self, *, waits: bool) -> None:
        """Somebody enters the block; then waits for the end in there, or stands in it until something is raised."""
        assert self.run is not None
        self.block = None if waits else self.loop.create_future()
        self.owner = self.loop.create_task(self._own(self.run, self.block))

    async def _own(self, run: AnyRun, block: asyncio.Future[None] | None) -> None:
        async with run:
            if block is None:
                await run.wait()
            else:
                await block

    def cancel_owner(self) -> None:
        assert self.owner is not None
        self.owner_cancelled = self.owner.cancel() or self.owner_cancelled

    def fail_block(self) -> None:
        assert self.block is not None
        self.block_failed = True
        self.block.set_exception(BlockFailed())

    @property
    def entered(self) -> bool:
        """Somebody is inside the block."""
        return self.owner is not None and self.run is not None and self.run.node.state is not NodeState.NEW

    @property
    def live(self) -> bool:
        """The run has begun and has not ended."""
        return self.owner is not None and self.run is not None and not self.run.ended

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(self, node: Node, wish: Wish, within: float | None, recursive: bool, source: Source) -> Held:
        party = self.party_of(node)
        accepted = not party.over
        receipt = node.cancel(spell(wish), within=within, recursive=recursive, reason=Reason("because", source))
        return self._hold(receipt, party, wish, accepted=accepted)

    def cancel_all_but(self, keep: Node) -> None:
        """NOW for every live node but this one and those above and below it; nobody is asked twice."""
        assert self.run is not None
        above = set(self.party_of(keep).lineage())
        asked = {
            node: not self.party_of(node).over
            for node in self.nodes()
            if node.parent is not None and self.party_of(node) not in above and self.party_of(node.parent) in above
            if self.party_of(node.parent) is not self.party_of(keep)
        }
        receipts = self.run.tree.cancel_all_but(keep, reason="because")
        if {receipt.node for receipt in receipts} != set(asked):
            self.faults.append(f"cancel_all_but({keep}) asked {receipts} and not {list(asked)}")
        for receipt in receipts:
            self._hold(receipt, self.party_of(receipt.node), Wish(Push.NOW), accepted=asked.get(receipt.node, False))

    def _hold(self, receipt: Receipt, party: Party, wish: Wish, *, accepted: bool) -> Held:
        asked = self._asked(receipt.asked, wish, party, recorded=self.rounds)
        if accepted:
            party.asks.append(asked)
        held = Held(receipt, asked, party, accepted)
        self.held.append(held)
        if receipt.accepted is not accepted:
            self.faults.append(f"{receipt}: accepted should be {accepted}")
        return held

    def _asked(self, ask: Ask, wish: Wish, party: Party, *, recorded: int) -> Asked:
        return Asked(
            ask.id, wish, ask.deadline, ask.recursive, ask.reason.source, recorded=recorded, late=party.answered
        )

    def withdraw(self, held: Held) -> None:
        asked, party = held.asked, held.party
        expected = asked.withdrawn or (held.accepted and not party.over and asked.id not in self.reference.acted)
        taken_back = held.receipt.withdraw()
        if taken_back is not expected:
            self.faults.append(f"{held.receipt}: withdraw() said {taken_back}")
        asked.withdrawn = taken_back

    def wait_for(self, held: Held) -> None:
        held.waiter = self.loop.create_task(self._wait(held))

    async def _wait(self, held: Held) -> Outcome:
        outcome = await held.receipt.wait()
        if held.accepted and not held.asked.withdrawn and not held.party.over:
            self.faults.append(f"{held.receipt}: wait() returned {outcome} before it was true")
        return outcome

    # -- readers -------------------------------------------------------------------------------------------------------

    def attach_reader(self) -> None:
        assert self.run is not None
        heard: list[Event] = []
        reader = self.run.events(nested=True)
        self.audiences.append(Audience(reader, self.loop.create_task(_read(reader, heard)), heard))

    def detach_reader(self, audience: Audience, *, by_cancelling: bool) -> None:
        audience.detached = True
        if by_cancelling:
            audience.task.cancel()
        else:
            audience.reader.detach()

    # -- what happens: called from inside the loop, must not raise -----------------------------------------------------

    def model_called(self, gate: ModelGate) -> None:
        self._catch_up()
        self.courses[gate.node.id].model_called(gate)

    def tool_entered(self, gate: ToolGate) -> None:
        self._catch_up()
        call = self._call_of(gate.node)
        if call is None or not call.entered or call.gate is not None:
            self.faults.append(f"{gate} was entered, and `running` was not recorded before")
            return
        call.gate = gate
        if self.reference.push(self.party_of(gate.node)) >= Push.NOW:
            self.faults.append(f"{gate} was entered after NOW was recorded")

    def tool_left(self, gate: ToolGate) -> None:
        self._catch_up()

    def point_reached(self, gate: ToolGate, point: str, *, stopped: bool) -> None:
        self._catch_up()
        party = self.party_of(gate.node)
        abandoned = gate.context.work.state is WorkState.ABANDONED
        expected = abandoned or self.reference.check_safe_point(party, f"point:{point}")
        if stopped is not expected:
            self.faults.append(f"{gate} at {point!r}: stopped is {stopped}")

    def undo_begun(self, gate: UndoGate, call_id: str) -> None:
        call = self._call_of(gate.node)
        assert call is not None
        if call.gate is None or not call.gate.left or call.undo is not None:
            self.faults.append(f"the undo of {call_id} began before its call had ended, or twice")
        call.undo = gate

    def hook_called(self, gate: Gate) -> None:
        self._catch_up()
        course = self.courses[gate.node.id]
        if self.reference.push(course.party) >= Push.NOW:
            self.faults.append(f"the hook {gate} started after NOW was recorded")
        course.hook = gate

    def _hear(self, event: Event) -> None:
        if self.events and event.seq <= self.events[-1].seq:
            self.faults.append(f"{event} is out of order")
        self.events.append(event)
        self._catch_up()
        if isinstance(event, RunStarted) and event.run_id not in self.courses:
            self._begin_child(event)
        course = self.courses[event.run_id]
        if isinstance(event, ModelCallEnded):
            self._spend(course.party, event.usage)
        course.hear(event)
        if course.runner is Stage.OVER:
            self.leftovers.check(self._run_of(event.run_id), course)

    def _spend(self, party: Party, usage: Usage) -> None:
        """What a run spends is spent by every run that it is a part of, in that moment."""
        above = set(party.lineage())
        for course in self.courses.values():
            if course.party in above and not course.party.over:
                course.usage = course.usage + usage

    def _begin_child(self, event: RunStarted) -> None:
        run = self._run_of(event.run_id)
        party = self.party_of(run.node)
        course = self._course(run, party, [])
        self.courses[run.id] = course
        above = self._call_of(run.node.parent) if run.node.parent is not None else None
        if above is None:
            self.faults.append(f"{run} was started by nobody")
            return
        by_hand = party.parent is not None and party.parent.kind is Kind.HANDMADE
        course.base = [("user", INSIDE if by_hand else f"for {event.agent}")]
        if party.parent is not None and party.parent.kind is Kind.AGENT:
            above.child = course

    def _round_over(self) -> None:
        self.rounds += 1
        self._meet()
        for party in tuple(self._parties.values()):
            if not party.over:
                self.reference.deliver(party, self.rounds)
        self._catch_up(recorded=self.rounds)

    def _catch_up(self, recorded: int | None = None) -> None:
        """Meet new nodes, take note of asks that the runtime itself has made, look at all states.

        `recorded`: the round that is over. What is found while one is under way is delivered in the next.
        """
        self._meet()
        for node, party in self._parties.items():
            if not party.over:
                if node.stop is not None and node.id in self.courses:
                    self.courses[node.id].stopped_since()
                self._adopt(node, party, self.rounds + 1 if recorded is None else recorded)
                # Work that is about to start looks at the log by itself: NOW may stop a node before it is told.
                if node.stop is not None and node.stop.level >= Level.NOW:
                    self.reference.check_safe_point(party, None)
                    self.reference.settle(party, node.stop.level)
                # An ask that was found in this round may have come in time for a wake-up that was under way.
                if node.pushed > party.pushed:
                    self.reference.told(party)
        self.watch.look(self._runs)

    def _meet(self) -> None:
        if self.run is not None:
            for node in self.run.node.walk():
                self.party_of(node)
        for node, party in self._parties.items():
            party.started = party.started or node.state is not NodeState.NEW

    def _adopt(self, node: Node, party: Party, recorded: int) -> None:
        known = {asked.id for asked in party.asks}
        standing = node.log.standing()
        for ask in (*standing.asks, *standing.late):
            if ask.id not in known:
                if ask.reason.source not in (Source.CALLER, Source.PARENT, Source.DEADLINE):
                    self.faults.append(f"{ask} came from nowhere")
                # Both in one round: the node had stopped before its caller's cancellation became an ask.
                if node.stop is not None and ask not in node.stop.request.asks:
                    self.reference.check_safe_point(party, None)
                party.asks.append(self._asked(ask, Wish(Push.NOW), party, recorded=recorded))

    def _course(self, run: AnyRun, party: Party, base: list[tuple[object, ...]]) -> Course:
        return Course(party, self.reference, self._settings[run.agent.name], base, self.faults.append)

    def _run_of(self, run_id: str) -> AnyRun:
        if self.run is not None and self.run.id == run_id:
            return self.run
        return next(run for run in self._runs if run.id == run_id)

    def party_of(self, node: Node) -> Party:
        party = self._parties.get(node)
        if party is None:
            parent = self.party_of(node.parent) if node.parent is not None else None
            met_under = self.reference.push(parent) if parent is not None else Push.NONE
            party = self._parties[node] = Party(node.path, _kind(node), parent, met_under)
            call = self._call_of(node)
            if call is not None:
                call.party = party
        return party

    def _call_of(self, node: Node) -> Call | None:
        if node.kind != "tool_call" or node.parent is None or node.parent.id not in self.courses:
            return None
        return self.courses[node.parent.id].call_of(node.id)

    # -- looking -------------------------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        """The live nodes, or the root of a run that has ended or not begun."""
        assert self.run is not None
        return list(self.run.tree.walk()) or [self.run.node]

    def tools_of(self, node: Node) -> frozenset[str]:
        """What the agent of this run can call."""
        return self.courses[node.id].setting.tools

    def live_courses(self) -> Iterator[tuple[Node, Course]]:
        for node in self.nodes():
            course = self.courses.get(node.id) if node.kind == "run" else None
            if course is not None and not course.party.over:
                yield node, course

    def release(self) -> None:
        """Let everything go that is still at a gate."""
        for gate in self.gates.every():
            if not gate.left:
                gate.stop_policy = Manner.OBEY
                gate.give(Return("released"))

    def close(self) -> None:
        self._stack.close()
        self.loop.dismiss()


async def _read(reader: EventReader, heard: list[Event]) -> None:
    async for event in reader:
        heard.append(event)


def _kind(node: Node) -> Kind:
    if node.kind == "run":
        return Kind.RUN
    if node.name in AGENT_TOOLS:
        return Kind.AGENT
    return Kind.HANDMADE if node.name in _HANDMADE else Kind.PLAIN


def spell(wish: Wish) -> SafePoint:
    """The wish in the runtime's own words."""
    if wish.push is not Push.SAFE:
        return SafePoint.NOW if wish.push is Push.NOW else SafePoint.FORCE
    if wish.places == EVERYWHERE:
        return SafePoint.ANY
    first, *rest = sorted(wish.places)
    at = _POINTS[first]
    for place in rest:
        at = at | _POINTS[place]
    return at


def differences(node: Node, fold: Fold | None) -> list[str]:
    """Where the node's own request is not what the reference says."""
    request = node.request()
    if request is None or fold is None:
        return [] if request is None and fold is None else [f"{node}: {request} and not {fold}"]
    told = (int(request.at.level), request.deadline, request.recursive, {ask.id for ask in request.asks})
    true = (int(fold.asked), fold.deadline, fold.recursive, set(fold.ids))
    found = [] if told == true else [f"{node}: the request is {told} and should be {true}"]
    if request.at.level is Level.SAFE:
        covered = frozenset(place for place in PLACES if request.at.covers(place))
        if covered != fold.places:
            found.append(f"{node}: the request covers {sorted(covered)} and should cover {sorted(fold.places)}")
    return found
