"""A value is a struct, and to a user still what it was as a dataclass; its JSON changes nothing in silence."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import gc
import json
import math
import pickle
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI
from fastapi.encoders import jsonable_encoder
from fastapi.testclient import TestClient
from pydantic import BaseModel, TypeAdapter, ValidationError

from safepoint import (
    Checkpoint,
    File,
    Image,
    LedgerEntry,
    Message,
    Notice,
    Reasoning,
    RunResult,
    StopReason,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from safepoint._values import Value
from safepoint.agent.codec import ENTRY
from safepoint.agent.fact_codec import COUNTED
from safepoint.agent.journal import Counted, Ended
from safepoint.events import RunStarted, TextStreamed
from safepoint.history.encoding import Lost
from safepoint.history.json_codec import MESSAGE, Codec
from safepoint.history.rendering import render_result

PARTS = (
    Text("hi", incomplete=True),
    Image(b"\xff", "image/gif"),
    File(url="https://example.org/a.pdf"),
    Reasoning("so", "seal"),
    ToolCall("c1", "act", {"x": [1, {"y": None}]}),
    ToolResult("c1", "act", "done", "cut", (Image(b"\x00"),)),
    Notice("stopped"),
)
EVERYTHING = Message("assistant", PARTS, "a")
PLAIN = Message("assistant", (Text("hi"), ToolCall("c1", "act", {"x": 1})), "a")


def pickled(value: Any) -> Any:  # Any: of every type
    return pickle.loads(pickle.dumps(value))


# -- what a user can do with one ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_is_equal(copied: Callable[[Any], Any]) -> None:  # Any: as above
    event = RunStarted(run_id="r", path="a", seq=1, time=2.0, agent="a")
    for value in (EVERYTHING, event, LedgerEntry("c", "t"), Usage(1, 2)):
        assert copied(value) == value


def test_values_are_compared_by_class_and_fields_and_hashed_if_these_can_be() -> None:
    words: object = Text("a")
    assert words != Notice("a")
    assert Text("a") == Text("a")
    assert len({Text("a"), Text("a"), Usage(1), Usage(1)}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(ToolCall("c", "t", {}))


def test_a_repr_is_what_makes_the_value_again() -> None:
    assert eval(repr(EVERYTHING)) == EVERYTHING


def test_a_result_does_not_show_its_value_twice() -> None:
    result: RunResult[str] = RunResult("r", StopReason.END_TURN, "hi", [], (), Usage(), value="secret")
    assert repr(result).startswith("RunResult(run_id='r', stop_reason=")
    assert "secret" not in repr(result)


def test_values_are_matched_by_place_and_events_by_name() -> None:
    match PARTS[4]:
        case ToolCall(id, name, args, invalid):
            assert (id, name, args, invalid) == ("c1", "act", {"x": [1, {"y": None}]}, None)
        case _:
            pytest.fail("it is a call")
    assert TextStreamed.__match_args__ == ()


def test_the_kind_of_a_part_is_on_its_class_and_in_its_json() -> None:
    for part in PARTS:
        assert type(part).kind == part.kind == part.__struct_config__.tag
        assert MESSAGE.to_plain(Message("user", (part,)))["parts"][0]["kind"] == part.kind
    with pytest.raises(TypeError):
        Text("hi", kind="text")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # as before


def test_a_write_to_a_frozen_value_raises_attribute_error() -> None:
    with pytest.raises(AttributeError):
        Text("a").text = "b"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # the proof


def test_the_functions_of_dataclasses_work_on_a_value() -> None:
    assert [field.name for field in dataclasses.fields(Text)] == ["text", "incomplete", "kind"]
    assert dataclasses.asdict(PLAIN) == {
        "role": "assistant",
        "parts": (
            {"text": "hi", "incomplete": False, "kind": "text"},
            {"id": "c1", "name": "act", "args": {"x": 1}, "invalid": None, "kind": "tool_call"},
        ),
        "author": "a",
    }
    assert dataclasses.replace(PLAIN, author="b") == msgspec.structs.replace(PLAIN, author="b")
    event = RunStarted(run_id="r", path="a", seq=1, time=2.0, agent="a")
    assert dataclasses.replace(event, seq=2).seq == 2
    assert dataclasses.is_dataclass(RunResult)


def test_a_tool_that_returns_a_value_shows_its_fields() -> None:
    assert json.loads(render_result({"usage": Usage(1)}).text)["usage"]["input_tokens"] == 1


def test_two_ends_that_differ_in_what_is_not_stored_are_equal() -> None:
    end = Ended("r", StopReason.ERROR, 0, (), (), Usage(), None)
    assert end == msgspec.structs.replace(end, error=ValueError("x"))
    assert hash(end) == hash(msgspec.structs.replace(end, error=ValueError("x")))
    assert end != msgspec.structs.replace(end, index=1)


class Failure(Exception):
    def __init__(self, result: object) -> None:
        super().__init__("failed")
        self.result = result


def test_a_value_in_a_cycle_with_an_error_is_collected() -> None:
    error = Failure(None)
    error.result = RunResult("r", StopReason.ERROR, "", [], (), Usage(), error=error)
    gone = weakref.ref(error)
    del error
    gc.collect()
    assert gone() is None


def test_no_value_is_hidden_from_the_collector() -> None:
    import_module("safepoint.storage.operations")
    waiting = list(Value.__subclasses__())
    for kind in waiting:
        assert kind.__struct_config__.gc, kind
        assert kind.__struct_config__.frozen, kind
        waiting += kind.__subclasses__()
    assert len(waiting) > 50


# -- pydantic and FastAPI ----------------------------------------------------------------------------------------------


class Chat(BaseModel):
    message: Message
    usage: Usage


def test_pydantic_reads_and_writes_values_as_the_dataclasses_that_they_were() -> None:
    chat = Chat(message=PLAIN, usage=Usage(1))
    assert chat.message is PLAIN
    text = chat.model_dump_json()
    assert json.loads(text)["message"]["parts"][0] == {"text": "hi", "incomplete": False, "kind": "text"}
    assert Chat.model_validate_json(text) == chat
    schema = TypeAdapter(Message).json_schema()
    assert set(schema["properties"]) == {"role", "parts", "author"}
    assert {"Text", "ToolCall", "Notice"} <= schema["$defs"].keys()
    for kind in (Checkpoint, LedgerEntry, list[Message]):
        TypeAdapter(kind)
    with pytest.raises(ValidationError, match="'user', 'assistant' or 'tool'"):
        TypeAdapter(Message).validate_python({"role": "narrator", "parts": []})
    with pytest.raises(ValidationError, match="data=… or url=…"):
        TypeAdapter(Image).validate_python({"media_type": "image/png"})


def test_fastapi_answers_with_values() -> None:
    app = FastAPI()

    @app.get("/inferred")
    def inferred() -> Any:  # Any: FastAPI is to find out by itself
        return {"message": PLAIN}

    @app.post("/declared")
    def declared(message: Message) -> Message:
        return message

    client = TestClient(app)
    answer = client.get("/inferred").json()["message"]
    assert answer == jsonable_encoder(PLAIN)
    assert client.post("/declared", json=answer).json() == answer
    assert "Message" in client.get("/openapi.json").json()["components"]["schemas"]


# -- what the C encoder would change, or refuse ------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["half \ud83d", "\udc00", "whole \U0001f600", "\x00", '"\\'])
def test_text_comes_back_whole_also_half_a_surrogate_pair(text: str) -> None:
    message = Message("user", (Text(text), ToolCall("c", "t", {text: text})), text)
    assert MESSAGE.decode(MESSAGE.encode(message)) == message
    assert MESSAGE.decode(MESSAGE.encode(message).decode()) == message


@pytest.mark.parametrize("lost", [math.nan, math.inf, {1, 2}, datetime.date(2026, 1, 1), object()])
def test_an_argument_without_a_json_form_becomes_lost_and_never_another_value(lost: object) -> None:
    for codec, value in ((MESSAGE, Message("assistant", (ToolCall("c", "t", {"x": lost, "y": 1}),))),):
        call = codec.decode(codec.encode(value)).tool_calls[0]
        assert isinstance(call.args["x"], Lost)
        assert call.args["y"] == 1
    entry = ENTRY.decode(ENTRY.encode(LedgerEntry("c", "t", {"x": lost})))
    assert isinstance(entry.args["x"], Lost)


def test_bytes_come_back_as_bytes_in_arguments_and_in_pictures() -> None:
    message = Message("assistant", (Image(b"\xff\x00"), ToolCall("c", "t", {"x": b"\xff", "$bytes": "no"})))
    assert MESSAGE.decode(MESSAGE.encode(message)) == message


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_of_ours_that_json_does_not_have_is_refused_and_not_written_as_null(number: float) -> None:
    with pytest.raises(ValueError, match="no JSON form"):
        COUNTED.encode(Counted(1, Usage(), {"cost": number}))
    with pytest.raises(ValueError, match="no JSON form"):
        ENTRY.encode(LedgerEntry("c", "t", started_at=number))


class Words(str):
    """A str of the user's own."""


