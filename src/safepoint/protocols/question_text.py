"""A question of a run, in words for a person."""

from __future__ import annotations

import json

from safepoint.agent.checkpoint import Question


def question_text(question: Question) -> str:
    """The payload as it is if that is text, else as JSON."""
    match question.payload:
        case str() as text:
            return text
        case {"question": str() as text, **rest} if not rest:
            return text
        case payload:
            return json.dumps(payload, ensure_ascii=False, default=str)
