"""Models, tools and hooks that do nothing by themselves: each waits at a gate until the example lets it go on.

A gate takes one command at a time. What came through it, and how its owner left, is written down here, so that the
reference knows what really happened without asking the runtime.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, Protocol, TypeAlias

from safepoint import Ladder
from safepoint._core.receipts import current_node
from safepoint._core.tree import Node
from safepoint._core.work import WorkState
from safepoint.agent.agent import Agent
from safepoint.agent.hooks import AskFirst, Hooks
from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from safepoint.agent.run import Run
from safepoint.agent.tool_context import ToolContext
from safepoint.errors import StopTool
from safepoint.history.parts import ToolCall
from safepoint.tools.function import tool

LADDER: Final = Ladder()
SHIELD: Final = 4.0
FINISH_GRACE: Final = 2.0
TIMEOUT: Final = 3.0
INSIDE: Final = "inside"


class Manner(StrEnum):
    """What the owner of a gate does when it is cancelled."""

    OBEY = "obey"
    SWALLOW = "swallow"
    ANSWER = "answer"
    COMPLAIN = "complain"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tool call that the model asks for: as a name, and how well its arguments are written."""

    name: str
    args: Literal["good", "bad", "invalid"] = "good"

    @property
    def text(self) -> str:
        if self.args == "invalid":
            return '{"n": '
        if self.args == "bad":
            return '{"surprise": true}'
        return json.dumps({"input": f"for {self.name}"} if self.name in AGENT_TOOLS else {"n": 1})


@dataclass(frozen=True, slots=True)
class Speak:
    text: str


@dataclass(frozen=True, slots=True)
class Begin:
    """The model begins to ask for a call, and has not said all of it."""


@dataclass(frozen=True, slots=True)
class End:
    """The reply is complete; without `finish`, the provider hung up. `counted`: the provider says what it cost."""

    calls: tuple[Wanted, ...] = ()
    counted: bool = True
    finish: bool = True


@dataclass(frozen=True, slots=True)
class Throw:
    error: BaseException


@dataclass(frozen=True, slots=True)
class Return:
    value: str


@dataclass(frozen=True, slots=True)
class Reach:
    point: str


@dataclass(frozen=True, slots=True)
class AskSomebody:
    pass


@dataclass(frozen=True, slots=True)
class EnterShield:
    pass


@dataclass(frozen=True, slots=True)
class LeaveShield:
    pass


Command: TypeAlias = Speak | Begin | End | Throw | Return | Reach | AskSomebody | EnterShield | LeaveShield

COUNTED_IN: Final = 70
COUNTED_OUT: Final = 30
LAST: Final = 99


class Gate:
    """Where one model call, tool, undo or hook waits."""

    def __init__(self, label: str, node: Node) -> None:
        self.label = label
        self.node = node
        self.stop_policy = Manner.OBEY
        self.swallowed = False
        self.left = False
        self.value: str | None = None
        self.error: BaseException | None = None
        self._commands: deque[Command] = deque()
        self._waiter: asyncio.Future[None] | None = None

    @property
    def waiting(self) -> bool:
        """It stands here, and has been given nothing to do."""
        return not self.left and not self._commands

    def give(self, command: Command) -> None:
        self._commands.append(command)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> Command:
        """The next command; what a cancellation does here is the gate's manner."""
        while not self._commands:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                match self.stop_policy:
                    case Manner.OBEY:
                        raise
                    case Manner.SWALLOW:
                        self.swallowed = True
                    case Manner.ANSWER:
                        return Return(f"{self.label} all the same")
                    case Manner.COMPLAIN:
                        return Throw(ValueError(f"{self.label} was disturbed"))
            finally:
                self._waiter = None
        return self._commands.popleft()

    def leave(self, value: str | None, error: BaseException | None) -> None:
        self.left, self.value, self.error = True, value, error

    def __repr__(self) -> str:
        return f"<Gate {self.label}{', left' if self.left else ''}>"


class ModelGate(Gate):
    """One model call that was made. `said` is what the runtime has received.

    `finished`: it has received the end too. A reader of several chunks may let the loop turn between two of them.
    """

    def __init__(self, label: str, node: Node, number: int) -> None:
        super().__init__(label, node)
        self.number = number
        self.said: list[str] = []
        self.begun = False
        self.end: End | None = None
        self.finished = False

    @property
    def calls(self) -> tuple[Wanted, ...]:
        """What the whole reply asks for; a call that was only begun comes last."""
        assert self.end is not None
        return (*self.end.calls, Wanted("write", "invalid")) if self.begun else self.end.calls

    @property
    def silent(self) -> bool:
        """Nothing at all has come from it."""
        ended = self.end is not None and (self.end.finish or bool(self.end.calls))
        return not (self.said or self.begun or ended)

    @property
    def whole(self) -> bool:
        """A reply that makes sense has come to its end."""
        return self.finished and bool("".join(self.said).strip() or self.calls)

    def call_id(self, index: int) -> str:
        assert self.end is not None
        return f"call_{self.number}_{index if index < len(self.end.calls) else 'begun'}"