def test_what_an_untyped_caller_wrote_can_be_read_back() -> None:
    message = Message("user", (Text(Words("hi"), incomplete=1),))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # that is the point
    assert MESSAGE.decode(MESSAGE.encode(message)) == Message("user", (Text("hi", incomplete=True),))


def test_an_object_where_a_declared_value_belongs_is_refused_by_name() -> None:
    class Unknown: ...

    with pytest.raises(ValueError, match="Unknown has no JSON form"):
        Codec[Any](Message).encode(Message("user", (Unknown(),)))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # that is the point


@pytest.mark.parametrize(
    "data",
    [
        b'{"role":"user","parts":[{"kind":"song","text":"la"}]}',
        b'{"role":"user","parts":[{"kind":"text"}]}',
        b'{"role":"narrator","parts":[]}',
        b'{"role":"user","parts":[],"author":5}',
        b'{"parts":[]}',
        b"[]",
        b"{",
    ],
)
def test_a_message_that_is_none_is_refused_with_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # json's own, or ours with the path of the field
        MESSAGE.decode(data)


def test_a_message_of_earlier_files_without_an_author_is_read() -> None:
    data = b'{"role":"user","parts":[{"kind":"text","text":"hi","incomplete":false}]}'
    assert MESSAGE.decode(data) == Message("user", (Text("hi"),))
