"""What any stop leaves behind can be sent to every provider: its converted form keeps that provider's own rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safepoint import File, Image, Message, ModelSettings, Text, check_history
from safepoint.agent.model import ModelRequest
from safepoint.history import ClosedCall, Draft, close_history
from safepoint.models import anthropic_wire, gemini_wire, openai_wire
from safepoint.tools.base import ToolSpec
from tests.history.conversations import PATIENT, batches, drafts, histories, open_histories, wild_text
from tests.history.tables import VALID
from tests.resume.test_table import KINDS, stop_at
from tests.resume.world import PLACES

Check = Callable[[ModelRequest], None]


def _openai(request: ModelRequest) -> None:
    # Chat completions take no file by address, and say so; that is tested elsewhere.
    messages = tuple(map(_without_addresses, request.messages))
    openai_wire.check_payload(openai_wire.to_payload("m", ModelRequest(messages, "Be kind.", request.tools)))


def _without_addresses(message: Message) -> Message:
    parts = [File(data=b"x", name=part.name) if isinstance(part, File) else part for part in message.parts]
    return Message(message.role, tuple(parts))


def _anthropic(request: ModelRequest) -> None:
    messages = tuple(map(_without_odd_types, request.messages))
    for settings in (ModelSettings(), ModelSettings(extra={"thinking": {"type": "enabled", "budget_tokens": 1024}})):
        sent = ModelRequest(messages, "Be kind.", request.tools, settings)
        anthropic_wire.check_payload(anthropic_wire.to_payload("m", sent))


def _without_odd_types(message: Message) -> Message:
    parts = [File(url="https://x.org/a.pdf") if isinstance(part, File) else part for part in message.parts]
    return Message(message.role, tuple(Image(data=b"x") if isinstance(part, Image) else part for part in parts))


def _gemini(request: ModelRequest) -> None:
    for model in ("gemini-2.5-flash", "gemini-3-pro"):
        gemini_wire.check_payload(gemini_wire.to_payload(model, request))


PROVIDERS: Mapping[str, Check] = {"openai": _openai, "anthropic": _anthropic, "gemini": _gemini}
GO_ON = Message("user", (Text("go on"),))


def check_everywhere(messages: Sequence[Message]) -> None:
    """The conversation as it is sent next: with a new message, and as a request that goes on without one."""
    names = {call.name for message in messages for call in message.tool_calls}
    tools = tuple(ToolSpec(name, "Do it.", {"type": "object"}) for name in sorted(names))
    follow: list[tuple[Message, ...]] = []
    if not messages or messages[-1].role != "user":
        follow.append((*messages, GO_ON))
    if messages and messages[-1].role != "assistant":
        follow.append(tuple(messages))
    for sent in follow:
        check_history(sent)
        for check in PROVIDERS.values():
            check(ModelRequest(sent, tools=tools))
            check(ModelRequest(sent))


@PATIENT
@given(histories(), st.none() | drafts, st.none() | wild_text)
def test_a_conversation_that_was_cut_in_a_reply(
    messages: list[Message], draft: Draft | None, notice: str | None
) -> None:
    closed = close_history(messages, draft=draft, notice=notice) if messages else ()
    check_everywhere(closed)


@PATIENT
@given(st.data(), open_histories(), st.none() | wild_text)
def test_a_conversation_that_was_cut_in_its_tools(data: Any, messages: list[Message], notice: str | None) -> None:
    batch: list[ClosedCall] = data.draw(batches(messages[-1].tool_calls))
    check_everywhere(close_history(messages, batch=batch, notice=notice))


@pytest.mark.parametrize("kind", VALID)
def test_every_conversation_of_the_table(kind: str) -> None:
    check_everywhere(list(VALID[kind]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["async", "sub-agent"])
def test_every_place_and_every_way_to_stop(shape: str, kind: str) -> None:
    for place in PLACES:
        check_everywhere(stop_at(shape, place, kind).messages)
