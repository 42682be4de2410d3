"""The frames of a live socket, in both directions. Pure.

In: ADK's LiveRequest. What is said in text is honoured; what needs audio or video is refused, by name. Out: events, and
an error is an event too, so a client that reads events can read every frame.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from safepoint.protocols.adk.events import event_json
from safepoint.protocols.adk.requests import CancelAfter, Content, OnDisconnect, State
from safepoint.protocols.json_limits import find_problem
from safepoint.protocols.json_text import as_text
from safepoint.serving.events import MessageEvent, Turn
from safepoint.sessions.dispatch import IfBusy

_AUDIO = ("blob", "activity_start", "activity_end", "audio_stream_end")
_AUDIO_QUERY = ("proactive_audio", "enable_affective_dialog", "explicit_vad_signal", "save_live_blob")


class BadFrame(ValueError):
    """Answered with an error frame; the socket goes on."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class FrameLimits(Protocol):
    """What one socket may send: the part of the server's limits that is about frames."""

    @property
    def json_depth(self) -> int: ...
    @property
    def json_values(self) -> int: ...
    @property
    def body_bytes(self) -> int: ...
    @property
    def socket_messages(self) -> int: ...
    @property
    def bad_frames(self) -> int: ...


class Intake:
    """How many frames one socket may still send. `clock`: seconds that only go up.

    Messages fill a bucket that holds a second's worth and leaks at that rate; frames that can't be read are counted
    for as long as the socket lives.
    """

    def __init__(self, limits: FrameLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._level = 0.0
        self._at = clock()
        self._bad = 0

    def message(self) -> str | None:
        """Count one; why it is one too many, if it is."""
        rate, now = self._limits.socket_messages, self._clock()
        self._level = max(0.0, self._level - (now - self._at) * rate) + 1
        self._at = now
        return f"more than {rate} messages in a second" if self._level > rate else None

    def bad_frame(self) -> str | None:
        """As `message`, of a frame that can't be read."""
        self._bad += 1
        limit = self._limits.bad_frames
        return f"more than {limit} frames that can't be read" if self._bad > limit else None


class LiveRequest(BaseModel):
    """`partial`: more of this message follows, and nothing runs before it is whole."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    content: Content | None = None
    close: bool = False
    partial: bool = False
    state_delta: State | None = None
    blob: Any = None  # Any: audio, which is refused whatever it is
    activity_start: Any = None  # Any: JSON values
    activity_end: Any = None  # Any: JSON values
    audio_stream_end: Any = None  # Any: JSON values


class LiveQuery(BaseModel):
    """The address of a live socket: ADK's words, and `if_busy`, `on_disconnect` or `cancel_after` of ours."""

    app_name: str | None = None
    user_id: str
    session_id: str
    modalities: list[str] = Field(default_factory=list[str])
    proactive_audio: bool = False
    enable_affective_dialog: bool = False
    explicit_vad_signal: bool = False
    save_live_blob: bool = False
    if_busy: IfBusy = "reject"
    on_disconnect: Annotated[str, Field(pattern="^(cancel|detach)$")] = "cancel"
    cancel_after: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] | None = None  # a query is text

    @property
    def policy(self) -> OnDisconnect:
        if self.cancel_after is not None:
            return CancelAfter(cancel_after=self.cancel_after)
        return "detach" if self.on_disconnect == "detach" else "cancel"

    @property
    def refusal(self) -> str | None:
        """What it asks for that is not there."""
        other = [each for each in self.modalities if each.upper() != "TEXT"]
        if other:
            return f"modalities={other[0][:20]}: this server speaks TEXT only"
        audio = [name for name in _AUDIO_QUERY if getattr(self, name)]
        return f"{audio[0]}: this server speaks TEXT only" if audio else None


def read_frame(text: str | None, limits: FrameLimits) -> LiveRequest:
    """Raises `BadFrame`, with what was wrong."""
    if text is None:
        raise BadFrame("BAD_FRAME", "a binary frame: send text frames, each a LiveRequest as JSON")
    problem = find_problem(text.encode(), depth=limits.json_depth, values=limits.json_values)
    if problem is not None:
        raise BadFrame("BAD_FRAME", problem.text)
    try:
        found = LiveRequest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise BadFrame("BAD_FRAME", f"{where}: {first['msg']}" if where else str(first["msg"])) from None
    audio = [name for name in _AUDIO if getattr(found, name) is not None]
    if audio:
        raise BadFrame("UNSUPPORTED", f"{audio[0]}: this server speaks text; send content with text parts")
    if found.content is None and not found.close and not found.state_delta:
        raise BadFrame("BAD_FRAME", "an empty frame: send content, state_delta or close")
    return found


def error_frame(code: str, text: str, app: str) -> str:
    event = event_json(MessageEvent(Turn(str(uuid.uuid4()), app), 0, time.time()))
    return as_text({**event, "invocationId": "", "errorCode": code, "errorMessage": text})
