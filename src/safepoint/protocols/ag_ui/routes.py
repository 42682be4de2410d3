"""`POST /ag-ui/{app}` runs an agent for a front end; `POST /ag-ui/{app}/stop` stops it.

A thread is a session of the caller's; it is made with its first message. The client names the run: a repeat of a run id
is the same run, told again. AG-UI has no message that cancels. A client closes its request, which stops the run unless
`?onDisconnect=detach` says otherwise; the stop route stops it from anywhere.
"""

from __future__ import annotations

import time
from typing import Annotated, Any, TypeAlias, cast

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from safepoint.errors import SafepointError, SessionNotFound
from safepoint.protocols.ag_ui.events import RunStream, failed_at_once
from safepoint.protocols.ag_ui.front_end_tools import lend_tools, return_tools, tool_answers
from safepoint.protocols.ag_ui.requests import RunAgentInput, StopRun
from safepoint.protocols.client_conversation import HistoryConflict, key_of, known_parts, new_parts, stop, submit
from safepoint.protocols.event_stream import STREAM_HEADERS, EventStream
from safepoint.protocols.http import Manager, Who
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import Principal
from safepoint.serving.run_lookup import RunLookup
from safepoint.serving.run_manager import RunManager
from safepoint.serving.shared_state import session_part
from safepoint.serving.submission import Answer, Idempotency, NothingToAnswer, OnDisconnect, Submission
from safepoint.sessions.dispatch import IfBusy
from safepoint.storage.run_records import RunRecord

PATH = "/ag-ui/{app}"
_DAY = 86_400.0
_DECLINED = "the person did not answer"

Json: TypeAlias = dict[str, Any]  # Any: JSON values
Busy: TypeAlias = Annotated[IfBusy, Query(alias="ifBusy")]

routes = APIRouter()


class BadResume(SafepointError):
    """The answers do not fit the open questions: the pause stands."""


@routes.post(PATH + "/stop", response_model=None, include_in_schema=False)
async def stop_thread(manager: Manager, who: Who, app: str, body: StopRun) -> Response:
    """Cancellation: the ask stands."""
    manager.agent(app)
    key = key_of(who, app, body.thread_id)
    run_id = None
    if body.run_id is not None:
        known = await _known(manager, key, body.run_id)
        run_id = body.run_id if known is None else known.run_id
    request = StopRequest(wait_seconds=body.wait_seconds)
    return JSONResponse(await stop(manager, who, key, request, text=body.reason, run_id=run_id))


@routes.post(PATH, response_model=None, include_in_schema=False)
async def run(
    manager: Manager,
    who: Who,
    app: str,
    body: RunAgentInput,
    on_disconnect: Annotated[str, Query(alias="onDisconnect", pattern="^(cancel|detach)$")] = "cancel",
    if_busy: Busy = "queue",
) -> Response:
    """Cancellation: it was accepted, or it was not."""
    manager.agent(app)
    key = key_of(who, app, body.thread_id)
    policy: OnDisconnect = "detach" if on_disconnect == "detach" else "cancel"
    try:
        found = await _accepted(manager, who, key, body, policy, if_busy)
    except HistoryConflict as error:
        return _failed(body, str(error), "history_conflict")
    except (BadResume, NothingToAnswer) as error:
        return _failed(body, str(error), "bad_resume")
    if isinstance(found, RunRecord):
        feed, run_id = await RunLookup(manager).replay(found), found.run_id
    else:
        feed, run_id = found.feed, found.id
    state = await _state(manager, key)
    wire = RunStream(manager, run_id, body.thread_id, body.run_id, body.knows_cancelled, state, _names(body))
    return EventStream(feed, wire, manager.config, run_id=run_id)


async def _accepted(
    manager: RunManager, who: Principal, key: SessionKey, body: RunAgentInput, policy: OnDisconnect, if_busy: IfBusy
) -> ManagedRun | RunRecord:
    """The run of that id, which may be there already. Cancellation: it was accepted, or it was not."""
    known = await _known(manager, key, body.run_id)
    if known is None:
        try:
            submission = await _submission(manager, key, body, policy, if_busy)
            lend_tools(manager, key, body)
            accepted = await submit(manager, who, key, submission)
            if body.tools and isinstance(accepted, ManagedRun):
                return_tools(manager, accepted)
            return accepted
        except (HistoryConflict, BadResume, NothingToAnswer):
            # The same request may have come twice at once: then its words are stored by now.
            known = await _known(manager, key, body.run_id)
            if known is None:
                raise
    return manager.runs.get(known.run_id) or known


