"""One `session/prompt`, from the frame to its answer.

A turn is one run, or several, if the run asks a person in between: the answer continues it. The turn alone sends the
updates of its runs, so none can follow the answer.

      WAITING ──earlier turns are over──▶ RUNNING ──the run pauses──▶ ASKING
         │                                │    ▲                        │ │
         │ stopped                        │    └──────answered──────────┘ │ stopped: the pause is cleared
         ▼                                ▼                               ▼
        OVER ◀──────────────────── the run's end is recorded ◀────────────┘

`stop` is a plain function: it asks the run at once, and wakes the wait that the turn is in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from acp import schema
from acp.meta import CLIENT_METHODS
from pydantic import ValidationError

from safepoint._core.latch import Latch
from safepoint._core.reasons import Reason
from safepoint._core.receipts import Receipt
from safepoint.agent.checkpoint import Question
from safepoint.agent.events import Event, ToolCallEnded, ToolCallStarted
from safepoint.agent.stop_reason import StopReason
from safepoint.errors import SafepointError, SessionBusy, SessionNotFound, StoreError
from safepoint.history.parts import ToolResult, UserPart
from safepoint.protocols.acp.content import words_of as text_of
from safepoint.protocols.acp.permissions import Choice, choice_of, kept_by, words_of
from safepoint.protocols.acp.rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    Json,
    RpcConnection,
    RpcError,
)
from safepoint.protocols.acp.updates import META, Update, UpdateEncoder, call_id, chunk
from safepoint.protocols.endings import ACP, Ending
from safepoint.serving.cancel_requests import StopRequest, reason_json
from safepoint.serving.cancel_service import ask, clear_pause, store_request
from safepoint.serving.events import call_of
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import Principal
from safepoint.serving.run_manager import RunManager
from safepoint.serving.stored_events import usage_json
from safepoint.serving.submission import Answer, Submission
from safepoint.sessions.dispatch import IfBusy
from safepoint.storage.run_records import RunState

_WRITING: Final = 1.0  # seconds for the record, beyond the ladder
_YES = frozenset({"y", "yes", "ok", "allow", "true"})


@dataclass(frozen=True, slots=True)
class Place:
    """What all turns of one connection share."""

    manager: RunManager
    who: Principal
    rpc: RpcConnection
    if_busy: IfBusy


@dataclass(slots=True)
class AcpSession:
    """A session that the client has open. `turns`: those that are not answered yet, in the order in which they came.

    `facts`: what the client said of it, as its state keeps them. `rules`: what "always" was answered for, by tool.
    `asked`: questions that were told as text, of which the next prompt answers the first; `shown`: what the client has
    been shown of the run that asks. `settled`: opens once the pause of such a question is cleared. `servers`: the MCP
    servers that the client has brought.
    """

    key: SessionKey
    facts: Json
    turns: list[Turn] = field(default_factory=list["Turn"])
    rules: dict[str, bool] = field(default_factory=dict[str, bool])
    asked: Sequence[Question] = ()
    shown: UpdateEncoder = field(default_factory=lambda: UpdateEncoder(user_words=False))
    settled: Latch | None = None
    servers: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def id(self) -> str:
        return self.key.session


class Turn:
    """Made when the frame is read; `await run()` plays it. `over` opens right before its answer is sent."""

    def __init__(self, place: Place, session: AcpSession, parts: tuple[UserPart, ...]) -> None:
        self.over = Latch()
        self._place = place
        self._manager = place.manager
        self._session = session
        self._parts = parts
        self._encoder = UpdateEncoder(user_words=False)
        self._managed: ManagedRun | None = None
        self._stop: Reason | None = None
        self._receipt: Receipt | None = None
        self._is_stored = False  # the request to stop
        self._was_cleared = False
        self._is_late = False  # its end was not recorded in time
        self._woken = asyncio.Event()
        # What the turn waits for now is left at this time.
        self._limit: asyncio.Timeout | None = None
        session.turns.append(self)

    def stop(self, reason: Reason) -> None:
        """Ask the run NOW, or leave what the turn waits for; the first reason counts."""
        if self._stop is None:
            self._stop = reason
            self._ask()
            self._woken.set()
            self._shorten()

    async def run(self) -> schema.PromptResponse:
        """The answer. Raises `RpcError`. Cancellation: the client is gone, and the run is stopped NOW."""
        try:
            await self._wait_for_earlier_turns()
            managed = await self._play()
            if managed is None:
                return _answer("cancelled", {})
            await self._finish_calls(managed)
            return self._ending(managed)
        finally:
            self._session.turns.remove(self)
            self.over.set()

    # -- its runs ------------------------------------------------------------------------------------------------------

    async def _wait_for_earlier_turns(self) -> None:
        """Cancellation: only the waiting ends."""
        while self._stop is None and (first := self._session.turns[0]) is not self:
            self._woken.clear()
            first.over.when_set(self._woken.set)
            await self._woken.wait()
        if self._session.settled is not None:
            await self._session.settled.wait()

    async def _play(self) -> ManagedRun | None:
        """The last run; None if it was stopped before there was one. Cancellation: the run is stopped NOW."""
        submission = await self._first_submission() if self._stop is None else None
        managed: ManagedRun | None = None
        while submission is not None and self._stop is None:
            managed = self._managed = await self._submit(submission)
            if managed is None:
                return None
            self._ask()  # it may have been stopped meanwhile
            await self._follow(managed)
            answers = await self._answers(managed)
            submission = Submission(answers=answers, if_busy=self._place.if_busy) if answers else None
        if managed is not None and managed.paused and self._stop is not None:
            await self._clear_pause(managed)
        return managed

    async def _first_submission(self) -> Submission:
        """A new message; or the answer to the question that the client was told. Cancellation: nothing was sent."""
        asked, self._session.asked = self._session.asked, ()
        if asked:
            open_now = await self._open_questions()
            question = next((each for each in asked if each.id in open_now), None)
            if question is not None:
                self._encoder = self._session.shown
                answers = (Answer(question.id, _spoken(question, text_of(self._parts))),)
                return Submission(answers=answers, if_busy=self._place.if_busy)
        facts = self._session.facts
        if "title" in facts:
            return Submission(self._parts, if_busy=self._place.if_busy)
        facts["title"] = " ".join(text_of(self._parts).split())[:80]
        return Submission(self._parts, if_busy=self._place.if_busy, state_delta={"acp": dict(facts)})

    async def _open_questions(self) -> set[str]:
        """Cancellation: nothing has changed."""
        try:
            checkpoint = (await self._manager.view(self._session.key)).checkpoint
        except StoreError:
            return set()
        return {question.id for question in checkpoint.questions} if checkpoint is not None else set()

    async def _submit(self, submission: Submission) -> ManagedRun | None:
        """None if it was stopped before it was known to be accepted; then its run is asked too, if there is one.

        Bounded once it was stopped. Raises `RpcError`. Cancellation: it was accepted, or it was not.
        """
        try:
            async with asyncio.timeout(None) as self._limit:
                accepted = await self._manager.submit(self._place.who, self._session.key, submission)
        except (TimeoutError, SafepointError, ValueError) as error:
            if self._stop is not None:
                return None
            raise self._refusal(error) from error
        finally:
            self._limit = None
        assert isinstance(accepted, ManagedRun)  # a record answers a repeated idempotency key, and there is none
        return accepted

    def _refusal(self, error: Exception) -> RpcError:
        match error:
            case SessionNotFound():
                return no_session(self._session.id)
            case SessionBusy():
                return RpcError(INVALID_REQUEST, "a turn of this session is live: cancel it, or wait for its end")
            case ValueError():
                return RpcError(INVALID_PARAMS, f"Invalid params: {error}")
            case _:
                return RpcError(INTERNAL_ERROR, str(error))

    async def _follow(self, managed: ManagedRun) -> None:
        """Send what the run tells, until its end is recorded. Bounded once it was stopped.

        Cancellation: the last viewer leaves, so the run is stopped NOW.
        """
        news: deque[ToolCallStarted | ToolCallEnded] = deque()
        with managed.feed.view() as viewer:
            hub = managed.run.hub

            def overhear(event: Event) -> None:
                if isinstance(event, ToolCallStarted | ToolCallEnded) and event.run_id in hub.speakers:
                    news.append(event)
                    viewer.wake()

            hub.listen(overhear)
            try:
                async with asyncio.timeout(None) as self._limit:
                    self._shorten()
                    while True:
                        while (frame := viewer.take()) is not None:
                            await self._send(self._encoder.encode(frame.event))
                        while news:
                            await self._send(self._encode_call(managed, news.popleft()))
                        if viewer.over:
                            break
                        await self._store_stop(managed)
                        await viewer.wait()
                    await managed.over.wait()
            except TimeoutError:
                self._is_late = True
            finally:
                self._limit = None

    def _encode_call(self, managed: ManagedRun, event: ToolCallStarted | ToolCallEnded) -> list[Update]:
        turn_id = managed.feed.turn.run_id
        if isinstance(event, ToolCallStarted):
            return self._encoder.started(turn_id, event.call)
        return self._encoder.ended(turn_id, event.entry)

    async def _send(self, updates: Iterable[Update]) -> None:
        for update in updates:
            await self._place.rpc.notify(
                CLIENT_METHODS["session_update"],
                schema.SessionNotification(session_id=self._session.id, update=update),
            )

    # -- stopping ------------------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        if self._stop is None or self._receipt is not None:
            return
        # While a message is being accepted its run is known to the manager alone. The session has no other: earlier
        # turns are over.
        mine = [self._managed] if self._managed is not None else self._manager.live_of(self._session.key)
        if self._managed is None and self._session.turns[0] is not self:
            return  # it still waits for an earlier turn
        for managed in mine:
            self._receipt = ask(managed, StopRequest(), self._stop)

    def _shorten(self) -> None:
        """Of a run that stops, the ladder bounds the waiting; a person is waited for no longer."""
        if self._stop is None or self._limit is None:
            return
        bound = 0.0
        if self._managed is None or self._managed.live:
            ladder = self._manager.config.ladder or self._manager.agent_of(self._session.key).ladder
            bound = ladder.cap + _WRITING
        self._limit.reschedule(asyncio.get_running_loop().time() + bound)

    async def _store_stop(self, managed: ManagedRun) -> None:
        """A crash must still end in a stopped run. Bounded. Cancellation: stored or not."""
        if self._stop is None or self._is_stored or not managed.live:
            return
        self._is_stored = True
        ask_id = self._receipt.asked.id if self._receipt is not None else None
        await store_request(self._manager, managed.id, StopRequest(), self._stop, ask_id=ask_id, acknowledged=True)

    async def _clear_pause(self, managed: ManagedRun) -> None:
        """Cancellation: the pause is cleared or it is not."""
        assert self._stop is not None
        self._was_cleared = True
        await cleared_pause(self._manager, self._session.key, managed.id, self._stop)

    # -- questions -----------------------------------------------------------------------------------------------------

    async def _answers(self, managed: ManagedRun) -> tuple[Answer, ...]:
        """What a person says to the questions of a run that waits; empty if the turn ends here.

        Cancellation: the run goes on waiting.
        """
        if not managed.paused:
            return ()
        answers: list[Answer] = []
        in_words: list[Question] = []
        for question in managed.run.result.questions:
            choice = choice_of(question)
            chosen = await self._choose(managed, choice) if choice is not None and self._stop is None else None
            if chosen is not None:
                answers.append(chosen)
            else:
                in_words.append(question)
        if self._stop is not None:
            return ()
        if answers:
            return tuple(answers)  # what has no answer is asked again
        self._session.asked, self._session.shown = in_words, self._encoder
        await self._send(questions_as_text(in_words))
        return ()

    async def _choose(self, managed: ManagedRun, choice: Choice) -> Answer | None:
        """None if the client has no such dialog, or stops the turn. Cancellation: the request is taken back."""
        question, rules = choice.question, self._session.rules
        if choice.remembers and question.tool in rules:
            return Answer(question.id, rules[question.tool])
        outcome = await self._request_permission(managed, choice)
        if isinstance(outcome, schema.DeniedOutcome):
            self.stop(Reason("the client cancelled the permission request", by=self._session.key.user))
            return None
        if outcome is None or outcome.option_id not in choice.values:
            return None
        kept = kept_by(outcome.option_id)
        if choice.remembers and kept is not None:
            rules[question.tool] = kept
        return Answer(question.id, choice.values[outcome.option_id])

    async def _request_permission(
        self, managed: ManagedRun, choice: Choice
    ) -> schema.AllowedOutcome | schema.DeniedOutcome | None:
        """None if the client can't ask, or if the turn was stopped meanwhile. Cancellation: as above."""
        id = call_id(managed.feed.turn.run_id, call_of(choice.question.id))
        request = schema.RequestPermissionRequest(
            session_id=self._session.id,
            tool_call=schema.ToolCallUpdate(tool_call_id=id, title=choice.title, status="pending"),
            options=list(choice.options),
        )
        try:
            async with asyncio.timeout(None) as self._limit:
                self._shorten()
                answer: Any = await self._place.rpc.request(CLIENT_METHODS["session_request_permission"], request)
            # An answer that arrives together with the stop is dropped, like a later one.
            return schema.RequestPermissionResponse.model_validate(answer).outcome if self._stop is None else None
        except (TimeoutError, RpcError, ValidationError):
            return None
        finally:
            self._limit = None

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _finish_calls(self, managed: ManagedRun) -> None:
        """Show every call to its end, unless it waits for a person. Cancellation: some are not."""
        if self._was_cleared or not managed.paused:
            await self._send(await last_updates(self._manager, self._session.key, self._encoder))

    def _ending(self, managed: ManagedRun) -> schema.PromptResponse:
        """Raises `RpcError` for an end that has no word."""
        facts = self._facts(managed)
        if self._is_late or self._was_cleared:
            return _answer("cancelled", facts)
        refused = managed.refused or managed.failed
        if refused is not None and self._stop is None:
            raise RpcError(INTERNAL_ERROR, str(refused), {META: facts})
        reason = managed.reason
        ending = Ending.of(StopReason(managed.outcome or "cancelled"), reason.source if reason is not None else None)
        word = ACP[ending]
        if isinstance(word, str):
            return _answer(word, facts)
        if self._stop is not None:
            # The client asked, so it is never answered by an error: what else went wrong is in the facts.
            return _answer("cancelled", facts)
        raise RpcError(word, _why(managed), {META: facts})

    def _facts(self, managed: ManagedRun) -> Json:
        """The receipt, for clients that look for it."""
        facts: Json = {"runId": managed.id, "stopReason": managed.outcome}
        if self._was_cleared:
            facts["stopReason"] = str(StopReason.CANCELLED)
        if self._is_late:
            facts["recorded"] = False
        if (reason := managed.reason or (self._stop if self._was_cleared else None)) is not None:
            facts["reason"] = reason_json(reason)
        if managed.error is not None:
            facts["error"] = {"type": type(managed.error).__name__, "text": str(managed.error)}
        if self._receipt is not None and self._receipt.node.ending is not None:
            facts["outcome"] = str(self._receipt.outcome)
            facts["touched"] = [{"name": each.name, "state": each.state} for each in self._receipt.touched]
        if managed.run.ended:
            result = managed.run.result
            facts["orphans"] = [{"name": each.name, "path": each.path} for each in result.orphans]
            facts["usage"] = usage_json(result.usage)
        return facts