class ToolGate(Gate):
    """One tool call whose first line has run."""

    def __init__(self, label: str, context: ToolContext[Any]) -> None:  # Any: the dependencies do not matter here
        super().__init__(label, context.node)
        self.context = context
        self.call_id = context.call_id
        self.shields = 0
        self.was_shielded = False
        self.told_when_left = False
        self.abandoned_when_left = False

    def leave(self, value: str | None, error: BaseException | None) -> None:
        super().leave(value, error)
        work = self.context.work
        self.told_when_left = work.rung is not None
        self.abandoned_when_left = work.state is WorkState.ABANDONED


class UndoGate(Gate):
    """One undo whose first line has run."""

    def __init__(self, node: Node) -> None:
        super().__init__("undo", node)
        self.begun_at = asyncio.get_running_loop().time()
        self.abandoned_when_left = False

    def leave(self, value: str | None, error: BaseException | None) -> None:
        super().leave(value, error)
        self.abandoned_when_left = asyncio.current_task() not in asyncio.all_tasks()

    @property
    def in_time(self) -> bool:
        """It has ended, and not only after nobody waited for it any longer."""
        return self.left and not self.abandoned_when_left


class Witness(Protocol):
    """Who is told what happens at the gates, the moment it happens."""

    def model_called(self, gate: ModelGate) -> None: ...

    def tool_entered(self, gate: ToolGate) -> None: ...

    def tool_left(self, gate: ToolGate) -> None: ...

    def point_reached(self, gate: ToolGate, point: str, *, stopped: bool) -> None: ...

    def undo_begun(self, gate: UndoGate, call_id: str) -> None: ...

    def hook_called(self, gate: Gate) -> None: ...


@dataclass
class Gates:
    """All gates of one example. It is also the dependencies of every run in it."""

    witness: Witness
    models: list[ModelGate] = field(default_factory=list[ModelGate])
    tools: list[ToolGate] = field(default_factory=list[ToolGate])
    undos: list[UndoGate] = field(default_factory=list[UndoGate])
    hooks: list[Gate] = field(default_factory=list[Gate])
    inner: Agent[Gates] | None = None

    def every(self) -> list[Gate]:
        return [*self.models, *self.tools, *self.undos, *self.hooks]

    async def perform(self, context: ToolContext[Gates], name: str) -> str:
        """A tool, from its first line to its last."""
        gate = self.enter(context, name)
        try:
            value = await _obey(gate, context)
        except BaseException as error:
            self.depart(gate, None, error)
            raise
        assert value is not None, "the outermost shield was left twice"
        self.depart(gate, value, None)
        return value

    def enter(self, context: ToolContext[Gates], name: str) -> ToolGate:
        gate = ToolGate(name, context)
        self.tools.append(gate)
        self.witness.tool_entered(gate)
        return gate

    def depart(self, gate: ToolGate, value: str | None, error: BaseException | None) -> None:
        gate.leave(value, error)
        self.witness.tool_left(gate)


async def _obey(gate: ToolGate, context: ToolContext[Gates]) -> str | None:
    """Carry out commands until one of them ends the tool, or (None) the shield around it."""
    while True:
        match await gate.take():
            case Return(value):
                return value
            case Throw(error):
                raise error
            case Reach(point):
                await _reach(gate, context, point)
            case AskSomebody():
                await context.interrupt("may I?")
            case EnterShield():
                inside = await _shielded(gate, context)
                if inside is not None:
                    return inside
            case LeaveShield():
                return None
            case other:
                raise AssertionError(f"{other} is not for a tool")


async def _reach(gate: ToolGate, context: ToolContext[Gates], point: str) -> None:
    try:
        await context.safe_point(point)
    except StopTool:
        context.deps.witness.point_reached(gate, point, stopped=True)
        raise
    context.deps.witness.point_reached(gate, point, stopped=False)


async def _shielded(gate: ToolGate, context: ToolContext[Gates]) -> str | None:
    gate.shields += 1
    gate.was_shielded = True
    try:
        async with context.shield(SHIELD):
            return await _obey(gate, context)
    finally:
        gate.shields -= 1


class GatedModel:
    """A model whose every chunk is a command of the example."""

    def __init__(self, name: str, gates: Gates) -> None:
        self.name = name
        self._gates = gates

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        node = current_node.get()
        assert node is not None, "a model call belongs to a run"
        gate = ModelGate(self.name, node, len(self._gates.models) + 1)
        self._gates.models.append(gate)
        self._gates.witness.model_called(gate)
        return _streaming(gate)


@asynccontextmanager
async def _streaming(gate: ModelGate) -> AsyncGenerator[AsyncIterator[Chunk]]:
    error: BaseException | None = None
    try:
        async with aclosing(_chunks(gate)) as chunks:
            yield chunks
    except BaseException as raised:
        error = raised
        raise
    finally:
        gate.leave(None, error)


