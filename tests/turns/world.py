"""A loop in which nothing moves by itself: every callback, model call and tool waits at a gate until it is told.

The world keeps its own account of every item and every receipt, from what was asked and what was told, and compares it
with what the loop says. Every request to the model has each item at most once. `crash` is the death of a process: the
next loop finds what the store, and the session, had at that moment.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from safepoint import Agent, SafePoint, ToolContext, TurnLoop, check_history, tool
from safepoint._core.asks import Request
from safepoint._core.points import Level
from safepoint._core.reasons import Source
from safepoint._core.supervisor import Supervisor
from safepoint.agent.event_hub import EventReader
from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from safepoint.errors import ModelError, RunFailed, StoreError
from safepoint.history.parts import Message
from safepoint.sessions import MemoryStore, Session
from safepoint.sessions.store import Stored
from safepoint.turns import (
    ExitState,
    FailedTurn,
    LoopReader,
    Plan,
    PlanContext,
    PushOptions,
    PushReceipt,
    StopReceipt,
    Turn,
)
from safepoint.turns.events import ItemsDropped, TurnEnded
from safepoint.turns.inbox import Pushed
from safepoint.turns.retry import OnTurnError
from safepoint.turns.state import Carry
from safepoint.turns.stop import StopState
from safepoint.turns.turn import TurnPhase
from tests.machines.stepping import SteppingLoop
from tests.turns.parts import TroubledStore, in_a_thread, stored_places

Where: TypeAlias = Literal["thread", "loop", "outside"]
PATIENCE: Final = 60.0
KEY: Final = "loop"
_STATES: Final = list(StopState)


@dataclass(eq=False)
class Gate:
    """Somebody stands here."""

    kind: str
    through: asyncio.Future[Any]  # Any: a command, as the kind of gate understands it
    given: Any = None  # Any: what the one who stands here was given


class Gates:
    def __init__(self) -> None:
        self.standing: list[Gate] = []
        self._calls = 0

    async def wait(self, kind: str, given: Any = None) -> Any:  # Any: as above
        gate = Gate(kind, asyncio.get_running_loop().create_future(), given)
        self.standing.append(gate)
        try:
            return await gate.through
        finally:
            self.standing.remove(gate)

    def of(self, kind: str) -> Gate | None:
        return next((gate for gate in self.standing if gate.kind == kind and not gate.through.done()), None)

    def next_call(self) -> str:
        self._calls += 1
        return f"call_{self._calls}"


class GatedModel:
    """Waits at a gate; then it speaks, calls a tool, or fails."""

    name = "gated"

    def __init__(self, gates: Gates, may_repeat: set[str]) -> None:
        self.gates = gates
        self._may_repeat = may_repeat
        self.repeated: list[str] = []

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        check_history(list(request.messages))
        self.repeated += [item for item in repeated(request.messages) if item not in self._may_repeat]
        return self._stream()

    @asynccontextmanager
    async def _stream(self) -> AsyncGenerator[AsyncIterator[Chunk]]:
        yield self._chunks()

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        command = await self.gates.wait("model")
        if command == "fail":
            raise ModelError("told to fail")
        if command == "say":
            yield TextDelta("done")
            yield Finish("end_turn")
        else:
            yield CallDelta(0, self.gates.next_call(), command, "{}")
            yield Finish("tool_calls")


def repeated(messages: Sequence[Message]) -> list[str]:
    """The items that are in the conversation more than once."""
    said = Counter(re.findall(r"\b\d{4}\b", " ".join(each.text for each in messages if each.role == "user")))
    return [item for item, times in said.items() if times > 1]


def _gates_of(ctx: ToolContext) -> Gates:
    agent = ctx.run.agent
    assert isinstance(agent, Agent)
    model = agent.models[0]
    assert isinstance(model, GatedModel)
    return model.gates


@tool
async def work(ctx: ToolContext) -> str:
    """Wait at a gate."""
    if await _gates_of(ctx).wait("tool") == "fail":
        raise ValueError("told to fail")
    return "done"


@tool
async def ask(ctx: ToolContext) -> str:
    """Ask a person."""
    return str(await ctx.interrupt("?"))


@dataclass
class Pushing:
    """One push: what it saw, and its receipt."""

    item: str
    seen: Turn[str] | None
    planning: bool
    receipt: PushReceipt
    ask: str | None


@dataclass
class Account:
    """Where the items of one loop are, by what was told."""

    begun_with: list[str] = field(default_factory=list[str])
    accepted: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    consumed: list[str] = field(default_factory=list[str])
    preempted: list[str] = field(default_factory=list[str])
    dropped: list[str] = field(default_factory=list[str])
    withdrawn: list[str] = field(default_factory=list[str])
    discarded: list[str] = field(default_factory=list[str])


class World:
    """One loop on one event loop, and the store that outlives both."""

    def __init__(self, carry: Carry, on_turn_error: OnTurnError, *, waits: bool, in_session: bool) -> None:
        self._options: tuple[Carry, OnTurnError, bool] = (carry, on_turn_error, waits)
        self.store = TroubledStore()
        self._in_session = in_session
        self.sessions = MemoryStore()
        self.sessions.storage._tables.sessions["s"] = Stored((), {})  # pyright: ignore[reportPrivateUsage]  # without waiting
        # Items that were asked for again by a person, after others were said: they may well be said again.
        self.may_repeat: set[str] = set()
        self.moves: Counter[tuple[str, str, str]] = Counter()
        self._items = 0
        self._open()

    def _open(self) -> None:
        """A new process."""
        carry, on_turn_error, waits = self._options
        self.event_loop = SteppingLoop()
        self.gates = Gates()
        self.account = Account()
        self.pushes: list[Pushing] = []
        self.stops: list[StopReceipt] = []
        self.turns: list[Turn[str]] = []
        self.started = False
        self._session: Session | None = None
        self._decided: list[FailedTurn[str]] = []
        self._requeues = carry == "requeue"
        self._strongest: Request | None = None
        self._furthest = 0
        self._asks_of: dict[int, set[str]] = {}
        self.loop: TurnLoop[str] = TurnLoop(
            plan=self._plan,
            prepare=self._prepare,
            on_events=self._watch,
            store=self.store,
            checkpoint_id=KEY,
            carry=carry,
            on_turn_error=on_turn_error,
            on_interrupt="wait" if waits else "exit",
        )
        self.model = GatedModel(self.gates, self.may_repeat)
        self.agent = Agent("gated", model=self.model, tools=[work, ask], retries=0)
        self.events: LoopReader[str] = self.loop.events()
        self.account.begun_with = self._stored_items()

    def _stored_items(self) -> list[str]:
        return [item for place in stored_places(self.store.peek(KEY)) for item in place]

    # -- what the loop is made of --------------------------------------------------------------------------------------

    async def _plan(self, ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        check_history(list(ctx.history)) if ctx.history else None
        command = await self.gates.wait("plan", items)
        if command == "fail":
            raise ValueError("told to fail")
        if command == "later":
            return Plan(None, [], items)
        consumed, dropped = command
        rest: dict[str, Any] = {"remaining": items[consumed + dropped :]} if dropped else {"keep_rest": True}
        if self._in_session:
            rest["session"] = self._session = self._session or await Session.load(self.sessions, "s")
        else:
            rest["history"] = ctx.history
        return Plan(" ".join(items[:consumed]), items[:consumed], **rest)

    async def _prepare(self, ctx: PlanContext[str], consumed: list[str]) -> Agent:
        if await self.gates.wait("prepare") == "fail":
            raise ValueError("told to fail")
        return self.agent

    async def _watch(self, turn: Turn[str], events: EventReader) -> None:
        if turn not in self.turns:
            self.turns.append(turn)
        if await self.gates.wait("watch") == "fail":
            raise ValueError("told to fail")
        async for _ in events:
            pass

    # -- what is done to it --------------------------------------------------------------------------------------------

    def do(self, act: Callable[[], Any], where: Where) -> None:  # Any: nobody looks at it
        """Do it from another thread, from inside the event loop, or from outside any."""
        if where == "thread":
            in_a_thread(act)
        elif where == "loop":
            self.event_loop.call_soon(act)
            self.event_loop.round()
        else:
            act()

    def push(self, options: dict[str, Any], where: Where, *, by_strategy: bool = False) -> None:  # Any: options
        self._items += 1
        item = f"{self._items:04}"

        def act() -> None:
            driver = self.loop._driver  # pyright: ignore[reportPrivateUsage]  # the oracle looks inside
            seen = driver.state.turn
            planning = seen is not None and not seen.has_run
            if by_strategy:
                receipt = self.loop.push(item, strategy=lambda turn: PushOptions(**options) if turn else None)
            else:
                receipt = self.loop.push(item, **options)
            entries = driver.inbox.waiting()
            entry = entries[-1] if receipt.accepted else None
            ask = entry.preempt.ask.id if isinstance(entry, Pushed) and entry.preempt is not None else None
            self.pushes.append(Pushing(item, seen, planning, receipt, ask))
            (self.account.accepted if receipt.accepted else self.account.refused).append(item)
            if seen is not None and ask is not None:
                self._asks_of.setdefault(seen.number, set()).add(ask)

        self.do(act, where)

    def stop(self, at: SafePoint | None, options: dict[str, Any], where: Where) -> None:  # Any: options
        self.do(lambda: self.stops.append(self.loop.stop(at, **options)), where)

    def may_withdraw(self) -> bool:
        """Is there an item that nobody has told what became of it? Every second one is left alone."""
        return sum(push.receipt._result.value is None for push in self.pushes) > 1  # pyright: ignore[reportPrivateUsage]  # without waiting

    def withdraw(self, which: int, where: Where) -> None:
        def act() -> None:
            push = self.pushes[which % len(self.pushes)]
            if push.receipt.withdraw():
                self.account.withdrawn.append(push.item)

        if self.pushes:
            self.do(act, where)

    def decide(self, *, requeue: bool) -> None:
        """What becomes of the failed turns. While the loop stores its end, a decision changes nothing."""
        if not self.started or self.loop.ended or self.loop._driver.inbox.finished:  # pyright: ignore[reportPrivateUsage]  # the oracle looks inside
            return
        for failed in self.loop.view.failed:
            if any(failed is other for other in self._decided):
                continue  # of two decisions the first counts
            in_time = not self.loop._driver.state._sealed  # pyright: ignore[reportPrivateUsage]  # the oracle looks inside
            if in_time:
                self._decided.append(failed)
            if requeue:
                self.may_repeat.update(failed.items)
                self.loop.requeue(failed)
            else:
                self.account.discarded += failed.items if in_time else []
                self.loop.discard(failed)

    def start(self) -> None:
        self.started = True
        self.event_loop.call_soon(self.loop.start)
        self.event_loop.round()

    def cancel_task(self) -> None:
        task = self.loop._task  # pyright: ignore[reportPrivateUsage]  # as a shutdown of the event loop does
        if task is not None:
            task.cancel()

    def answer(self) -> None:
        for question in self.loop.questions:
            self.loop.answer(question.id, "yes")

    def cancel_waiting(self) -> None:
        """The user cancels the run that waits for a person."""
        turn = self.loop.view.turn
        if turn is not None and turn.phase is TurnPhase.PAUSED and turn.run is not None:
            turn.run.cancel(reason="no more")

    # -- looking -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """What must be true at any time."""
        driver = self.loop._driver  # pyright: ignore[reportPrivateUsage]  # the oracle looks inside
        places = driver.state.places()
        numbers = [item.number for item in (*places.unhandled, *places.interrupted, *places.failed)]
        assert len(numbers) == len(set(numbers)), "an item is in two places"
        assert [item.number for item in places.unhandled] == sorted(item.number for item in places.unhandled)
        assert self.model.repeated == [], "an item was said twice"
        self._requests_only_get_stronger(driver.stops.request, _STATES.index(driver.stops.state))
        for turn in self.turns:
            log = turn.run.node.log.standing()
            preempts = {ask.id for ask in (*log.asks, *log.late) if ask.reason.source is Source.PREEMPT}
            assert preempts <= self._asks_of.get(turn.number, set()), "a preempt hit a turn that is not its own"
        assert self.event_loop.errors == []

    def _requests_only_get_stronger(self, request: Request | None, state: int) -> None:
        assert state >= self._furthest, "a stop was taken back"
        before = self._strongest
        if before is not None:
            assert request is not None
            assert request.at.level >= before.at.level
            assert (request.deadline or 1e9) <= (before.deadline or 1e9)
            if request.at.level is Level.SAFE:
                assert request.at == before.at | request.at
        self._strongest, self._furthest = request, state

    def end(self) -> ExitState[str]:
        """Let the loop come to its end, whatever stands in its way, and hold it against the account."""
        if not self.started:
            self.start()
        if not self.loop.ended:
            self.stop(SafePoint.NOW, {}, "outside")
        self.store.fails = None
        self.event_loop.advance(PATIENCE)
        exit = self.loop._driver.exit  # pyright: ignore[reportPrivateUsage]  # without waiting
        assert exit is not None, f"the loop does not end: {[gate.kind for gate in self.gates.standing]}"
        self.check()
        self._take_events()
        self._check_items(exit)
        self._check_receipts(exit)
        self._count()
        self._close()
        return exit

    def crash(self) -> None:
        """The process dies. What the store has is all that is left of it."""
        durable = [push.item for push in self.pushes if push.receipt.accepted and self._is_saved(push.receipt)]
        self._take_events()
        account = self.account
        gone = (account.consumed, account.preempted, account.dropped, account.withdrawn, account.discarded)
        done = {item for place in gone for item in place}
        kept, said = self.store.copy(), MemoryStore()
        tables, left = said.storage._tables, self.sessions.storage._tables  # pyright: ignore[reportPrivateUsage]  # no waiting
        tables.sessions.update(left.sessions)
        self._abandon()
        self.store, self.sessions = kept, said
        found = self._stored_items()
        assert len(found) == len(set(found)), "an item was stored twice"
        lost = [item for item in durable if item not in done and item not in found]
        assert lost == [], f"durable items were lost: {lost}"
        self._open()

    def restart(self) -> None:
        """The loop ends, and the next one goes on from what it has left."""
        exit = self.end()
        if exit.checkpoint == "saved":
            failed = [item for turn in exit.failed for item in turn.items]
            interrupted, unhandled, stored_failed = stored_places(self.store.peek(KEY))
            assert (interrupted, unhandled) == (exit.interrupted, exit.unhandled)
            assert sorted(stored_failed) == sorted(failed)
        self._open()

    def _is_saved(self, receipt: PushReceipt) -> bool:
        settled = receipt._saved  # pyright: ignore[reportPrivateUsage]  # without waiting
        return settled is not None and settled.value == "saved"

    def _take_events(self) -> None:
        async def read() -> None:
            async for event in self.events:
                match event:
                    case TurnEnded(outcome="ended", consumed=items):
                        self.account.consumed += items
                    case TurnEnded(outcome="preempted", consumed=items) if not self._requeues:
                        self.account.preempted += items
                    case ItemsDropped(items=items):
                        self.account.dropped += items
                    case _:
                        pass

        task = self.event_loop.create_task(read())
        self.event_loop.settle()
        if not task.done():
            task.cancel()
            self.event_loop.settle()

    def _check_items(self, exit: ExitState[str]) -> None:
        account = self.account
        failed = [item for turn in exit.failed for item in turn.items]
        gone = [account.consumed, account.preempted, account.dropped, account.withdrawn, account.discarded]
        places = [*gone, exit.interrupted, exit.unhandled, failed]
        found = sorted(item for place in places for item in place)
        loaded = self.loop._driver._loaded  # pyright: ignore[reportPrivateUsage]  # was the record ever read?
        if not loaded:
            assert exit.checkpoint == "failed"
            assert self._stored_items() == account.begun_with
        expected = sorted([*(account.begun_with if loaded else ()), *account.accepted])
        assert found == expected, f"{expected} were accepted; {places}"
        assert sorted(self.loop.take_late_items()) == account.refused
        assert exit.unhandled == sorted(exit.unhandled)

    def _check_receipts(self, exit: ExitState[str]) -> None:
        for push in self.pushes:
            outcome, seen = push.receipt.outcome, push.seen
            if outcome == "preempted":
                assert seen is not None
                assert push.ask is not None
                assert seen.preempted, "a receipt says preempted, and its turn was not"
            elif outcome == "finished_first":
                assert push.ask is not None
                assert seen is not None
                assert seen.phase == "over"
            elif push.ask is not None:
                assert seen is None or not seen.has_run
            elif push.receipt.accepted and push.receipt.wants_to_join:
                assert outcome in ("joined", "queued")
            self._check_result(push, exit)
        cut = any(turn.stopped for turn in self.turns)
        for stop in self.stops:
            assert stop.settled
            assert (stop.outcome in ("stopped", "escalated")) == (cut and stop.accepted) or not stop.accepted
            if stop.outcome == "clean":
                assert exit.reason in ("clean", "interrupted", "cancelled")
        if exit.reason == "clean":
            assert not cut
        if exit.reason == "error":
            told_to = isinstance(exit.error, ValueError | OSError) and "told to fail" in str(exit.error)
            assert told_to or isinstance(exit.error, RunFailed | StoreError), exit.error

    def _check_result(self, push: Pushing, exit: ExitState[str]) -> None:
        result = push.receipt._result.value  # pyright: ignore[reportPrivateUsage]  # without waiting
        account, item = self.account, push.item
        places = {
            "late": account.refused,
            "withdrawn": account.withdrawn,
            "preempted": account.preempted,
            "dropped": account.dropped,
            "unhandled": exit.unhandled,
            "interrupted": exit.interrupted,
        }
        assert result is not None, f"nobody ever knows what became of {item}"
        if not isinstance(result, str):
            assert item in account.consumed
        elif result != "failed":  # a failed one may have been put back since
            assert item in places[result], f"{item} is not {result}"

    def _count(self) -> None:
        driver = self.loop._driver  # pyright: ignore[reportPrivateUsage]  # the arrows it took
        for machine, moves in (("preempt", driver.preempts.moves), ("stop", driver.stops.moves)):
            for (before, after), times in moves.items():
                self.moves[machine, str(before), str(after)] += times

    def _abandon(self) -> None:
        """Tidy up behind a process that died: what it does from now on reaches nobody."""
        self._count()
        if self.started and not self.loop.ended:
            self.cancel_task()
            self.store.fails = None
            self.event_loop.advance(PATIENCE)
        self._close()

    def give_up(self) -> None:
        """Something was wrong already: leave no event loop behind, and say nothing more."""
        for task in asyncio.all_tasks(self.event_loop):
            task.cancel()
        with suppress(BaseException):
            self.event_loop.advance(PATIENCE)
        self.event_loop.close()

    def _close(self) -> None:
        async def left() -> int:
            return len(Supervisor.current().roots)

        assert self.event_loop.run_until_complete(left()) == 0
        assert not asyncio.all_tasks(self.event_loop)
        self.event_loop.dismiss()
