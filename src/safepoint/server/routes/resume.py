"""After a stop: go on with a run, take its turn back, or withdraw the ask to stop it. Safepoint's own routes."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, HTTPException

from safepoint.errors import SessionBusy, SessionNotFound
from safepoint.protocols.adk.events import Json
from safepoint.protocols.adk.requests import refused
from safepoint.protocols.http import Manager, Who
from safepoint.server import described
from safepoint.server.audit import AuditedRoute
from safepoint.server.openapi import answers, by_name, errors
from safepoint.server.requests import ResumeRequest, RewindRequest
from safepoint.server.serializers import record_json, rewound_json, run_json, without_nulls
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.cancel_service import cancel_all, withdraw
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.owner_requests import withdraw_elsewhere
from safepoint.serving.principal import Principal
from safepoint.serving.run_lookup import RunLookup
from safepoint.serving.run_manager import RunManager
from safepoint.serving.submission import Answer, NothingToAnswer, Submission
from safepoint.sessions.dispatch import SessionDispatcher
from safepoint.storage.session_data import StoredRun

routes = APIRouter(generate_unique_id_function=by_name, route_class=AuditedRoute)


@routes.post("/runs/{run}:resume", response_model=None, responses=answers(described.Run) | errors(409))
async def resume(manager: Manager, who: Who, run: str, body: ResumeRequest | None = None) -> Json:
    """Answers once the run is accepted. The client need not stay: it can watch the run by the id in the answer."""
    key, _, last = await _last_turn(manager, who, run)
    given = body or ResumeRequest()
    if given.answers is not None and given.new_message is not None:
        raise HTTPException(400, "write answers or a newMessage, not both")
    message = given.new_message
    answers = [Answer(id, value) for id, value in (given.answers or {}).items()]
    if message is not None:
        answers = [Answer(each.id, each.value) for each in message.answers]
        if not (answers or message.prompt()):
            raise HTTPException(400, "newMessage: write at least one part with text, inlineData or functionResponse")
    submission = Submission(
        tuple(message.prompt()) if message is not None else None,
        tuple(answers),
        last.origin,
        metadata=given.metadata,
        on_disconnect="detach",
        on_unknown=given.on_unknown,
    )
    try:
        submitted = await manager.submit(who, key, submission)
    except NothingToAnswer as error:
        raise refused(error, None) from error
    shown = run_json(submitted) if isinstance(submitted, ManagedRun) else record_json(submitted)
    return without_nulls({**shown, "continues": run})


@routes.post("/runs/{run}:rewind", response_model=None, responses=answers(described.Rewound) | errors(409))
async def rewind(manager: Manager, who: Who, run: str, body: RewindRequest | None = None) -> Json:
    """Take the turn back. What tools did stays done, and is listed. A live run is stopped NOW first."""
    key, dispatcher, _ = await _last_turn(manager, who, run)
    managed = RunLookup(manager).live(who, run)
    if managed is not None:
        reason = who.reason((body or RewindRequest()).reason or "its turn is taken back", user=key.user)
        await cancel_all(manager, [managed], StopRequest(wait_seconds=0), reason)
        await managed.over.wait()
    elif dispatcher.busy:
        raise SessionBusy("another run of this session is live: stop that first")
    rewound = await dispatcher.between(partial(dispatcher.session.rewind, turn=run))
    if not rewound.messages:
        raise _not_the_last(run)
    return rewound_json(run, rewound)


@routes.post("/runs/{run}/asks/{ask}:withdraw", response_model=None, responses=answers(described.Withdrawn))
async def withdraw_ask(manager: Manager, who: Who, run: str, ask: str) -> Json:
    found = await RunLookup(manager).run(who, run)
    if isinstance(found, ManagedRun):
        is_withdrawn = await withdraw(manager, found, ask)
    else:
        is_withdrawn = await withdraw_elsewhere(manager, found, ask)
    if is_withdrawn:
        return {"runId": run, "askId": ask, "outcome": "withdrawn"}
    is_over = found.over.is_set if isinstance(found, ManagedRun) else found.ended
    why = "the run is over" if is_over else "the run has acted on it already"
    return {"runId": run, "askId": ask, "outcome": "too_late", "reason": why}


async def _last_turn(manager: RunManager, who: Principal, run: str) -> tuple[SessionKey, SessionDispatcher, StoredRun]:
    """The session of that run, and its turn, which has to be the last one. Cancellation: nothing has changed."""
    key, _ = await RunLookup(manager).record(who, run)
    try:
        dispatcher = await manager.up_to_date(key)
    except SessionNotFound:
        raise HTTPException(404, f"Run not found: {run}") from None
    last = dispatcher.session.runs[-1] if dispatcher.session.runs else None
    if last is None or run not in (last.run_id, last.origin):
        raise _not_the_last(run)
    return key, dispatcher, last


def _not_the_last(run: str) -> HTTPException:
    return HTTPException(409, f"the run {run} is not the last of its session, or was taken back: it stays as it is")