async def _chunks(gate: ModelGate) -> AsyncGenerator[Chunk]:
    while True:
        match await gate.take():
            case Speak(text):
                gate.said.append(text)
                yield TextDelta(text)
            case Begin():
                gate.begun = True
                yield CallDelta(LAST, f"call_{gate.number}_begun", "write", Wanted("write", "invalid").text)
            case End() as end:
                gate.end = end
                for index, wanted in enumerate(end.calls):
                    yield CallDelta(index, gate.call_id(index), wanted.name, wanted.text)
                if end.finish:
                    gate.finished = True
                    counts = (COUNTED_IN, COUNTED_OUT) if end.counted else (None, None)
                    yield Finish("tool_calls" if gate.calls else "end_turn", *counts)
                return
            case Throw(error):
                raise error
            case Return():
                return  # a provider that answers a cancellation by hanging up
            case other:
                raise AssertionError(f"{other} is not for a model")


class GatedHooks(Hooks):
    """A hook before the run, one after it, and a check that has a person sign."""

    def __init__(self, gates: Gates) -> None:
        self._gates = gates

    async def before_run(self, run: Run[Any, Any]) -> None:
        await self._wait("before_run", run)

    async def after_run(self, run: Run[Any, Any], text: str) -> None:
        await self._wait("after_run", run)

    def before_tool(self, run: Run[Any, Any], call: ToolCall) -> AskFirst | None:
        return AskFirst("may it sign?") if call.name == "sign" else None

    async def _wait(self, name: str, run: Run[Any, Any]) -> None:
        gate = Gate(name, run.node)
        self._gates.hooks.append(gate)
        self._gates.witness.hook_called(gate)
        try:
            command = await gate.take()
            if isinstance(command, Throw):
                raise command.error
        except BaseException as error:
            gate.leave(None, error)
            raise
        gate.leave("", None)


# -- the tools ---------------------------------------------------------------------------------------------------------


@tool(effect="pure")
async def look(n: int, context: ToolContext[Gates]) -> str:
    """Look at something."""
    return await context.deps.perform(context, "look")


@tool(effect="idempotent")
async def note(n: int, context: ToolContext[Gates]) -> str:
    """Note something down."""
    return await context.deps.perform(context, "note")


@tool
async def write(n: int, context: ToolContext[Gates]) -> str:
    """Write something."""
    return await context.deps.perform(context, "write")


async def unpay(n: int, context: ToolContext[Gates]) -> None:
    """Take a payment back."""
    gates = context.deps
    gate = UndoGate(context.node)
    gates.undos.append(gate)
    gates.witness.undo_begun(gate, context.call_id)
    try:
        command = await gate.take()
        if isinstance(command, Throw):
            raise command.error
    except BaseException as error:
        gate.leave(None, error)
        raise
    gate.leave("", None)


@tool(effect="irreversible", undo=unpay)
async def pay(n: int, context: ToolContext[Gates]) -> str:
    """Pay something."""
    return await context.deps.perform(context, "pay")


@tool(on_cancel="finish", grace=FINISH_GRACE)
async def save(n: int, context: ToolContext[Gates]) -> str:
    """Save something, to its end."""
    return await context.deps.perform(context, "save")


@tool(effect="pure", timeout=TIMEOUT)
async def fetch(n: int, context: ToolContext[Gates]) -> str:
    """Fetch something, in time."""
    return await context.deps.perform(context, "fetch")


@tool
async def sign(n: int, context: ToolContext[Gates]) -> str:
    """Sign something; where there are hooks, a person is asked first."""
    return await context.deps.perform(context, "sign")


@tool
async def delegate(n: int, context: ToolContext[Gates]) -> str:
    """A tool written by hand that has an agent do its work, and waits for it."""
    gates = context.deps
    assert gates.inner is not None
    gate = gates.enter(context, "delegate")
    try:
        result = await gates.inner.run(INSIDE, deps=gates)
    except BaseException as error:
        gates.depart(gate, None, error)
        raise
    gates.depart(gate, result.text or "nothing", None)
    return result.text or "nothing"


@tool
async def kick_off(n: int, context: ToolContext[Gates]) -> str:
    """A careless tool: it starts an agent and does not wait for it."""
    gates = context.deps
    assert gates.inner is not None
    stream = gates.inner.stream(INSIDE, deps=gates, on_close="detach")
    gate = gates.enter(context, "kick_off")
    try:
        await anext(stream)
        await stream.aclose()
        value = await _obey(gate, context)
        assert value is not None, "the outermost shield was left twice"
    except BaseException as error:
        gates.depart(gate, None, error)
        raise
    gates.depart(gate, value, None)
    return value


PLAIN_TOOLS: Final = (look, note, write, pay, save, fetch, sign)
HANDMADE_TOOLS: Final = (delegate, kick_off)
AGENT_TOOLS: Final = ("middle", "leaf")
MILD: Final = frozenset({"look", "note", "fetch"})
