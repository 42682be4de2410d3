"""What clients send to Safepoint's own routes. Names in camelCase or snake_case.

Unknown fields are refused: a cancel whose `at` is misspelt would stop at once otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Field, StrictBool, field_validator, model_validator

from safepoint._core.points import Level, SafePoint
from safepoint.agent.freeze import Freeze
from safepoint.agent.resume import OnUnknown
from safepoint.protocols.adk.requests import Content, Seconds, State, Strict, without_internals
from safepoint.serving.cancel_requests import StopRequest
from safepoint.serving.run_filter import RunFilter
from safepoint.storage.run_records import RunState

Patience = Annotated[float, Field(ge=0, le=60, allow_inf_nan=False, strict=True)]


class PreviewRequest(Strict):
    """Which stop is meant; all of it may be left out."""

    at: str | Annotated[list[str], Field(max_length=20)] = "now"
    recursive: StrictBool = False
    node: str | None = None

    @field_validator("at")
    @classmethod
    def _known(cls, at: str | list[str]) -> str | list[str]:
        SafePoint.parse(*([at] if isinstance(at, str) else at))
        return at

    @property
    def safe_point(self) -> SafePoint:
        return SafePoint.parse(*([self.at] if isinstance(self.at, str) else self.at))

    def request(self) -> StopRequest:
        return StopRequest(self.safe_point, recursive=self.recursive, node=self.node)


class CancelRequest(PreviewRequest):
    """The body of every cancel; all of it may be left out."""

    within_seconds: Seconds | None = None
    reason: Annotated[str, Field(max_length=500)] | None = None
    wait_seconds: Patience = 5.0
    run_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_claims(cls, given: Any) -> Any:  # Any: whatever was sent
        """The server itself says who asks, and how; a stop does not fail because the client claims another source."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in cast("State", given).items() if name not in ("source", "by")}

    @model_validator(mode="after")
    def _can_be_asked(self) -> CancelRequest:
        """Refused here, because the process that owns the run reads a stored request, and could refuse nothing."""
        if self.within_seconds is not None and self.safe_point.level is not Level.SAFE:
            raise ValueError(f"withinSeconds is for a safe point, and {self.at} is immediate already: leave it out")
        return self

    def request(self) -> StopRequest:
        return StopRequest(self.safe_point, self.within_seconds, self.recursive, self.node, self.wait_seconds)


class MoveRequest(Strict):
    """`to`: the worker that is to take the run; without it the one with most room."""

    to: Annotated[str, Field(max_length=64)] | None = None
    wait_seconds: Patience = 5.0


_Name = Annotated[str, Field(min_length=1, max_length=500)]


class CancelMany(CancelRequest):
    """Which runs: by what they are and what they do; or all of them, which has to be written out.

    `tool`: its call is under way. `olderThanSeconds`: since the message was accepted. `tokensOver`: what it has used.
    `metadata`: values of the `customMetadata` of its message. `dryRun`: nothing is asked; the answer lists what would
    stop, what that would cut, how long it may take, and what the runs have used.
    """

    app_name: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    agent: _Name | None = None
    tool: _Name | None = None
    state: Literal["queued", "live", "paused", "suspended"] | None = None
    older_than_seconds: Seconds | None = None
    tokens_over: Annotated[int, Field(ge=0, le=2**53, strict=True)] | None = None
    metadata: State | None = None
    all: StrictBool = False
    dry_run: StrictBool = False

    def filter(self) -> RunFilter:
        return RunFilter(
            app=self.app_name,
            user=self.user_id,
            session=self.session_id,
            run=self.run_id,
            state=None if self.state is None else RunState(self.state),
            agent=self.agent,
            tool=self.tool,
            older_than=self.older_than_seconds,
            tokens_over=self.tokens_over,
            metadata=self.metadata,
        )


class FreezeRequest(Strict):
    """What may not begin, and why. `at`: where live runs stop; without it they wait."""

    reason: Annotated[str, Field(min_length=1, max_length=500)]
    app_name: _Name | None = None
    user_id: _Name | None = None
    tool: _Name | None = None
    model: _Name | None = None
    at: str | Annotated[list[str], Field(max_length=20)] | None = None
    within_seconds: Seconds | None = None
    dry_run: StrictBool = False

    @model_validator(mode="after")
    def _can_be_obeyed(self) -> FreezeRequest:
        self.freeze(by="")
        return self

    def freeze(self, *, by: str) -> Freeze:
        """Raises ValueError."""
        points = () if self.at is None else (self.at,) if isinstance(self.at, str) else tuple(self.at)
        return Freeze(self.reason, self.app_name, self.user_id, self.tool, self.model, points, self.within_seconds, by)


class ThawRequest(Strict):
    """`id`: of one freeze; without it, all are thawed."""

    id: _Name | None = None


class SteerRequest(Strict):
    new_message: Content
    wait_seconds: Patience = 5.0

    @field_validator("new_message")
    @classmethod
    def _has_words(cls, message: Content) -> Content:
        if not message.prompt():
            raise ValueError("write at least one part with text, inlineData or fileData")
        return message


class ResumeRequest(Strict):
    """How a stopped run goes on: with answers by the id of their question, or with a message, or as it was.

    `on_unknown`: whether the model is told of calls with an unknown outcome, a person is asked, or they run again.
    """

    new_message: Content | None = None
    answers: State | None = None
    custom_metadata: State | None = None
    on_unknown: OnUnknown = "tell"

    @property
    def metadata(self) -> State | None:
        return None if self.custom_metadata is None else without_internals(self.custom_metadata)


class RewindRequest(Strict):
    """A live run is stopped first; then its turn is taken back."""

    reason: Annotated[str, Field(max_length=500)] | None = None
