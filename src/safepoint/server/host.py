"""All runs of one server: who is live, who waits, and how any of them is found and asked.

A live run is asked first and the wish is stored then, before anybody is answered: a crash after the answer still ends
in a cancelled run. Entries are kept by run id, so one run's end can never take another's entry away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint._core.receipts import Receipt
from safepoint.agent.base import BaseAgent
from safepoint.agent.resume import Resume
from safepoint.errors import SafepointError, StoreError
from safepoint.history.parts import Prompt
from safepoint.server.apps import Catalog
from safepoint.server.config import ServerConfig
from safepoint.server.hosted import AnyRun, HostedRun, ask_json, call_of, reason_json
from safepoint.server.ids import SessionKey
from safepoint.server.requests import CancelRequest, OnDisconnect, RunRequest, digest_of
from safepoint.sessions.busy import IfBusy, Sender
from safepoint.sessions.owners import Owner
from safepoint.sessions.records import RunBook, RunRecord, RunState
from safepoint.sessions.session import Session
from safepoint.sessions.store import Store

_log = logging.getLogger("safepoint")

_DAY = 86_400.0
_INTENT_PATIENCE = 1.0
_CACHED_SESSIONS = 1000
_KEPT_RUNS = 1000


class Draining(SafepointError):
    """The server is shutting down and takes no new runs."""


class TooMany(SafepointError):
    """This user has as many runs as are allowed at once."""


class NoSuchApp(SafepointError):
    """No app has that name, or it could not be loaded."""


class NothingToAnswer(SafepointError):
    """An answer came for a question that nobody asked."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What came of one cancel of one run. `receipt` is None for a run that had not started, or was over."""

    run_id: str
    requested: bool
    outcome: str | None
    durable: bool
    receipt: Receipt | None = None


