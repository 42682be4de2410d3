"""What the server answers, as `/openapi.json` describes it.

Answers are made as plain JSON (`answers.py`, `wire_events.py`): nothing is built from these classes, and nothing is
checked against them while it is served. The tests hold every answer to them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.json_schema import SkipJsonSchema

from safepoint.storage.run_records import RunState

Values = dict[str, Any]  # Any: JSON values
# Of a field that is left out where there is nothing to tell. No answer has a null.
Absent = SkipJsonSchema[None]


def _without_nulls(schema: Values) -> None:
    for field in schema.get("properties", {}).values():
        if "default" in field and field["default"] is None:
            del field["default"]


class _Answer(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, json_schema_extra=_without_nulls)


# -- errors ------------------------------------------------------------------------------------------------------------


class LastRun(_Answer):
    run_id: str
    outcome: str | Absent = None


class Error(_Answer):
    """Why a request was refused. `lastRun`: of a session that has no active run to cancel."""

    detail: str
    last_run: LastRun | Absent = None


class FieldError(BaseModel):
    """`loc`: where in the request; `input`: a glimpse of what was there."""

    type: str
    loc: list[str | int]
    msg: str
    input: Any = None  # Any: JSON
    ctx: Values | Absent = None


class Invalid(BaseModel):
    """What is wrong with a request of the wrong shape, the first of it."""

    detail: list[FieldError]


# -- sessions and events -----------------------------------------------------------------------------------------------


class FunctionCall(_Answer):
    id: str
    name: str
    args: Values


class FunctionResponse(_Answer):
    """`willContinue`: the call still runs, and this is what it tells; only in partial events."""

    id: str
    name: str
    response: Values
    will_continue: bool | Absent = None


class InlineData(_Answer):
    """`data`: in base64."""

    mime_type: str
    data: str


class FileData(_Answer):
    file_uri: str
    mime_type: str


class EventPart(_Answer):
    """A text, which may be a thought, or one of the others."""

    text: str | Absent = None
    thought: bool | Absent = None
    function_call: FunctionCall | Absent = None
    function_response: FunctionResponse | Absent = None
    inline_data: InlineData | Absent = None
    file_data: FileData | Absent = None


class EventContent(_Answer):
    role: Literal["user", "model"]
    parts: list[EventPart]


class Actions(_Answer):
    state_delta: Values
    artifact_delta: Values
    requested_auth_configs: Values
    requested_tool_confirmations: Values


class NodeInfo(_Answer):
    path: str


class UsageMetadata(_Answer):
    prompt_token_count: int
    candidates_token_count: int
    total_token_count: int


class Event(_Answer):
    """One message of a conversation, or, if it is `partial`, a piece of one, under the same id.

    `errorCode` and `errorMessage`: how a run ended that has no answer. `longRunningToolIds`: the calls that wait for a
    person. `customMetadata`: what came with the message, and `safepointLedger`, `safepointQuestions` of a run that was
    stopped or waits. `turnComplete`: on a WebSocket, the last event of a run.
    """

    id: str
    invocation_id: str
    author: str
    timestamp: float
    actions: Actions
    node_info: NodeInfo
    content: EventContent | Absent = None
    partial: bool | Absent = None
    interrupted: bool | Absent = None
    turn_complete: bool | Absent = None
    long_running_tool_ids: list[str] | Absent = None
    error_code: str | Absent = None
    error_message: str | Absent = None
    usage_metadata: UsageMetadata | Absent = None
    custom_metadata: Values | Absent = None


class Session(_Answer):
    """In a list it has no `events`. `lastUpdateTime`: in seconds since 1970."""

    id: str
    app_name: str
    user_id: str
    state: Values
    events: list[Event]
    last_update_time: float


# -- runs --------------------------------------------------------------------------------------------------------------


class Usage(_Answer):
    input_tokens: int
    output_tokens: int
    estimated: bool


class StopReason(_Answer):
    """Why a run was stopped (`text`, `source`, `by`), or failed (`error`, `text`)."""

    text: str
    source: str | Absent = None
    by: str | None = None
    error: str | Absent = None


class Run(_Answer):
    """`outcome`: how it ended. `continues`: the run that it goes on with. `frozen`: why it waits. `waits_for`: what no
    worker has, such as `app travel`.

    Times: in seconds since 1970.
    """

    run_id: str
    state: RunState
    created_at: float
    invocation_id: str | Absent = None
    app_name: str | Absent = None
    user_id: str | Absent = None
    session_id: str | Absent = None
    outcome: str | Absent = None
    events: int | Absent = None
    reason: StopReason | Absent = None
    usage: Usage | Absent = None
    ended_at: float | Absent = None
    continues: str | Absent = None
    frozen: str | Absent = None
    waits_for: str | Absent = None


class Touched(_Answer):
    path: str
    name: str
    state: str


class LeftBehind(_Answer):
    """A piece of work that did not stop and was abandoned. `stack`: for the admin key."""

    name: str
    path: str
    rung: str
    age: float
    still_running: bool
    stack: str | Absent = None


class CancelledRun(_Answer):
    """`outcome`: absent while it is still stopping. `durable`: the cancel would outlive a crash of the server."""

    run_id: str
    requested: bool
    durable: bool
    outcome: str | Absent = None
    ask_id: str | Absent = None
    stopped_at: float | Absent = None
    touched: list[Touched] | Absent = None
    orphans: list[LeftBehind] | Absent = None
    queued: list[str] | Absent = None
    unheard: list[str] | Absent = None
    usage: Usage | Absent = None
    cut_usage: Usage | Absent = None
    next_usage: Usage | Absent = None


class CancelledMany(_Answer):
    """`status`: `cancelling` while one of them is not over."""

    status: Literal["cancelled", "cancelling"]
    runs: list[CancelledRun]


class Cancelled(CancelledMany):
    """The id of the session comes twice: `session_id` is ADK's name for it."""

    session: str = Field(alias="sessionId")
    adk_session: str = Field(alias="session_id")


