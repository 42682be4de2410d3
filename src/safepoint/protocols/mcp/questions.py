"""Questions of a run that waits for a person, as MCP's elicitation: a form with one field.

Until 2025-11-25 the server sends the form itself, and the call goes on with what comes back. From 2026-07-28 on the
result of the call is the form (`InputRequiredResult`), and the client calls again with the answer. A client that has no
elicitation is told what is asked, and calls again with `answers`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcp.server.session import ServerSession
from mcp_types import (
    ClientCapabilities,
    ElicitationCapability,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from safepoint.agent.checkpoint import Question
from safepoint.protocols.question_text import question_text
from safepoint.serving.submission import Answer

_ANSWER = "answer"
_YES_OR_NO = {"type": "boolean", "title": "Allow it?"}
_WORDS = {"type": "string", "title": "Answer"}


def can_elicit(session: ServerSession) -> bool:
    """Has the client said that it shows forms?"""
    return session.check_client_capability(ClientCapabilities(elicitation=ElicitationCapability()))


def is_modern(session: ServerSession) -> bool:
    """Is a form the result of the call, and not a request of the server?"""
    return session.protocol_version in MODERN_PROTOCOL_VERSIONS


async def elicit(
    session: ServerSession, questions: Sequence[Question], request_id: str | int | None
) -> tuple[Answer, ...] | None:
    """One form after the other; None if one was not answered. Cancellation: nothing is answered."""
    answers: list[Answer] = []
    for question in questions:
        shown = await session.elicit_form(question_text(question), _form(question), request_id)
        answer = _answer(question, shown)
        if answer is None:
            return None
        answers.append(answer)
    return tuple(answers)


def input_required(questions: Sequence[Question], run_id: str) -> InputRequiredResult:
    """The forms as a result; the client gives the run's id back with its answers."""
    forms = {
        question.id: ElicitRequest(
            params=ElicitRequestFormParams(message=question_text(question), requested_schema=_form(question))
        )
        for question in questions
    }
    return InputRequiredResult(input_requests=dict(forms), request_state=run_id)


def answers_to(questions: Sequence[Question], given: Mapping[str, object]) -> tuple[Answer, ...] | None:
    """What came back for these forms; None if one was not answered."""
    found = [_answer(question, given.get(question.id)) for question in questions]
    return tuple(each for each in found if each is not None) if all(each is not None for each in found) else None


def _form(question: Question) -> dict[str, Any]:  # Any: a JSON schema
    field = _YES_OR_NO if question.kind == "check" else _WORDS
    return {"type": "object", "properties": {_ANSWER: field}, "required": [_ANSWER]}


def _answer(question: Question, shown: object) -> Answer | None:
    """A person who declines to allow a call has denied it. Any other question stays open without an answer."""
    if not isinstance(shown, ElicitResult):
        return None
    if shown.action == "accept" and shown.content is not None and _ANSWER in shown.content:
        return Answer(question.id, shown.content[_ANSWER])
    return Answer(question.id, False) if question.kind == "check" and shown.action == "decline" else None