class Host:
    """The server's runs and sessions, without a word of HTTP."""

    def __init__(self, catalog: Catalog, store: Store, book: RunBook, config: ServerConfig) -> None:
        self.catalog = catalog
        self.store = store
        self.book = book
        self.config = config
        self.draining = False
        self.owner = str(Owner.this_process())
        self.runs: OrderedDict[str, HostedRun] = OrderedDict()
        self._senders: OrderedDict[SessionKey, Sender] = OrderedDict()

    # -- sessions ------------------------------------------------------------------------------------------------------

    def agent(self, app: str) -> BaseAgent[Any, Any]:  # Any: agents of every kind
        """Raises `NoSuchApp`."""
        found = self.catalog.get(app)
        if found is None:
            raise NoSuchApp(f"App not found: {app}")
        if found.agent is None:
            raise NoSuchApp(f"App {app} can't be served: {found.error}")
        return found.agent

    async def create(self, key: SessionKey, state: Mapping[str, Any] | None) -> Session:  # Any: JSON values
        """Raises `SessionExists`. Cancellation: it is made or it is not."""
        session = await Session.create(self.store, key.stored_as, state=state)
        await self.book.touch(key.stored_as, time.time())
        self._keep(key, Sender(session))
        return session

    async def sender(self, key: SessionKey) -> Sender:
        """The one sender of that session. Raises `SessionNotFound`. Cancellation: nothing has changed."""
        known = self._senders.get(key)
        if known is not None:
            self._senders.move_to_end(key)
            return known
        session = await Session.load(self.store, key.stored_as)
        return self._senders.get(key) or self._keep(key, Sender(session))

    def _keep(self, key: SessionKey, sender: Sender) -> Sender:
        self._senders[key] = sender
        busy = {run.key for run in self.live()}
        for old in [each for each in self._senders if each not in busy and each != key]:
            if len(self._senders) <= _CACHED_SESSIONS:
                break
            del self._senders[old]
        return sender

    async def delete(self, key: SessionKey) -> None:
        """A live run of it is stopped first. Cancellation: the session may still be there."""
        for hosted in self.live_of(key):
            hosted.ask(SafePoint.NOW, Reason("its session is deleted"))
        for hosted in self.live_of(key):
            await hosted.over.wait()
        self._senders.pop(key, None)
        await self.store.delete(key.stored_as)
        await self.book.forget(key.stored_as)

    async def patch(self, key: SessionKey, delta: Mapping[str, Any]) -> Session:  # Any: JSON values
        """Change the state, also under a live run, which goes on. Cancellation: changed or not."""
        session = (await self.sender(key)).session
        _merge(session.state, delta)
        if session.live is None:
            await session.save_state()
        await self.book.touch(key.stored_as, time.time())
        return session

    # -- running -------------------------------------------------------------------------------------------------------

    async def submit(self, key: SessionKey, request: RunRequest) -> HostedRun | RunRecord:
        """Accept a message; a repeated idempotency key gives the run that it belongs to.

        Cancellation: it was accepted, or it was not.
        """
        agent, sender = self.agent(key.app), await self.sender(key)
        self._admit(key)
        run, prompt = self._start(agent, sender.session, request)
        hosted = HostedRun(key, run, prompt, request.custom_metadata)
        hosted.on_disconnect = request.on_disconnect
        record = RunRecord(
            run.id,
            key.stored_as,
            RunState.QUEUED,
            time.time(),
            self.owner,
            request.model_dump(mode="json"),
            request.idempotency_key,
            digest_of(request) if request.idempotency_key is not None else None,
        )
        known = await self.book.accept(record, since=time.time() - _DAY)
        if known.run_id != run.id:
            run.discard()
            return self.runs.get(known.run_id) or known
        if request.state_delta:
            _merge(sender.session.state, request.state_delta)
        self._serve(hosted, sender, request.if_busy)
        return hosted

    def _admit(self, key: SessionKey) -> None:
        if self.draining:
            raise Draining("the server is shutting down")
        mine = [run for run in self.live() if run.key.user == key.user]
        limits = self.config.limits
        if sum(run.state is RunState.LIVE for run in mine) >= limits.live_runs + limits.queued_runs:
            raise TooMany(f"{key.user} has {len(mine)} runs; no more than {limits.live_runs} may be live at once")

    def _start(self, agent: BaseAgent[Any, Any], session: Session, request: RunRequest) -> tuple[AnyRun, Prompt]:
        message = request.new_message
        answers = message.answers if message is not None else []
        if answers:
            return agent.start(checkpoint=_answered(session, answers), session=session), ""
        if message is None and session.checkpoint is not None:
            return agent.start(checkpoint=session.checkpoint, session=session), ""
        prompt = message.prompt() if message is not None else []
        if not prompt:
            raise ValueError("newMessage: write at least one part with text, inlineData or functionResponse")
        return agent.start(prompt, session=session), prompt

    def _serve(self, hosted: HostedRun, sender: Sender, if_busy: IfBusy) -> None:
        self.runs[hosted.id] = hosted
        body = self._lead(hosted, sender, if_busy)
        hosted.task = asyncio.create_task(body, name=f"safepoint: {hosted.key.stored_as}")

    async def _lead(self, hosted: HostedRun, sender: Sender, if_busy: IfBusy) -> None:
        limit = asyncio.get_running_loop().call_later(
            self.config.limits.run_seconds,
            hosted.ask,
            SafePoint.NOW,
            Reason("it ran as long as a run may", Source.POLICY),
        )
        try:
            await hosted.serve(sender, if_busy, self.book)
        except StoreError:
            _log.exception("the end of the run %s could not be recorded", hosted.id)
        finally:
            limit.cancel()
            self._forget_old()

    def _forget_old(self) -> None:
        """Runs that are over stay for a while, for viewers that come back; then the store has what they left."""
        over = [id for id, run in self.runs.items() if run.over.is_set]
        for id in over[: max(0, len(over) - _KEPT_RUNS)]:
            del self.runs[id]

    # -- finding -------------------------------------------------------------------------------------------------------

    def live(self) -> list[HostedRun]:
        return [run for run in self.runs.values() if not run.over.is_set]

    def live_of(self, key: SessionKey) -> list[HostedRun]:
        return [run for run in self.live() if run.key == key]

    # -- asking --------------------------------------------------------------------------------------------------------

    async def cancel(self, hosted: HostedRun, request: CancelRequest, reason: Reason) -> Cancelled:
        """Ask, store the wish, and wait as long as the request says.

        Cancellation: the ask stands; only the waiting ends.
        """
        if hosted.over.is_set:
            return Cancelled(hosted.id, False, hosted.outcome, durable=self.book.durable)
        receipt = self._ask(hosted, request, reason)
        wish = ask_json(receipt.asked) if receipt is not None else {"reason": reason_json(reason)}
        durable = await self._store_intent(hosted.id, wish)
        if request.wait_seconds > 0:
            try:
                async with asyncio.timeout(request.wait_seconds):
                    await (hosted.over.wait() if request.node is None or receipt is None else receipt.wait())
            except TimeoutError:
                return Cancelled(hosted.id, True, None, durable, receipt)
        ended = receipt is None or not receipt.accepted or receipt.node.ended.is_set
        outcome = (str(receipt.outcome) if receipt is not None else "stopped") if ended else None
        return Cancelled(hosted.id, True, outcome, durable, receipt)

    def _ask(self, hosted: HostedRun, request: CancelRequest, reason: Reason) -> Receipt | None:
        if hosted.state is RunState.QUEUED:
            hosted.withdraw(reason)
            return None
        node = hosted.run.node
        if request.node is not None:
            found = [each for each in node.walk() if each.path == request.node]
            if not found:
                raise LookupError(f"no live node has the path {request.node!r}")
            node = found[0]
        return node.cancel(request.point(), within=request.within_seconds, recursive=request.recursive, reason=reason)

    async def _store_intent(self, run_id: str, wish: Mapping[str, Any]) -> bool:  # Any: JSON values
        try:
            async with asyncio.timeout(_INTENT_PATIENCE):
                await self.book.intend(run_id, wish)
        except (StoreError, TimeoutError):
            return False
        return self.book.durable

    async def clear_pause(self, key: SessionKey, reason: Reason) -> HostedRun | None:
        """Cancel a run that waits for a person: its questions are closed truthfully and it can't be resumed.

        Cancellation: the pause is cleared or it is not.
        """
        sender = await self.sender(key)
        checkpoint = sender.session.checkpoint
        if checkpoint is None or not checkpoint.questions or sender.session.live is not None:
            return None
        run = self.agent(key.app).start(checkpoint=Resume(checkpoint), session=sender.session)
        run.cancel(SafePoint.NOW, reason=reason)
        hosted = HostedRun(key, run, "")
        record = RunRecord(run.id, key.stored_as, RunState.QUEUED, time.time(), self.owner)
        await self.book.accept(record, since=time.time())
        self._serve(hosted, sender, "reject")
        await hosted.over.wait()
        return hosted

    # -- the end -------------------------------------------------------------------------------------------------------

    async def shut_down(self) -> None:
        """Stop taking runs, ask those that are live to stop at a safe point, then NOW; return when all are recorded.

        Cancellation: the asks stand.
        """
        self.draining = True
        reason = Reason("the server is shutting down", Source.SHUTDOWN)
        for hosted in self.live():
            if hosted.state is RunState.QUEUED:
                hosted.withdraw(reason)
            else:
                hosted.run.cancel(SafePoint.ANY, within=self.config.shutdown_seconds, recursive=True, reason=reason)
        for hosted in self.live():
            await hosted.over.wait()

    def force(self) -> None:
        """Somebody can't wait."""
        for hosted in self.live():
            hosted.ask(SafePoint.FORCE, Reason("the server was told to end at once", Source.SHUTDOWN))

    def left(self, hosted: HostedRun) -> None:
        """A viewer has gone. If it was the last, the run's policy decides."""
        if hosted.over.is_set or hosted.feed.watched:
            return
        policy: OnDisconnect = hosted.on_disconnect
        reason = Reason("its client went away", Source.DISCONNECT)
        if policy == "cancel":
            hosted.ask(SafePoint.NOW, reason)
        elif policy != "detach":
            asyncio.get_running_loop().call_later(policy.cancel_after, self._if_alone, hosted, reason)

    def _if_alone(self, hosted: HostedRun, reason: Reason) -> None:
        if not hosted.feed.watched:
            hosted.ask(SafePoint.NOW, reason)


def _merge(state: dict[str, Any], delta: Mapping[str, Any]) -> None:  # Any: JSON values
    """ADK's rule: what is null goes, and `temp:` is never kept."""
    for name, value in delta.items():
        if value is None:
            state.pop(name, None)
        elif not name.startswith("temp:"):
            state[name] = value


def _answered(session: Session, answers: list[Any]) -> Resume:  # Any: Answer
    checkpoint = session.checkpoint
    questions = {question.id: question for question in checkpoint.questions} if checkpoint is not None else {}
    values: dict[str, Any] = {}  # Any: JSON values
    for answer in answers:
        of_call = [id for id in questions if answer.id in (id, call_of(id))]
        if not of_call or checkpoint is None:
            raise NothingToAnswer(f"no call {answer.id!r} of this session waits for an answer")
        values |= dict.fromkeys(of_call, answer.value)
    assert checkpoint is not None
    return Resume(checkpoint, answers=values)