async def cleared_pause(manager: RunManager, key: SessionKey, run_id: str, reason: Reason) -> None:
    """Cancel a run that waits for a person, if it still does. Cancellation: the pause is cleared or it is not."""
    with suppress(StoreError):
        record = await manager.storage.runs.get(run_id)
        if record is not None and record.state is RunState.PAUSED:
            await clear_pause(manager, key, record, reason)


async def last_updates(manager: RunManager, key: SessionKey, encoder: UpdateEncoder) -> list[Update]:
    """What is missing of the calls that were shown, as the conversation has it. Bounded. Cancellation: no change."""
    if not encoder.has_open_calls:
        return []
    results: dict[str, ToolResult] = {}
    with suppress(StoreError, TimeoutError):
        async with asyncio.timeout(_WRITING):
            parts = [part for message in (await manager.view(key)).messages for part in message.parts]
            results = {part.call_id: part for part in parts if isinstance(part, ToolResult)}
    return encoder.finish(results)


def questions_as_text(questions: Sequence[Question]) -> list[Update]:
    return [chunk(f"{words_of(question)}\n", f"question {question.id}") for question in questions]


def no_session(id: str) -> RpcError:
    """Also for a session of another user."""
    return RpcError(INVALID_PARAMS, f"Invalid params: there is no session {id[:140]!r}")


def _answer(stop_reason: Any, facts: Json) -> schema.PromptResponse:  # Any: a literal of the protocol
    return schema.PromptResponse(stop_reason=stop_reason, field_meta={META: facts} if facts else None)


def _spoken(question: Question, text: str) -> object:
    """An approval is given by a yes; any other words are the reason why not."""
    return True if question.kind == "check" and text.strip().lower() in _YES else text


def _why(managed: ManagedRun) -> str:
    if managed.error is not None:
        return str(managed.error) or type(managed.error).__name__
    reason = managed.reason
    if reason is None:
        return "the run failed"
    return f"the run was stopped ({reason.source}): {reason.text}" if reason.text else f"stopped by {reason.source}"