class Freeze(_Answer):
    """What may not begin now. `at`: where live runs were asked to stop; without it they wait."""

    id: str
    reason: str
    app_name: str | Absent = None
    user_id: str | Absent = None
    tool: str | Absent = None
    model: str | Absent = None
    at: list[str] | Absent = None
    within_seconds: float | Absent = None
    by: str
    frozen_at: float


class FreezeConcerns(_Answer):
    """`fate`: `waits` or `stops`; absent for a run that another process has. `cut`: calls that the stop would cut."""

    run_id: str
    app_name: str
    user_id: str
    session_id: str
    state: str
    agent: str | Absent = None
    fate: str | Absent = None
    cut: list[str] | Absent = None
    seconds: float | Absent = None
    tokens_spent: int | Absent = None


class Frozen(_Answer):
    """`frozen`: null for a dry run. `runs`: those that are live now, and what becomes of them."""

    frozen: Freeze | None
    runs: list[FreezeConcerns]


class Thawed(_Answer):
    thawed: list[Freeze]


class EndedRun(Run):
    """The run to be cancelled was over already: as it ended."""

    status: Literal["ended"]


class Holding(_Answer):
    """What holds a stopping run. `stack`: for the admin key."""

    name: str
    path: str
    rung: str | Absent = None
    seconds: float | Absent = None
    seconds_left: float | Absent = None
    stack: str | Absent = None
    kind: str | Absent = None
    effect: str | Absent = None
    pid: int | Absent = None
    call_id: str | Absent = None
    waits_for: list[str] | Absent = None


class Why(_Answer):
    """`asked`: where it is to stop, empty if no stop was requested. `reason`: why its owner could not be asked."""

    run_id: str
    state: RunState
    outcome: str | Absent = None
    asked: list[str] | Absent = None
    holding: list[Holding] | Absent = None
    reason: str | Absent = None


class NodeAsk(_Answer):
    """A request to stop: which node it reached, where that is to stop, and who asked."""

    path: str
    at: list[str]
    reason: StopReason
    id: str | Absent = None
    time: float | Absent = None


class NodeRung(_Answer):
    rung: str
    at: float


class TreeNode(_Answer):
    """An agent or a call. `model`: when its model calls began and ended. Times: in seconds since 1970."""

    path: str
    name: str
    kind: Literal["agent", "tool"]
    state: str
    call_id: str | Absent = None
    arguments: dict[str, str] | Absent = None
    effect: str | Absent = None
    work: str | Absent = None
    started_at: float | Absent = None
    ended_at: float | Absent = None
    step: int | Absent = None
    retries: int | Absent = None
    still_running: bool | Absent = None
    error: str | Absent = None
    model: list[list[float | None]] | Absent = None
    rungs: list[NodeRung] | Absent = None


