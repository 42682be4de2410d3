"""The conversation behind a chat: turns, stops, questions and what the person types meanwhile. It draws nothing.

    IDLE ──say──▶ WORKING ──questions──▶ ASKING ──answers──▶ WORKING
      ▲              └──────ended──────────┴──left open──┐
      └──────────────────────────────────────────────────┘

Each press goes a level harder: `Run.cancel(escalate=True)`. While only words stream, nothing can be in doubt, so the
first press is NOW already. One more press within two seconds of a forced stop leaves the program:

    Level.NONE ──▶ SAFE ──▶ NOW ──▶ FORCE ──▶ Press.LEAVE
"""

from __future__ import annotations

import math
import textwrap
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final, Protocol

from safepoint import Agent, BaseAgent, Question, Reason, Receipt, Resume, Run, RunResult, SafePoint, Source, StopReason
from safepoint._core.asks import ONE_PRESS
from safepoint._core.points import Level
from safepoint.agent.model import Model
from safepoint.agent.resume import OnUnknown
from safepoint.agent.steering import SteerOutcome, SteerReceipt
from safepoint.cli.chat.activity import Activity, Call
from safepoint.cli.chat.lines import Line, Role, amber, bold, clean, dim, ink
from safepoint.cli.chat.words import Look, call_line, end_lines, preview_words
from safepoint.errors import SafepointError
from safepoint.events import Event, RetryScheduled, TextStreamed, ToolCallStarted
from safepoint.history.states import LedgerState
from safepoint.sessions import Session

LEAVES_WITHIN: Final = 2.0  # seconds after a forced stop, or a press for nothing, in which one more press leaves

# A question is shown by itself, and what a stop has cut is in the receipt.
_LINE_STAYS: Final = frozenset(
    {LedgerState.FINISHED, LedgerState.FAILED, LedgerState.STOPPED, LedgerState.FINISHED_LATE}
)


class Press(Enum):
    """What a press of Ctrl-C or Esc has done."""

    STOPS = auto()  # the live run was asked to stop, a level harder than before
    REPEATED = auto()  # a key that is held down, after what it has stopped has ended: nothing
    IDLE = auto()  # nothing runs: the person is told how to leave
    LEAVE = auto()  # the person wants to leave the program


class View(Protocol):
    """What shows a conversation: a screen, a plain terminal, a pipe."""

    @property
    def look(self) -> Look: ...

    def words(self, piece: str) -> None:
        """More of the answer."""

    def end_words(self) -> None:
        """The answer, or this part of it, is whole."""

    def print(self, *lines: Line) -> None:
        """Lines that stay."""

    def changed(self) -> None:
        """Something that is shown live has changed."""

    def begin(self, call: Call) -> None:
        """A call of the run itself has begun."""

    def give_back(self, text: str) -> None:
        """Put a message back where it was typed: it was not sent."""

    async def ask(self, question: Question, call: Call | None) -> object:
        """The person's answer. Raises `QuestionLeft` if they want to answer later.

        Cancellation: nothing was answered.
        """
        ...


class QuestionLeft(Exception):
    """The person leaves a question open; it is asked again by /resume."""


