"""After a stop: go on with a run, take its turn back, or take back the wish to stop it. Safepoint's own routes."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, HTTPException

from safepoint.errors import SessionBusy, SessionNotFound
from safepoint.server import described
from safepoint.server.cancel_service import cancel_all, withdraw
from safepoint.server.dependencies import Manager, Who
from safepoint.server.managed_run import ManagedRun
from safepoint.server.openapi import answers, by_name, errors
from safepoint.server.requests import Answer, CancelRequest, Content, ResumeRequest, RewindRequest, RunRequest, SaidPart
from safepoint.server.run_lookup import RunLookup
from safepoint.server.run_manager import RunManager
from safepoint.server.serializers import record_json, rewound_json, run_json, without_nulls
from safepoint.server.wire_events import EventContext, Json
from safepoint.serving.ids import SessionKey
from safepoint.serving.principal import Principal
from safepoint.sessions.dispatch import SessionDispatcher
from safepoint.storage.session_data import StoredRun

routes = APIRouter(generate_unique_id_function=by_name)


@routes.post("/runs/{run}:resume", response_model=None, responses=answers(described.Run) | errors(409))
async def resume(manager: Manager, who: Who, run: str, body: ResumeRequest | None = None) -> Json:
    """Answers once the run is accepted; nobody has to stay: watch it by the run id in the answer."""
    key, _, last = await _last_turn(manager, who, run)
    given = body or ResumeRequest()
    request = RunRequest(
        app_name=key.app,
        user_id=key.user,
        session_id=key.session,
        new_message=_message(given),
        invocation_id=EventContext(last.origin, "").invocation,
        custom_metadata=given.custom_metadata,
        on_disconnect="detach",
    )
    submitted = await manager.submit(who, key, request)
    shown = run_json(submitted) if isinstance(submitted, ManagedRun) else record_json(submitted)
    return without_nulls({**shown, "continues": run})


def _message(given: ResumeRequest) -> Content | None:
    if given.answers is None:
        return given.new_message
    if given.new_message is not None:
        raise HTTPException(400, "write answers or a newMessage, not both")
    parts = [
        SaidPart(function_response=Answer(id=id, response={"result": value})) for id, value in given.answers.items()
    ]
    return Content(parts=parts)


@routes.post("/runs/{run}:rewind", response_model=None, responses=answers(described.Rewound) | errors(409))
async def rewind(manager: Manager, who: Who, run: str, body: RewindRequest | None = None) -> Json:
    """Take the turn back. What tools did stays done, and is listed. A live run is stopped NOW first."""
    key, dispatcher, _ = await _last_turn(manager, who, run)
    managed = RunLookup(manager).live(who, run)
    if managed is not None:
        reason = who.reason((body or RewindRequest()).reason or "its turn is taken back", user=key.user)
        await cancel_all(manager, [managed], CancelRequest(wait_seconds=0), reason)
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
    if not isinstance(found, ManagedRun):
        raise HTTPException(404, f"Ask not found: {ask[:140]}")
    if await withdraw(manager, found, ask):
        return {"runId": run, "askId": ask, "outcome": "withdrawn"}
    why = "the run is over" if found.over.is_set else "the run has acted on it already"
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
