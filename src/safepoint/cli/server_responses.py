"""What a Safepoint server answers, as far as the commands read it.

Anything may be at an address. An answer is read through one of these shapes or not at all, so that what another
service says ends in one line and not in a traceback. Fields that no command reads are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel


class ServerAnswer(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, frozen=True, strict=True)


class Why(ServerAnswer):
    text: str | None = None


class RunAnswer(ServerAnswer):
    """`events`: how many it has told, if the server knows that."""

    run_id: str
    state: str
    outcome: str | None = None
    app_name: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    created_at: float | None = None
    reason: Why | None = None
    events: int | None = None
    frozen: str | None = None
    waits_for: str | None = None


class UsageAnswer(ServerAnswer):
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class CallFate(ServerAnswer):
    name: str
    fate: str


class WouldStop(ServerAnswer):
    run_id: str
    state: str
    app_name: str
    user_id: str
    calls: list[CallFate] = []
    seconds: float | None = None
    usage: UsageAnswer | None = None


class DryRunAnswer(ServerAnswer):
    status: Literal["dry_run"]
    runs: list[WouldStop]


class FreezeAnswer(ServerAnswer):
    id: str
    reason: str
    app_name: str | None = None
    user_id: str | None = None
    tool: str | None = None
    model: str | None = None
    by: str = ""
    frozen_at: float | None = None


class ConcernedAnswer(ServerAnswer):
    """`fate`: None for a run of another process."""

    run_id: str
    state: str
    app_name: str
    user_id: str
    fate: str | None = None
    cut: list[str] = []
    seconds: float | None = None
    tokens_spent: int | None = None


class FrozenAnswer(ServerAnswer):
    """`frozen`: None for a dry run."""

    frozen: FreezeAnswer | None
    runs: list[ConcernedAnswer]


class ThawedAnswer(ServerAnswer):
    thawed: list[FreezeAnswer]


class WorkerAnswer(ServerAnswer):
    id: str
    host: str
    version: str
    apps: list[str]
    room: int
    live: int
    queued: int
    lease_left: float
    draining: bool


class WaitingAnswer(ServerAnswer):
    app: str
    runs: int
    seconds: float
    workers: int


class WorkersAnswer(ServerAnswer):
    workers: list[WorkerAnswer]
    waiting: list[WaitingAnswer]


class MoveAnswer(ServerAnswer):
    run_id: str
    outcome: Literal["moved", "moving"]
    worker: str


class Orphaned(ServerAnswer):
    name: str


class Stopped(ServerAnswer):
    run_id: str
    durable: bool
    outcome: str | None = None
    orphans: list[Orphaned] = []


class StopAnswer(ServerAnswer):
    """`runs`: those that were asked to stop; None if the named run is over already."""

    status: Literal["cancelled", "cancelling", "ended"]
    outcome: str | None = None
    runs: list[Stopped] | None = None

    @model_validator(mode="after")
    def _tells_its_runs(self) -> StopAnswer:
        if (self.runs is None) is not (self.status == "ended"):
            raise ValueError("the runs that were asked, or the end of one that is over")
        return self


class SteerAnswer(ServerAnswer):
    outcome: str
    reason: str | None = None


class Held(ServerAnswer):
    name: str
    path: str
    rung: str | None = None
    seconds: float | None = None
    stack: str | None = None


class WhyAnswer(ServerAnswer):
    """`reason`: why the process that has the run could not be asked; then `asked` is None."""

    state: str
    holding: list[Held] = []
    asked: list[str] | None = None
    outcome: str | None = None
    reason: str | None = None


class TreePart(ServerAnswer):
    """An agent or a call. `model`: when its model calls began and ended."""

    name: str
    kind: str
    state: str
    model: list[list[float | None]] = []


class TreeAnswer(ServerAnswer):
    nodes: list[TreePart] = []
    asked: list[str] | None = None
    holding: list[Held] = []
    usage: UsageAnswer | None = None


class ResumeAnswer(ServerAnswer):
    run_id: str


class Question(ServerAnswer):
    id: str
    kind: str
    payload: object = None


class Metadata(ServerAnswer):
    safepoint_questions: list[Question] = []

    @field_validator("safepoint_questions", mode="wrap")
    @classmethod
    def _or_none(cls, given: object, read: Callable[[object], list[Question]]) -> list[Question]:
        """Clients write their own metadata, and may have used this name."""
        try:
            return read(given)
        except ValidationError:
            return []


class CallPart(ServerAnswer):
    name: str | None = None
    args: dict[str, object] = {}


class ResultPart(ServerAnswer):
    name: str | None = None
    response: dict[str, object] = {}

    @property
    def output(self) -> str:
        """Of a call that still runs: what it has told."""
        output = self.response.get("output", "")
        return output if isinstance(output, str) else ""


class Part(ServerAnswer):
    model_config = ConfigDict(extra="allow")

    text: str | None = None
    function_call: CallPart | None = None
    function_response: ResultPart | None = None

    @property
    def words(self) -> str:
        """What comes bit by bit."""
        return self.text or (self.function_response.output if self.function_response is not None else "")

    @property
    def other_fields(self) -> Mapping[str, Any]:  # Any: JSON
        """What it is instead, by name."""
        return self.__pydantic_extra__ or {}


class Content(ServerAnswer):
    parts: list[Part] = []


class EventAnswer(ServerAnswer):
    """One without an `id` tells only that the stream ended badly."""

    id: str | None = None
    partial: bool = False
    author: str = ""
    timestamp: float = 0.0
    content: Content = Content()
    error_code: str | None = None
    error_message: str | None = None
    long_running_tool_ids: list[str] = []
    custom_metadata: Metadata = Metadata()


class SessionAnswer(ServerAnswer):
    events: list[EventAnswer]
