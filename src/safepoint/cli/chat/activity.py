"""What one turn does, for people to watch: its calls with their state, time and output, and what was used so far.

Built from the events of the run and of the runs inside it, and from nothing else. It decides nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from safepoint._core.ladder import Rung
from safepoint.agent.events import (
    CancelRequested,
    Event,
    ModelCallEnded,
    ModelCallStarted,
    RetryScheduled,
    RungReached,
    RunStarted,
    TextStreamed,
    ToolCallEnded,
    ToolCallStarted,
    ToolOutputStreamed,
)
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.usage import NO_USAGE, Usage
from safepoint.cli.sanitize import sanitize
from safepoint.history.parts import ToolCall
from safepoint.history.states import LedgerState
from safepoint.tools.options import Effect

KEPT_LINES: Final = 200
LONGEST_LINE: Final = 2_000


class OutputTail:
    """The last lines of what a tool prints."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._open = ""
        self.total = 0

    def add(self, text: str) -> None:
        *whole, self._open = (self._open + sanitize(text)).split("\n")
        self._open = self._open[-LONGEST_LINE:]
        self.total += len(whole)
        self._lines.extend(line[:LONGEST_LINE] for line in whole)

    def last(self, number: int) -> list[str]:
        lines = [*self._lines, self._open] if self._open.strip() else list(self._lines)
        return [line for line in lines if line.strip()][-number:] if number else []


@dataclass(slots=True)
class Call:
    """One tool call. `path` is that of its node in the tree of the run; `depth` is 0 for a call of the run itself."""

    path: str
    name: str
    args: Mapping[str, Any]  # Any: decoded JSON
    depth: int
    since: float
    state: LedgerState = LedgerState.NOT_STARTED
    over: bool = False
    took: float = 0.0
    output: OutputTail = field(default_factory=OutputTail)
    entry: LedgerEntry | None = None
    # The rungs that it has climbed, each with the time.
    rungs: list[tuple[Rung, float]] = field(default_factory=list[tuple[Rung, float]])

    @property
    def running(self) -> bool:
        return self.state is LedgerState.RUNNING and not self.over

    @property
    def in_doubt(self) -> bool:
        """Was it cut, so that its effect is unknown and must not happen twice?"""
        effect = self.entry.effect if self.entry is not None else Effect.EFFECTFUL
        return self.state is LedgerState.CUT and effect not in (Effect.PURE, Effect.IDEMPOTENT)

    def seconds(self, now: float) -> float:
        return self.took if self.over else now - self.since


class Activity:
    """One turn. `clock` gives seconds that only rise; `speaks`: is the event about a run whose words are the answer?"""

    def __init__(self, root: str, clock: Callable[[], float], speaks: Callable[[Event], bool]) -> None:
        self.root = root
        self.speaks = speaks
        self.began = clock()
        self.calls: dict[str, Call] = {}
        self.usage: Usage = NO_USAGE
        self.steps = 0
        # How many characters of the answer have come.
        self.spoken = 0
        # Agents at work, by path, each with the number of its steps.
        self.agents: dict[str, int] = {}
        # Since when the model is computing and has said nothing; None if it speaks, or does not compute.
        self.waiting_since: float | None = None
        self.retry: RetryScheduled | None = None
        self.asks: list[CancelRequested] = []
        self._clock = clock

    def apply(self, event: Event) -> Call | None:
        """Take the event in; the call that it ends, if it ends one."""
        now = self._clock()
        match event:
            case RunStarted():
                self.agents[event.path] = 0
            case ModelCallStarted():
                self._model_started(event, now)
            case TextStreamed() if self.speaks(event):
                self.waiting_since = None
                self.spoken += len(event.text)
            case ModelCallEnded():
                self._model_ended(event, now)
            case RetryScheduled() if self.speaks(event):
                self.retry = event
            case ToolCallStarted(call=call):
                self._call_started(event.path, call, now)
            case ToolOutputStreamed():
                if (found := self.find(event.path, event.call_id)) is not None:
                    found.output.add(event.text)
            case RungReached() if event.call_id is not None:
                if (found := self.find(event.path, event.call_id)) is not None:
                    found.rungs.append((event.rung, now))
            case ToolCallEnded(entry=entry):
                return self._call_ended(event.path, entry, now)
            case CancelRequested():
                self.asks.append(event)
            case _:
                pass
        return None

    def _model_started(self, event: ModelCallStarted, now: float) -> None:
        self.agents[event.path] = event.step
        if self.speaks(event):
            self.steps, self.waiting_since, self.retry = event.step, now, None

    def _model_ended(self, event: ModelCallEnded, now: float) -> None:
        self.usage = self.usage + event.usage
        if self.speaks(event):
            self.waiting_since = None
        if event.complete and event.message is not None:
            for call in event.message.tool_calls:
                self._open(event.path, call, now)

    def _open(self, path: str, call: ToolCall, now: float) -> Call:
        """`path` is that of the run, for a call that waits; or of the call's own node, once it has one."""
        node = f"{call.name}:{call.id}"
        key = path if path.endswith(f"/{node}") else f"{path}/{node}"
        if key not in self.calls:
            depth = key.count("/") - self.root.count("/") - 1
            self.calls[key] = Call(key, call.name, call.args, depth, now)
        return self.calls[key]

    def _call_started(self, path: str, call: ToolCall, now: float) -> None:
        found = self._open(path, call, now)
        found.state, found.since, found.args = LedgerState.RUNNING, now, call.args

    def _call_ended(self, path: str, entry: LedgerEntry, now: float) -> Call:
        found = self._open(path, ToolCall(entry.call_id, entry.name, dict(entry.args)), now)
        found.took = now - found.since if found.state is LedgerState.RUNNING else 0.0
        found.state, found.entry, found.over = entry.state, entry, True
        return found

    def find(self, path: str, call_id: str) -> Call | None:
        """The call of that id. The path of the event is that of the run, or of the call itself."""
        for call in reversed(self.calls.values()):
            if call.path.endswith(f":{call_id}") and call.path.startswith(path):
                return call
        return None

    @property
    def top(self) -> list[Call]:
        """The calls of the run itself, in their order."""
        return [call for call in self.calls.values() if call.depth == 0]

    @property
    def running(self) -> list[Call]:
        return [call for call in self.calls.values() if call.running]

    @property
    def queued(self) -> list[Call]:
        return [call for call in self.calls.values() if call.state is LedgerState.NOT_STARTED and not call.over]

    def below(self, call: Call) -> list[Call]:
        """The calls of the agents inside that call."""
        return [each for each in self.calls.values() if each.path.startswith(f"{call.path}/")]


def summary(args: Mapping[str, Any]) -> str:  # Any: decoded JSON
    """The arguments as one short piece of text: a single text as it is, anything else by name."""
    values = [(name, value) for name, value in args.items() if value not in (None, "")]
    if len(values) == 1 and isinstance(values[0][1], str):
        return _spell(values[0][1])
    return "  ".join(f"{name}={_spell(value)}" for name, value in values)


def _spell(value: object) -> str:
    text = " ".join(sanitize(value).split())
    return text if len(text) <= 200 else f"{text[:199]}…"