class Tree(_Answer):
    """`now`: the server's clock. `orphans`: the paths of what was let go, if the run is over."""

    run: Run
    now: float
    nodes: list[TreeNode]
    asks: list[NodeAsk]
    holding: list[Holding]
    asked: list[str] | Absent = None
    usage: Usage | Absent = None
    orphans: list[str] | Absent = None


class PreviewedCall(_Answer):
    """`seconds`: how long its stop may take at most; absent for a call that runs to its own end."""

    path: str
    name: str
    call_id: str
    effect: str
    work: str
    fate: str
    seconds: float | Absent = None
    remote: bool | Absent = None


class Previewed(_Answer):
    """`seconds`: how long the stop may take at most; absent if it waits for work without a limit."""

    run_id: str
    at: list[str]
    calls: list[PreviewedCall]
    seconds: float | Absent = None


class WouldStop(_Answer):
    """A run that a bulk cancel would stop. `reason`: why its process could not be asked what would be cut."""

    run_id: str
    app_name: str
    user_id: str
    session_id: str
    state: str
    created_at: float
    calls: list[PreviewedCall]
    seconds: float | Absent = None
    usage: Usage | Absent = None
    reason: str | Absent = None


class CancelDryRun(_Answer):
    """Nothing was asked."""

    status: Literal["dry_run"]
    runs: list[WouldStop]


class Chat(_Answer):
    """A session by its first words. `lastRun`: its newest run."""

    session_id: str
    title: str
    updated_at: float
    last_run: Run | Absent = None


class Steered(_Answer):
    """`waiting`: no model call has followed yet; the message joins the next one, if there is one."""

    run_id: str
    outcome: Literal["joined", "too_late", "waiting"]
    reason: str | Absent = None


class Withdrawn(_Answer):
    run_id: str
    ask_id: str
    outcome: Literal["withdrawn", "too_late"]
    reason: str | Absent = None


class Effect(_Answer):
    """A call whose effect remains in the world."""

    call_id: str
    name: str
    state: str
    effect: str
    still_running: bool | Absent = None


class Rewound(_Answer):
    """`messages`: how many were taken back."""

    run_id: str
    outcome: Literal["rewound"]
    messages: int
    effects: list[Effect]


# -- workers -----------------------------------------------------------------------------------------------------------


class Worker(_Answer):
    """`room`: how many runs of others it takes at a time, 0 for one that only accepts. `lease_left`: in seconds."""

    id: str
    host: str
    pid: int
    version: str
    apps: list[str]
    room: int
    live: int
    queued: int
    lease_left: float
    draining: bool


class Waiting(_Answer):
    """Runs of an app that no worker has taken yet. `workers`: how many could; 0: they wait for the app."""

    app: str
    runs: int
    seconds: float
    workers: int


class Workers(_Answer):
    workers: list[Worker]
    waiting: list[Waiting]


class Moved(_Answer):
    """`outcome`: `moved`, or `moving` while it has not come to a safe point or was not taken yet."""

    run_id: str
    outcome: Literal["moved", "moving"]
    worker: str


# -- the server --------------------------------------------------------------------------------------------------------


class Details(_Answer):
    ready: bool
    draining: bool
    store: Literal["ok", "out of reach"]
    changes: Literal["pushed", "polled"]


class Health(_Answer):
    status: Literal["ok"]
    details: Details


class Readiness(_Answer):
    status: Literal["ok", "unavailable"]
    details: Details


class Version(BaseModel):
    version: str
    language: str
    language_version: str


class AgentInfo(BaseModel):
    name: str
    description: str
    instruction: str
    tools: list[Values]
    sub_agents: list[str]


class AppInfo(_Answer):
    """`agents`: all that the app is made of, by name."""

    name: str
    root_agent_name: str
    description: str
    language: str
    is_computer_use: bool
    agents: dict[str, AgentInfo]


class BrokenApp(_Answer):
    name: str
    error: str


class Apps(_Answer):
    """With `detailed=true`; `broken`: the apps that could not be loaded."""

    apps: list[AppInfo]
    broken: list[BrokenApp]
