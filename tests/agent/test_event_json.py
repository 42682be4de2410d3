"""Every event and every part goes through JSON and comes back as it was; an error comes back with its words."""

from __future__ import annotations

import json
from typing import Any, get_args

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safepoint import (
    Agent,
    Ask,
    Image,
    LedgerEntry,
    LedgerState,
    Message,
    Reason,
    SafePoint,
    Source,
    Text,
    ToolCall,
    Usage,
    events,
    messages_from_json,
    messages_to_json,
    tool,
)
from safepoint._core.endings import Cancellation
from safepoint._core.ladder import Rung
from safepoint._core.points import Level
from safepoint.agent.event_json import EVENT
from safepoint.agent.events import Event
from safepoint.errors import RecordedError
from safepoint.history.json_codec import MESSAGES
from safepoint.testing import ScriptedModel, call, say
from tests.resume.test_codec import entries, maybe, messages, words
from tests.virtual import virtual

points = st.sampled_from(
    [
        SafePoint.NOW,
        SafePoint.FORCE,
        SafePoint.ANY,
        SafePoint.AFTER_TOOL | SafePoint.named("page"),
        SafePoint.AFTER_MODEL,
    ]
)
seconds = st.floats(0, 1e9)
reasons = st.builds(Reason, words, st.sampled_from(Source), maybe)
asks = st.builds(Ask, points, reasons, st.none() | seconds, st.booleans(), seconds, words)
cancellations = st.none() | st.builds(
    Cancellation,
    reasons,
    st.lists(reasons, max_size=2).map(tuple),
    words,
    st.sampled_from(Level),
    st.booleans(),
    st.booleans(),
    seconds,
    seconds,
)
usages = st.builds(Usage, st.integers(0), st.integers(0))
errors = st.builds(RecordedError, words, words)
calls = messages.map(lambda message: (*message.tool_calls, ToolCall("c", "t", {"x": b"\xff"}))[0])
FIELDS: dict[str, st.SearchStrategy[Any]] = {  # Any: of each field's own type
    "step": st.integers(0),
    "seq": st.integers(0),
    "missed": st.integers(0),
    "time": seconds,
    "delay": seconds,
    "model_name": maybe,
    "provider_name": maybe,
    "message": st.none() | messages,
    "usage": usages,
    "complete": st.booleans(),
    "error": errors,
    "cancellation": cancellations,
    "call": calls,
    "entry": entries,
    "ask": asks,
    "rung": st.sampled_from(Rung),
    "reason": reasons,
    "stopped": st.booleans(),
}


def made(kind: type[Event]) -> st.SearchStrategy[Event]:
    return st.builds(kind, **{name: FIELDS.get(name, words) for name in kind.__struct_fields__})


@pytest.mark.parametrize("kind", get_args(Event))
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_event_comes_back_as_it_was_and_fits_the_schema(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(made(kind))
    text = events.to_json(event)
    assert events.from_json(text) == events.from_json(text.encode()) == event
    jsonschema_rs.validate(EVENT.schema(), EVENT.to_plain(event))


@settings(max_examples=50, deadline=None)
@given(st.lists(messages, max_size=3))
def test_every_conversation_comes_back_as_it_was_and_fits_the_schema(said: list[Message]) -> None:
    text = messages_to_json(said)
    assert messages_from_json(text) == messages_from_json(text.encode()) == said
    jsonschema_rs.validate(MESSAGES.schema(), MESSAGES.to_plain(said))


@tool
async def look() -> list[Any]:  # Any: a picture among words
    """Look."""
    return ["see", Image(b"\xff")]


@virtual
async def test_the_events_of_a_run_go_to_another_process_and_are_the_same_there() -> None:
    agent = Agent("a", model=ScriptedModel(call("look"), say("done")), tools=[look])
    async with agent.start("go") as run:
        run.cancel(SafePoint.AFTER_TOOLS, reason="lunch")
    told = run.kept_events()
    assert tuple(events.from_json(events.to_json(event)) for event in told) == told
    assert json.loads(events.to_json(told[0]))["kind"] == "run_started"
    assert messages_from_json(messages_to_json(run.result.messages)) == run.result.messages


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("no tea"), "no tea"),
        (Unreadable(), "(its message could not be read: RuntimeError)"),
        (OSError("half \ud83d"), "half \ufffd"),
    ],
)
def test_an_error_comes_back_as_its_name_and_its_message(error: Exception, message: str) -> None:
    event = events.HookFailed(run_id="r", path="a", seq=1, time=1.0, hook="h", error=error)
    found = events.from_json(events.to_json(event))
    assert isinstance(found, events.HookFailed)
    assert found.error == RecordedError(type(error).__name__, message)
    assert events.from_json(events.to_json(found)) == found


WRONG = [
    "",
    "{}",
    "[]",
    '{"kind":"song"}',
    '{"kind":"lagged","run_id":"r","path":"a","seq":1,"time":1.0}',
    '{"kind":"hook_failed","run_id":"r","path":"a","seq":1,"time":1.0,"hook":"h","error":"boom"}',
    '{"kind":"cancel_requested","run_id":"r","path":"a","seq":1,"time":1.0,"ask":{"at":"now"}}',
    "[" * 100_000,
]


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_what_is_no_event_is_refused_with_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # json's own, or ours with the path of the field
        events.from_json(text)
    with pytest.raises(ValueError):  # noqa: PT011  # as above
        messages_from_json(text if text != "[]" else "[[]]")


def test_a_time_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="no JSON form"):
        events.to_json(events.Lagged(run_id="r", path="a", seq=1, time=float("nan"), missed=1))


def test_an_entry_keeps_its_state_and_its_arguments() -> None:
    entry = LedgerEntry("c", "t", {"$x": {"y": b"\x00"}}, LedgerState.CUT, parts=(Image(b"\xff"),))
    event = events.ToolCallEnded(run_id="r", path="a", seq=1, time=1.0, entry=entry)
    found = events.from_json(events.to_json(event))
    assert found == event
    assert isinstance(found, events.ToolCallEnded)
    assert found.entry.state is LedgerState.CUT
    assert Message("user", (Text("a"),)) == messages_from_json(messages_to_json([Message("user", (Text("a"),))]))[0]
