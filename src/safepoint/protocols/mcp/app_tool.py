"""One app as one tool: `{task, session?}` in, or `{answers, session}` for a run that waits for a person."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

import anyio
from mcp_types import CallToolRequestParams, CallToolResult, InputRequiredResult, Tool
from pydantic import BaseModel, ConfigDict, ValidationError

from safepoint.errors import SafepointError, SessionNotFound
from safepoint.history.parts import Text
from safepoint.protocols.mcp.exchange import Exchange
from safepoint.protocols.mcp.questions import answers_to, can_elicit, elicit, input_required, is_modern
from safepoint.protocols.mcp.results import failed, output_schema, result_of, waiting
from safepoint.serving.apps import App
from safepoint.serving.ids import SessionKey
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.principal import NotFound
from safepoint.serving.run_lookup import RunLookup
from safepoint.serving.submission import Answer, NothingToAnswer, Submission
from safepoint.sessions.dispatch import IfBusy

IF_BUSY = "safepoint/ifBusy"
_INPUT: Mapping[str, Any] = {  # Any: a JSON schema
    "type": "object",
    "properties": {
        "task": {"type": "string", "minLength": 1, "description": "What the agent is to do, with all that it needs."},
        "session": {"type": "string", "description": "A session of an earlier result, to go on with it."},
        "answers": {
            "type": "object",
            "description": "In place of a task: answers to the questions of an earlier result, by their ids.",
        },
    },
    "additionalProperties": False,
}


class Arguments(BaseModel):
    """What a client sends."""

    model_config = ConfigDict(extra="forbid", strict=True)

    task: str | None = None
    session: str | None = None
    answers: dict[str, Any] | None = None  # Any: JSON


@dataclass(frozen=True, slots=True)
class _Task:
    key: SessionKey
    submission: Submission
    new: bool


class AppTool:
    """A tool of the server that hands a task to an agent."""

    def __init__(self, app: App) -> None:
        assert app.agent is not None
        self.app = app.name
        self.tool = Tool(
            name=app.name,
            description=app.description or f"Hand a task to the agent {app.name!r}, and wait for its answer.",
            input_schema=dict(_INPUT),
            output_schema=output_schema(app.agent),
        )

    async def call(self, exchange: Exchange, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        """Cancellation: the run is stopped NOW, and that is recorded."""
        try:
            if params.request_state is not None:
                return await self._answered(exchange, params)
            wanted = self._read(exchange, params)
            managed = await exchange.submit(wanted.key, wanted.submission, new=wanted.new)
            return await self._finish(exchange, managed)
        except SessionNotFound:
            return failed("Session not found. Leave `session` out to begin a new one.")
        except (SafepointError, ValueError, NotFound) as error:
            return failed(str(error))

    async def _finish(self, exchange: Exchange, managed: ManagedRun) -> CallToolResult | InputRequiredResult:
        """Follow the run; if it asks, ask the client, and go on with the answers. Cancellation: as above."""
        session = exchange.context.session
        while True:
            await exchange.follow(managed)
            if not managed.paused or not can_elicit(session):
                return result_of(managed)
            if is_modern(session):
                return input_required(managed.run.result.questions, managed.id)
            resumed = await self._elicited(exchange, managed)
            if resumed is None:
                return result_of(managed)
            managed = resumed

    async def _elicited(self, exchange: Exchange, managed: ManagedRun) -> ManagedRun | None:
        """The run that goes on with what a person has answered. Cancellation: the pause is cleared; it is cancelled."""
        context = exchange.context
        try:
            answers = await elicit(context.session, managed.run.result.questions, context.request_id)
            return None if answers is None else await exchange.submit(managed.key, _answering(answers), new=False)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await exchange.stop(managed)
            raise

    async def _answered(
        self, exchange: Exchange, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """The call again, with forms filled in. Raises `NotFound`. Cancellation: as above."""
        key, record = await RunLookup(exchange.manager).record(exchange.who, params.request_state or "")
        if key.app != self.app:
            raise NotFound(f"Run not found: {record.run_id}")
        session = (await exchange.manager.up_to_date(key)).session  # another process may have paused it, or gone on
        checkpoint = session.checkpoint if session.runs and session.runs[-1].run_id == record.run_id else None
        questions = checkpoint.questions if checkpoint is not None else ()
        if not questions:
            raise NothingToAnswer(f"the run {record.run_id} waits for no answer")
        answers = answers_to(questions, params.input_responses or {})
        if answers is None:
            return waiting(key, record.run_id, questions)
        return await self._finish(exchange, await exchange.submit(key, _answering(answers), new=False))

    def _read(self, exchange: Exchange, params: CallToolRequestParams) -> _Task:
        """Raises `BadId`, `NotFound`, and ValueError with what to write instead."""
        try:
            given = Arguments.model_validate(params.arguments or {})
        except ValidationError as error:
            raise ValueError(_problems(error)) from None
        if (given.task is None) == (given.answers is None):
            raise ValueError("write a task, or answers to the questions of a session; one of them")
        key = exchange.key(self.app, str(uuid.uuid4()) if given.session is None else given.session)
        if given.task is not None:
            if not given.task.strip():
                raise ValueError("task: write at least one word")
            prompt, if_busy = (Text(given.task),), _if_busy(params)
            submission = Submission(prompt, on_disconnect="detach", if_busy=if_busy)
            return _Task(key, submission, new=given.session is None)
        if given.session is None or not given.answers:
            raise ValueError("answers: write the session that asked, and an answer for each id of its questions")
        return _Task(key, _answering(tuple(Answer(*each) for each in given.answers.items())), new=False)


def _answering(answers: tuple[Answer, ...]) -> Submission:
    return Submission(answers=answers, on_disconnect="detach")


def _if_busy(params: CallToolRequestParams) -> IfBusy:
    """What becomes of a message for a session that is busy: as `_meta` says, else it is refused."""
    given: object = (params.meta or {}).get(IF_BUSY, "reject")
    known: Sequence[str] = get_args(IfBusy)
    if given not in known:
        raise ValueError(f"_meta {IF_BUSY}={given!r}: write one of {', '.join(known)}")
    return cast(IfBusy, given)


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "\n".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:10])
