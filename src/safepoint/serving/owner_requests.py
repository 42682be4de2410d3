"""What only the owner of a run can do or tell, asked for by another process: the request is stored, the owner answers.

    withdraw   take an ask back
    why        what holds the run
    tree       its agents and calls
    preview    what a stop would do to each call
    steer      say something to it
    patch      change the state of its session
    move       hand it over to another worker

They travel as requests to cancel do: a row, a push where the storage pushes, and a look now and then. The asker deletes
the row when it has the answer, or when it waits no longer.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any

from safepoint.agent.steering import SteerOutcome
from safepoint.errors import SafepointError, SessionBusy, StoreError
from safepoint.history.parts import UserPart
from safepoint.serving.cancel_answers import Json, holding_json
from safepoint.serving.cancel_requests import MOVED, StopRequest, decode_request
from safepoint.serving.cancel_service import withdraw
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import NotFound
from safepoint.serving.run_manager import RunManager
from safepoint.serving.run_tree import live_tree, preview_json
from safepoint.serving.submission import Submission
from safepoint.storage.run_records import RunRecord, RunState, StoredCancelRequest

OWNER_PATIENCE = 2.0
SILENT = f"no answer from the owner within {OWNER_PATIENCE:g} s"
# A path that no node has: a process of an older version, which does not know these requests, then cannot follow the
# row, and does not stop the run.
_NO_NODE = {"node": ""}


class OwnerSilent(SafepointError):
    """The process that has the run did not answer in time; it may be dead, or out of reach of the storage."""


class Question(StrEnum):
    """What is wanted of the owner; explained above."""

    WITHDRAW = "withdraw"
    WHY = "why"
    TREE = "tree"
    PREVIEW = "preview"
    STEER = "steer"
    PATCH = "patch"
    MOVE = "move"


# -- the asker ---------------------------------------------------------------------------------------------------------


async def ask_owner(
    manager: RunManager,
    run_id: str,
    question: Question,
    given: Mapping[str, Any] | None = None,  # Any: JSON values
    *,
    wait_seconds: float = 0.0,
) -> Mapping[str, Any] | None:  # Any: likewise
    """What the owner of the run says; None if the run has ended or is not there. Raises `OwnerSilent`, `StoreError`.

    `wait_seconds`: how long the owner may take for it, beyond the time of an answer. Cancellation: the owner may have
    heard it.
    """
    runs, id = manager.storage.runs, f"question-{uuid.uuid4().hex}"
    until = time.monotonic() + wait_seconds + OWNER_PATIENCE
    row = {"id": id, "question": question.value, "given": dict(given or {}), "request": _NO_NODE}
    try:
        async with asyncio.timeout(until - time.monotonic()), manager.storage.changes(run=run_id) as changes:
            number = await runs.request_cancel(run_id, row)
            async for _ in changes:
                # The record first: an owner answers before it ends, or not at all.
                record = await runs.get(run_id)
                answer = await runs.cancel_answer(number)
                if answer is not None or record is None or record.ended:
                    return answer
    except TimeoutError:
        raise OwnerSilent(SILENT) from None
    finally:
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(1.0):
                await runs.withdraw_cancel(run_id, id)
    return None


async def withdraw_elsewhere(manager: RunManager, record: RunRecord, ask_id: str) -> bool:
    """As `withdraw`, of a run that another process has. Raises `NotFound`, `OwnerSilent`. Cancellation: as above."""
    requests = await manager.storage.runs.cancel_requests(record.run_id)
    if not any(each.ask.get("id") == ask_id and question_of(each) is None for each in requests):
        raise NotFound(f"Ask not found: {ask_id}")
    if record.ended:
        return False
    answer = await ask_owner(manager, record.run_id, Question.WITHDRAW, {"ask": ask_id})
    return answer is not None and bool(answer["done"])


async def steer_elsewhere(manager: RunManager, run_id: str, said: Submission, wait_seconds: float) -> str:
    """As `steer_here`, of a run that another process has. Raises `OwnerSilent`. Cancellation: as above."""
    given = {"message": said.to_json(), "waitSeconds": wait_seconds}
    answer = await ask_owner(manager, run_id, Question.STEER, given, wait_seconds=wait_seconds)
    return str(answer["outcome"]) if answer is not None else str(SteerOutcome.TOO_LATE)


async def patch_anywhere(manager: RunManager, key: SessionKey, delta: Mapping[str, Any]) -> None:  # Any: JSON values
    """As `RunManager.patch`, also under a live run of another process. Raises `OwnerSilent`. Cancellation: as above."""
    try:
        await manager.patch(key, delta)
    except SessionBusy:
        still_open = await manager.storage.runs.still_open(key.stored_as, waiting=False)
        live = next((record for record in still_open if record.state is RunState.LIVE), None)
        if live is None:
            raise
        if await ask_owner(manager, live.run_id, Question.PATCH, {"delta": dict(delta)}) is None:
            await manager.patch(key, delta)  # the run has ended


# -- the owner ---------------------------------------------------------------------------------------------------------


def question_of(stored: StoredCancelRequest) -> Question | None:
    """None for a request to stop the run."""
    asked = stored.ask.get("question")
    return Question(asked) if asked in tuple(Question) else None


async def answer_owner_request(manager: RunManager, managed: ManagedRun, stored: StoredCancelRequest) -> None:
    """Do what is asked, and store what came of it. Cancellation: done or not; the asker is told nothing."""
    given: Mapping[str, Any] = stored.ask.get("given", {})  # Any: JSON values
    answer: Json
    match question_of(stored):
        case Question.WITHDRAW:
            try:
                answer = {"done": await withdraw(manager, managed, str(given.get("ask")))}
            except NotFound:
                answer = {"done": False}
        case Question.WHY:
            answer = what_holds(managed)
        case Question.TREE:
            answer = live_tree(managed, stacks=True)
        case Question.PREVIEW:
            answer = previewed(managed, decode_request(given))
        case Question.STEER:
            prompt = Submission.from_json(given["message"]).prompt or ()
            answer = {"outcome": await steer_here(managed, prompt, float(given["waitSeconds"]))}
        case Question.PATCH:
            await manager.patch(managed.key, given["delta"])
            answer = {"done": True}
        case Question.MOVE:
            managed.hand_over(MOVED, within=manager.config.shutdown_seconds)
            answer = {"done": True}
        case None:
            return
    with suppress(StoreError):
        await manager.storage.runs.answer_cancel(stored.number, answer)


def what_holds(managed: ManagedRun) -> Json:
    """`asked`: where it is to stop, empty if no stop was requested. `holding`: with stacks."""
    request, holding = managed.run.node.request(), managed.run.why_not_stopped()
    asked = sorted(request.at.places) if request is not None else []
    return {"asked": asked, "holding": [holding_json(each) for each in holding]}


def previewed(managed: ManagedRun, request: StopRequest) -> Json:
    """What such a stop would do now; of a node, what it would do to that and to what is below it."""
    found = preview_json(managed.run.preview_cancel(request.at, recursive=request.recursive))
    if request.node is not None:
        below = f"{request.node}/"
        found["calls"] = [call for call in found["calls"] if f"{call['path']}/".startswith(below)]
        bounds = [call.get("seconds") for call in found["calls"]]
        found.pop("seconds", None)
        if None not in bounds:
            found["seconds"] = max(bounds, default=0.0)
    return found


async def steer_here(managed: ManagedRun, prompt: Sequence[UserPart], wait_seconds: float) -> str:
    """`joined`, `too_late` or `waiting`: no model call has followed yet. Cancellation: it is said."""
    receipt = managed.run.steer(list(prompt))
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_seconds):
            await receipt.wait()
    match receipt.outcome:
        case SteerOutcome.JOINED | SteerOutcome.PREEMPTED:
            return "joined"
        case SteerOutcome.TOO_LATE | SteerOutcome.WITHDRAWN:  # only this function has the receipt
            return "too_late"
        case None:
            return "waiting"
