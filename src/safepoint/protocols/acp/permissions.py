"""Questions of a paused run as `session/request_permission`, and what the person's choice means. Pure.

    an approval              (`AskFirst`)                         allow or reject, once or always
    {"approve": …, …}        (`ctx.interrupt`, in a hook's form)  likewise; "always" is the hook's to remember
    {"options": […], …}      (`ctx.interrupt`)                    one of these texts
    anything else                                                 told as text; the next prompt answers it

A choice that the client cancels is no answer: the run is stopping, and the model is not told that a person said no.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from acp import schema

from safepoint.agent.checkpoint import Question

_ONCE: Final = "allow_once"
_ALWAYS: Final = "allow_always"
_NO: Final = "reject_once"
_NEVER: Final = "reject_always"
_FOR_EVER: Final[Mapping[str, bool]] = {_ALWAYS: True, _NEVER: False}


@dataclass(frozen=True, slots=True)
class Choice:
    """A question that one click answers. `values`: what each option answers, by its id."""

    question: Question
    title: str
    options: Sequence[schema.PermissionOption]
    values: Mapping[str, Any]  # Any: JSON values

    @property
    def remembers(self) -> bool:
        """Is "always" kept for the session here? A hook that asks in its own form keeps it itself."""
        return self.question.kind == "check"


def choice_of(question: Question) -> Choice | None:
    """None for a question that needs words."""
    payload: object = question.payload
    if question.kind == "check":
        return Choice(question, str(payload), _approval(question.tool), {_ONCE: True, _NO: False, **_FOR_EVER})
    if question.kind != "interrupt" or not isinstance(payload, dict):
        return None
    given = cast("dict[str, Any]", payload)  # Any: whatever the tool asked with
    if "approve" in given:
        title = " ".join(str(given[name]) for name in ("verb", "text") if given.get(name)) or str(given["approve"])
        values = {_ONCE: True, _ALWAYS: {"always": True}, _NO: False}
        return Choice(question, title, _approval(str(given.get("always") or given["approve"]))[:3], values)
    options: object = given.get("options")
    if isinstance(options, list) and options and all(isinstance(each, str) for each in cast("list[object]", options)):
        texts = cast("list[str]", options)
        offered = [schema.PermissionOption(option_id=str(n), name=t, kind="allow_once") for n, t in enumerate(texts)]
        return Choice(question, words_of(question), offered, {str(n): t for n, t in enumerate(texts)})
    return None


def words_of(question: Question) -> str:
    """The question as a sentence, as well as its payload allows."""
    payload: object = question.payload
    if isinstance(payload, dict):
        given = cast("dict[str, Any]", payload)  # Any: as above
        found = next((given[name] for name in ("question", "prompt", "message", "text") if given.get(name)), None)
        payload = found if found is not None else given
    return f"{question.tool} asks: {payload}"


def kept_by(option: str) -> bool | None:
    """What the person says for the rest of the session: True, False, or None for this time only."""
    return _FOR_EVER.get(option)


def _approval(what: str) -> list[schema.PermissionOption]:
    return [
        schema.PermissionOption(option_id=_ONCE, name="Allow", kind=_ONCE),
        schema.PermissionOption(option_id=_ALWAYS, name=f"Always allow {what} in this session", kind=_ALWAYS),
        schema.PermissionOption(option_id=_NO, name="Reject", kind=_NO),
        schema.PermissionOption(option_id=_NEVER, name=f"Always reject {what} in this session", kind=_NEVER),
    ]