class Conversation:
    """One agent, one session. `model` is used in place of the agent's own, if it is given."""

    def __init__(
        self,
        agent: BaseAgent[Any, Any],  # Any: every agent can be talked to
        session: Session,
        view: View,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agent = agent
        self.session = session
        self.view = view
        self.clock = clock
        self.model: Model | str | None = None
        self.run: Run[Any, Any] | None = None
        self.activity: Activity | None = None
        self.last: RunResult[Any] | None = None
        self.took = 0.0
        self.steers: list[SteerReceipt] = []
        self.queue: deque[str] = deque()
        self._receipts: list[Receipt] = []
        self._asked_at = 0.0
        self._pressed_at = self._leaves_until = -math.inf
        self._words_open = False
        self._instead: str | None = None

    @property
    def working(self) -> bool:
        return self.run is not None

    # -- turns ---------------------------------------------------------------------------------------------------------

    async def say(self, text: str) -> RunResult[Any] | None:
        """One turn, with the questions that come up in it. None if it could not begin.

        Cancellation: the turn is stopped NOW and recorded.
        """
        if not self.session.messages:
            self.session.state["title"] = clean(text)[:80]
        return await self._turns(lambda: self.agent.start(text, **self._options()))

    async def resume(self, message: str | None = None, on_unknown: OnUnknown = "tell") -> RunResult[Any] | None:
        """Go on where the last turn was stopped. Cancellation: as for `say`."""
        checkpoint = self.session.checkpoint
        if checkpoint is None:
            self.view.print((dim("There is nothing to resume: the last turn ended by itself. Write a message."),))
            return None
        answers: dict[str, object] = {}
        try:
            if checkpoint.questions:
                answers = await self._answers(checkpoint.questions)
        except QuestionLeft:
            return None
        again = Resume(checkpoint, message, answers, on_unknown=on_unknown)
        return await self._turns(lambda: self.agent.start(checkpoint=again, **self._options()))

    async def _turns(self, start: Callable[[], Run[Any, Any]]) -> RunResult[Any] | None:
        try:
            result = await self._turn(start())
            while result.stop_reason is StopReason.INTERRUPTED and result.checkpoint is not None:
                answers = await self._answers(result.questions)
                checkpoint = self.session.checkpoint or result.checkpoint
                result = await self._turn(
                    self.agent.start(checkpoint=Resume(checkpoint, None, answers), **self._options())
                )
        except QuestionLeft:
            self.view.print((dim("The question stays open. /resume asks it again; a message drops it."),))
            return self.last
        except SafepointError as error:
            self.view.print(((Role.RED, f"{self.view.look.signs.failed} "), ink(error)))
            return None
        return result

    def _options(self) -> dict[str, Any]:  # Any: options of a run
        options: dict[str, Any] = {"session": self.session}  # Any: as above
        if self.model is not None and isinstance(self.agent, Agent):
            options["model"] = self.model
        return options

    async def _turn(self, run: Run[Any, Any]) -> RunResult[Any]:
        async with run:
            self.run = run
            self._receipts.clear()
            speakers = run.hub.speakers
            self.activity = Activity(run.node.path, self.clock, lambda event: event.run_id in speakers)
            self.view.changed()
            try:
                async for event in run.events(nested=True):
                    self._show(event)
            finally:
                self._end_words()
                self.run = None
        self.last, now = run.result, self.clock()
        stopped_for = now - self._asked_at if self._receipts else 0.0
        if self.level is Level.FORCE:
            self._leaves_until = now + LEAVES_WITHIN
        self.took = now - self.activity.began
        self.view.print(*end_lines(run.result, self.activity, stopped_for, self.view.look))
        self._settle_messages(stopped=run.result.stop_reason is StopReason.CANCELLED)
        self.view.changed()
        return run.result

    def _show(self, event: Event) -> None:
        assert self.activity is not None
        ended = self.activity.apply(event)
        if isinstance(event, TextStreamed) and self.activity.speaks(event):
            self._words_open = True
            self.view.words(event.text)
            return
        if self.activity.running or ended is not None:
            self._end_words()
        if isinstance(event, ToolCallStarted) and (call := self.activity.find(event.path, event.call.id)) is not None:
            self.view.begin(call)
        if ended is not None and ended.depth == 0 and ended.state in _LINE_STAYS:
            self.view.print(call_line(ended, self.clock(), self.view.look))
        if isinstance(event, RetryScheduled):
            self.view.print((dim(f"The model is busy. Trying again in {event.delay:.0f} s: {clean(event.error)}"),))
        self._tell_joined()
        self.view.changed()

    def _end_words(self) -> None:
        if self._words_open:
            self._words_open = False
            self.view.end_words()

    # -- questions -----------------------------------------------------------------------------------------------------

    async def _answers(self, questions: Sequence[Question]) -> dict[str, object]:
        answers: dict[str, object] = {}
        for question in questions:
            call_id = question.id.partition(":")[0]
            calls = self.activity.calls.values() if self.activity is not None else ()
            call = next((each for each in calls if each.path.endswith(f":{call_id}")), None)
            answers[question.id] = await self.view.ask(question, call)
        return answers

    # -- stopping ------------------------------------------------------------------------------------------------------

    @property
    def level(self) -> Level:
        """How hard the person has asked the run of this turn, or of the last one, to stop."""
        return max((receipt.asked.at.level for receipt in self._receipts), default=Level.NONE)

    def press(self, how: str = "Ctrl-C") -> Press:
        """Ctrl-C or Esc. Safe in a signal handler of the loop."""
        now = self.clock()
        repeated, self._pressed_at = now - self._pressed_at < ONE_PRESS, now
        if self.run is not None and self.activity is not None:
            self._press_live(self.run, self.activity, Reason(how, Source.USER))
            return Press.STOPS
        if repeated:
            return Press.REPEATED
        if now < self._leaves_until:
            return Press.LEAVE
        self._leaves_until = now + LEAVES_WITHIN
        return Press.IDLE

    def _press_live(self, run: Run[Any, Any], activity: Activity, reason: Reason) -> None:
        is_first = self.level is Level.NONE
        self._ask(run.cancel(escalate=True, recursive=True, reason=reason))
        if is_first and not activity.running:
            self._ask(run.cancel(SafePoint.NOW, reason=reason))

    def _ask(self, receipt: Receipt) -> None:
        if self.level is Level.NONE:
            self._asked_at = self.clock()
        self._receipts.append(receipt)
        self.view.changed()

    def go_on(self) -> bool:
        """Take the stop back, if it still waits for its safe point."""
        if self.level is not Level.SAFE:
            return False
        withdrawn = [each.withdraw() for each in self._receipts]
        if not all(withdrawn):
            return False
        self._receipts.clear()
        self.view.print((dim("The stop was taken back."),))
        return True

    def stop_now(self, how: str) -> None:
        """Stop at once, whatever was pressed before."""
        if self.run is not None and self.level < Level.NOW:
            self._ask(self.run.cancel(SafePoint.NOW, reason=Reason(how, Source.USER)))

    @property
    def let_go(self) -> list[str]:
        """The calls of the last turn that did not react to their stop and still run."""
        calls = self.activity.calls.values() if self.activity is not None else ()
        return [call.name for call in calls if call.entry is not None and call.entry.still_running]

    def stop_call(self, call: Call) -> None:
        """Stop one call, or the agent inside it; the rest goes on."""
        for node in self.run.tree.walk() if self.run is not None else ():
            if node.path == call.path:
                node.cancel(SafePoint.NOW, reason=Reason("stopped in the tree", Source.USER))

    def stop_lines(self) -> list[Line]:
        """What the stop waits for, and what the next press would do. Empty while no stop was asked for."""
        run, signs = self.run, self.view.look.signs
        if run is None or self.level is Level.NONE:
            return []
        if self.level is Level.SAFE:
            words = preview_words(run.preview_cancel(SafePoint.NOW))
            tone = amber if "in doubt" in words or "may not" in words else dim
            again = "Ctrl-C again: now. "
            first, *rest = textwrap.wrap(again + words, max(20, self.view.look.width - 2))
            return [
                (bold(f"{signs.stop} Stopping when these have ended. Nothing is cut, nothing new starts."),),
                (dim(f"  {again}"), tone(first.removeprefix(again))),
                *((tone(f"  {line}"),) for line in rest),
                (dim("  Enter: go on after all."),),
            ]
        if self.level is Level.FORCE:
            return [((Role.RED, f"{signs.stop} Forced. It waits for nothing."),)]
        left = run.preview_cancel(SafePoint.NOW).seconds
        bound = f", {left:.1f} s at the latest" if left is not None and left >= 0.05 else ""
        return [(bold(f"{signs.stop} Stopping now{bound}."), dim("   Ctrl-C again: force, without waiting."))]

    # -- typing while it works -----------------------------------------------------------------------------------------

    def steer(self, text: str) -> None:
        """The text joins the conversation before the next step; if none follows, it becomes the next message."""
        if self.run is None:
            self.queue.append(text)
            return
        self.steers.append(self.run.steer(text))
        self.view.changed()

    def take_back(self) -> str | None:
        """The last message that has not joined yet, taken back; or the last that waits in the queue."""
        while self.steers:
            receipt = self.steers.pop()
            if receipt.withdraw():
                return receipt.message.text
        return self.queue.pop() if self.queue else None

    def _tell_joined(self) -> None:
        for receipt in [each for each in self.steers if each.outcome is SteerOutcome.JOINED]:
            self.steers.remove(receipt)
            self.view.print(((Role.GREEN, f"{self.view.look.signs.done} "), dim(f"joined: {receipt.message.text}")))

    def stop_for(self, text: str) -> None:
        """Stop at once, and send this next."""
        self._instead = text
        self.stop_now("Ctrl-X")

    def _settle_messages(self, *, stopped: bool) -> None:
        """Messages that found no further step are sent next; after a stop they go back to the person instead."""
        self._tell_joined()
        late = [each.message.text for each in self.steers if each.outcome is SteerOutcome.TOO_LATE]
        self.steers.clear()
        self.queue.extendleft(reversed(late))
        if self._instead is not None:
            self.queue.appendleft(self._instead)
            self._instead = None
        elif stopped and self.queue:
            self.view.give_back("\n".join(self.queue))
            self.queue.clear()
