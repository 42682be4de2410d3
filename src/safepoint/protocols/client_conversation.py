"""Clients that send the whole conversation with every message: what of it is new, and how it is submitted.

The stored session is the conversation. Of what a client sends only the words of the user are compared with it, part by
part and in their order; what the client says the assistant said is not taken from it. New is what stands behind the
words that are stored or that wait for their turn. A list that has other words, or fewer, or answers of an assistant
among the new words, is about another conversation: `HistoryConflict`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from safepoint.errors import SafepointError, SessionExists, SessionNotFound
from safepoint.history.json_codec import decode_message
from safepoint.history.parts import Part, Text, UserPart
from safepoint.serving.cancel_answers import receipt_json, without_stack
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.cancel_service import Cancelled, cancel_all
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import Principal
from safepoint.serving.remote_cancel import cancel_records
from safepoint.serving.run_manager import RunManager
from safepoint.serving.submission import Submission
from safepoint.sessions.session import Session
from safepoint.storage.run_records import RunRecord, RunState

Json: TypeAlias = dict[str, Any]  # Any: JSON values

USER: Final = "user"  # whose sessions they are, where the key names no user


class HistoryConflict(SafepointError):
    """The client's messages are not those of the session."""


@dataclass(frozen=True, slots=True)
class Said:
    """A message as the client has it. `parts`: None for one that is not the user's."""

    parts: tuple[UserPart, ...] | None


def key_of(who: Principal, app: str, session: str) -> SessionKey:
    """Of a session of the caller's own. Raises `BadId`, `NotFound`."""
    return who.session(app, who.user or USER, session)


def new_parts(known: Sequence[Part], said: Sequence[Said]) -> tuple[UserPart, ...]:
    """What the client says that is not known. Raises `HistoryConflict`.

    `known`: what the user has said in this session, part by part. `said`: all messages that the client has.
    """
    wanted = [_mark(part) for part in known]
    found: list[UserPart] = []
    place = 0
    for message in said:
        if message.parts is None:
            if found:
                raise HistoryConflict("messages: an answer stands behind a message that this session does not have")
            continue
        for part in message.parts:
            if place < len(wanted):
                if _mark(part) != wanted[place]:
                    raise HistoryConflict(
                        "messages: the user's words are not those of this session: send them as they were, or begin a "
                        "new session"
                    )
            else:
                found.append(part)
            place += 1
    if place < len(wanted):
        raise HistoryConflict(
            "messages: words of the user that this session has are missing: send them all, or begin a new session"
        )
    return tuple(found)


def _mark(part: Part) -> tuple[str, str]:
    return (part.kind, part.text) if isinstance(part, Text) else (part.kind, getattr(part, "media_type", ""))


async def known_parts(manager: RunManager, key: SessionKey) -> list[Part]:
    """What the user has said: it is stored, or waits for its turn. Empty for a session that is not there yet.

    Cancellation: nothing has changed.
    """
    try:
        session = await manager.view(key)
    except SessionNotFound:
        return []
    queued = [each for each in await manager.storage.runs.still_open(key.stored_as) if each.state is RunState.QUEUED]
    queued.sort(key=lambda record: record.created_at)
    prompts = [prompt for record in queued if (prompt := record.request.get("prompt")) is not None]
    waiting = [part for prompt in prompts for part in decode_message({"role": "user", "parts": prompt}).parts]
    return [*_said_by_user(session), *waiting]


def _said_by_user(session: Session) -> list[Part]:
    messages = [message for message in session.messages if message.role == "user"]
    return [part for message in messages for part in message.parts if part.kind in ("text", "image", "file")]


async def submit(
    manager: RunManager, who: Principal, key: SessionKey, submission: Submission
) -> ManagedRun | RunRecord:
    """As `RunManager.submit`, for a session that may not be there yet: a refusal leaves none behind.

    Raises what that raises. Cancellation: it was accepted, or it was not.
    """
    is_new = False
    try:
        await manager.dispatcher(key)
    except SessionNotFound:
        manager.agent(key.app)  # no session is made for an app that is not there
        with suppress(SessionExists):
            await manager.create(key, None)
            is_new = True
    try:
        accepted = await manager.submit(who, key, submission)
        if isinstance(accepted, ManagedRun):
            await accepted.admitted.wait()
            if accepted.refused is not None:
                raise accepted.refused
        return accepted
    except Exception:
        if is_new and not manager.live_of(key):
            await manager.delete(key)
        raise


async def stop(
    manager: RunManager, who: Principal, key: SessionKey, request: StopRequest, *, text: str, run_id: str | None
) -> Json:
    """Stop the live run of a session, or clear its pause; `run_id`: that run and no other.

    Raises `SessionNotFound`. An idle session stays as it is. Cancellation: the ask stands.
    """
    reason = who.reason(text, user=key.user)
    here = [run for run in manager.live_of(key) if run_id in (None, run.id)]
    cancelled = await cancel_all(manager, here, request, reason) if here else []
    if not cancelled:
        await manager.view(key)
        records = await manager.storage.runs.still_open(key.stored_as)
        there = [each for each in records if run_id in (None, each.run_id)]
        cancelled = await cancel_records(manager, there, request, reason)
    if not cancelled:
        return {"status": "idle", "runs": list[Json]()}
    over = all(each.outcome is not None for each in cancelled)
    runs = [_cancelled_json(each, who) for each in cancelled]
    return {"status": "cancelled" if over else "cancelling", "runs": runs}


def _cancelled_json(cancelled: Cancelled, who: Principal) -> Json:
    receipt_fields: Mapping[str, Any] = cancelled.receipt_fields  # Any: JSON values
    if cancelled.receipt is not None:
        receipt_fields = receipt_json(cancelled.receipt, is_over=cancelled.outcome is not None)
    found: Json = {
        "runId": cancelled.run_id,
        "outcome": cancelled.outcome,
        "durable": cancelled.durable,
        **receipt_fields,
    }
    if "orphans" in found and not who.admin:
        found["orphans"] = [without_stack(each) for each in found["orphans"]]
    return found