async def _known(manager: RunManager, key: SessionKey, client_run_id: str) -> RunRecord | None:
    """Cancellation: nothing has changed."""
    return await manager.storage.runs.by_key(key.stored_as, client_run_id, since=time.time() - _DAY)


async def _submission(
    manager: RunManager, key: SessionKey, body: RunAgentInput, policy: OnDisconnect, if_busy: IfBusy
) -> Submission:
    """Raises `HistoryConflict`, `BadResume`. Cancellation: nothing has changed."""
    parts = new_parts(await known_parts(manager, key), body.said())
    once = Idempotency(body.run_id, body.digest())
    answers = await _answers(manager, key, body)
    if answers and parts and body.resume:
        raise BadResume("send the answers first, and the new message after them: not both at once")
    if answers and not parts:
        return Submission(answers=answers, on_disconnect=policy, if_busy=if_busy, idempotency=once)
    if not parts:
        raise HistoryConflict("messages: nothing new stands at the end: add a message of the user")
    delta = await _state_delta(manager, key, body)
    return Submission(parts, on_disconnect=policy, if_busy=if_busy, idempotency=once, state_delta=delta or None)


async def _answers(manager: RunManager, key: SessionKey, body: RunAgentInput) -> tuple[Answer, ...]:
    """One for each open question, or none at all. Raises `BadResume`. Cancellation: nothing has changed."""
    try:
        session = (await manager.up_to_date(key)).session
    except SessionNotFound:
        session = None
    checkpoint = session.checkpoint if session is not None else None
    asked = {each.id: each for each in checkpoint.questions} if checkpoint is not None else {}
    found: dict[str, Answer] = {}
    if session is not None and asked:
        theirs = [each for each in asked.values() if each.tool in _names(body)]
        found = {each.id: each for each in tool_answers(body, session.runs[-1].origin, theirs)}
    for entry in body.resume or ():
        if entry.interrupt_id not in asked:
            raise BadResume(f"resume: no question {entry.interrupt_id[:140]!r} is open")
        value = entry.payload if entry.status == "resolved" else _denial(asked[entry.interrupt_id].kind)
        found[entry.interrupt_id] = Answer(entry.interrupt_id, value)
    missing = [id for id in asked if id not in found]
    if found and missing:
        raise BadResume(f"the question {missing[0]!r} is open too: answer all of them at once")
    return tuple(found.values())


def _names(body: RunAgentInput) -> frozenset[str]:
    """Of the front end's own tools."""
    return frozenset(each.name for each in body.tools or ())


def _denial(kind: str) -> bool | str:
    return False if kind == "check" else _DECLINED


async def _state(manager: RunManager, key: SessionKey) -> Json:
    """Cancellation: nothing has changed."""
    try:
        return session_part((await manager.view(key)).state)
    except SessionNotFound:
        return {}


async def _state_delta(manager: RunManager, key: SessionKey, body: RunAgentInput) -> Json:
    """What the client has changed in the state, and what it lends to this run alone. Cancellation: no change."""
    now = await _state(manager, key)
    changed: Json = {}
    given: object = body.state
    if isinstance(given, dict):
        changed = {name: value for name, value in session_part(cast(Json, given)).items() if now.get(name) != value}
    lent: Json = {}
    if body.context:
        lent["context"] = [each.model_dump() for each in body.context]
    if body.forwarded_props:
        lent["forwardedProps"] = body.forwarded_props
    return {**changed, "temp:ag_ui": lent} if lent else changed


def _failed(body: RunAgentInput, message: str, code: str) -> Response:
    """After RUN_STARTED only RUN_ERROR."""
    text = failed_at_once(body.thread_id, body.run_id, message, code)
    return Response(text, media_type="text/event-stream", headers=dict(STREAM_HEADERS))
