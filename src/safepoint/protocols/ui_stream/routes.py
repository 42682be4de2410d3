"""`POST /ui/{app}/chat` sends a message, `GET …/{id}/stream` watches the live run, `POST …/{id}/stop` stops it.

A chat is a session of the caller's; it is made with its first message. `stop()` of the client only closes its request.
That stops the run. With `?resume=1` it does not: the page may be reloading, and comes back to the stream; then the
stop route stops the run.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from safepoint.errors import SessionNotFound
from safepoint.protocols.client_conversation import HistoryConflict, key_of, known_parts, new_parts, stop, submit
from safepoint.protocols.event_stream import EventStream
from safepoint.protocols.http import Manager, Who
from safepoint.protocols.ui_stream.chunks import HEADERS, MessageStream
from safepoint.protocols.ui_stream.requests import ChatRequest, StopChat, answer_of
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.feed import Feed
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.run_lookup import RunLookup
from safepoint.serving.run_manager import RunManager
from safepoint.serving.submission import Answer, AnswerMissing, NothingToAnswer, OnDisconnect, Submission
from safepoint.sessions.dispatch import IfBusy
from safepoint.storage.run_records import RunState

PATH = "/ui/{app}/chat"
_UNDER_WAY = (RunState.QUEUED, RunState.LIVE)

Busy: TypeAlias = Annotated[IfBusy, Query(alias="ifBusy")]

routes = APIRouter()


@routes.post(PATH, response_model=None, include_in_schema=False)
async def chat(
    manager: Manager, who: Who, app: str, body: ChatRequest, if_busy: Busy = "queue", resume: Literal["0", "1"] = "0"
) -> Response:
    """Cancellation: it was accepted, or it was not."""
    manager.agent(app)
    key = key_of(who, app, body.id)
    policy: OnDisconnect = "detach" if resume == "1" else "cancel"
    try:
        submission = await _submission(manager, key, body, policy, if_busy)
    except HistoryConflict as error:
        return JSONResponse({"detail": str(error)}, 409)
    accepted = await submit(manager, who, key, submission)
    assert isinstance(accepted, ManagedRun)  # a record answers a repeated idempotency key, and there is none
    return _stream(manager, accepted.id, accepted.feed)


@routes.get(PATH + "/{chat}/stream", response_model=None, include_in_schema=False)
async def resume(manager: Manager, who: Who, app: str, chat: str) -> Response:
    """All of the live run's message so far, and then what comes; 204 if no run is live. Cancellation: no change."""
    manager.agent(app)
    key = key_of(who, app, chat)
    live = manager.live_of(key)
    if live:
        return _stream(manager, live[0].id, live[0].feed)
    there = [each for each in await manager.storage.runs.still_open(key.stored_as) if each.state in _UNDER_WAY]
    if not there:
        return Response(status_code=204)
    return _stream(manager, there[0].run_id, await RunLookup(manager).replay(there[0]))


@routes.post(PATH + "/{chat}/stop", response_model=None, include_in_schema=False)
async def stop_chat(manager: Manager, who: Who, app: str, chat: str, body: StopChat | None = None) -> Response:
    """Cancellation: the ask stands."""
    manager.agent(app)
    key, given = key_of(who, app, chat), body or StopChat()
    run_id = None
    if given.message_id is not None:
        run_id = await _run_of(manager, key, given.message_id) or given.message_id
    request = StopRequest(wait_seconds=given.wait_seconds)
    return JSONResponse(await stop(manager, who, key, request, text=given.reason, run_id=run_id))


def _stream(manager: RunManager, run_id: str, feed: Feed) -> Response:
    wire = MessageStream(manager, run_id, feed.turn.run_id)
    return EventStream(feed, wire, manager.config, run_id=run_id, headers=HEADERS)


async def _run_of(manager: RunManager, key: SessionKey, message_id: str) -> str | None:
    """The latest run of that message: one that went on after a question has an id of its own.

    Cancellation: nothing has changed.
    """
    live = [each.id for each in manager.live_of(key) if each.feed.turn.run_id == message_id]
    if live:
        return live[-1]
    try:
        stored = [each.run_id for each in (await manager.view(key)).runs if each.origin == message_id]
    except SessionNotFound:
        return None
    return stored[-1] if stored else None


async def _submission(
    manager: RunManager, key: SessionKey, body: ChatRequest, policy: OnDisconnect, if_busy: IfBusy
) -> Submission:
    """Raises `HistoryConflict`, `NothingToAnswer`. Cancellation: nothing has changed."""
    known = [] if body.message is not None else await known_parts(manager, key)
    said = body.said()
    parts = new_parts(known, said)
    if parts:
        return Submission(parts, on_disconnect=policy, if_busy=if_busy)
    if body.approvals():
        return Submission(answers=await _answers(manager, key, body), on_disconnect=policy, if_busy=if_busy)
    raise HistoryConflict("messages: nothing new stands at the end: add a message of the user, or an answer")


async def _answers(manager: RunManager, key: SessionKey, body: ChatRequest) -> tuple[Answer, ...]:
    """One for each open question. Raises `NothingToAnswer`. Cancellation: nothing has changed."""
    try:
        checkpoint = (await manager.up_to_date(key)).session.checkpoint
    except SessionNotFound:
        checkpoint = None
    asked = {each.id: each for each in checkpoint.questions} if checkpoint is not None else {}
    given = {each.id: each for each in body.approvals() if each.id in asked}
    if not given:
        raise NothingToAnswer("no question of this chat waits for an answer")
    if missing := [id for id in asked if id not in given]:
        raise AnswerMissing(f"the question {missing[0]!r} is open too: answer all of them at once", missing)
    return tuple(Answer(id, answer_of(each, asked[id].kind)) for id, each in given.items())
