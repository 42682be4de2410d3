"""Accept a run for any worker, from a program of one's own: no agent is needed here, and nothing is run."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from safepoint.errors import SessionExists
from safepoint.history.parts import Prompt, UserPart, user_message
from safepoint.serving.ids import SessionKey
from safepoint.serving.submission import Idempotency, Submission
from safepoint.storage.operations import AcceptRun, TouchSession
from safepoint.storage.placement import placement_of
from safepoint.storage.protocol import Storage
from safepoint.storage.run_records import FREE, AlreadyAccepted, RunRecord, RunState

_DAY = 86_400.0


async def place(storage: Storage, app: str, prompt: Prompt, *, user: str, session: str, key: str | None = None) -> str:
    """Accept a message for a session, which is made if it is not there; the id of the run that answers it.

    It runs once a worker that has the app takes it, after all runs of its session that were accepted before. `key`: the
    same message under the same key is accepted once in a day. Raises `ValueError` for a storage of one machine and for
    an id that no server would take, `KeyTaken`, `StoreError`. Cancellation: it was accepted, or it was not.
    """
    if placement_of(storage) is None:
        raise ValueError("place(storage): a storage that many machines share is needed: PostgresStorage")
    id = SessionKey.of(app, user, session).stored_as
    parts = cast("Sequence[UserPart]", user_message(prompt).parts)
    once = None if key is None else Idempotency(key, uuid.uuid5(uuid.NAMESPACE_OID, repr(parts)).hex)
    submission = Submission(tuple(parts), if_busy="queue", idempotency=once)
    record = _record(id, submission)
    with suppress(SessionExists):
        await storage.sessions.create(id, _EMPTY)
    try:
        await storage.commit(AcceptRun(record, record.created_at - _DAY), TouchSession(id, record.created_at))
    except AlreadyAccepted as error:
        return error.record.run_id
    return record.run_id


_EMPTY: dict[str, Any] = {}  # Any: JSON values


def _record(session: str, submission: Submission) -> RunRecord:
    once = submission.idempotency
    return RunRecord(
        f"run_{uuid.uuid4().hex}",
        session,
        RunState.QUEUED,
        time.time(),
        FREE,
        submission.to_json(),
        once.key if once is not None else None,
        once.digest if once is not None else None,
    )
