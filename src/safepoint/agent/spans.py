"""A run's events as OpenTelemetry spans, named by the conventions for generative AI.

    invoke_agent NAME                  the run, below its caller's span; for a composite, invoke_workflow
    ├─ chat MODEL                      each try of each model call
    └─ execute_tool NAME               each tool call that started
       └─ invoke_agent NAME            a sub-agent, and likewise any span that the tool makes itself, also in a thread

Starts and ends are paired on every path, so every span is ended. Nesting follows from the task in which a start event
is emitted: the task that starts. There the span becomes the current one, and everything that task begins inherits it.
The task of a model call or a tool call ends with it, so nothing has to be restored. A cancel is no error: it leaves the
status unset and is reported in attributes `safepoint.cancel.*`.

Facts that an event does not carry are described right after it, in the same task: `describe` finds the span there.

Imported only where OpenTelemetry is installed: see `telemetry`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

from opentelemetry import context as current
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import Meter
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, Tracer

from safepoint._core.endings import Cancellation
from safepoint._core.ladder import Rung
from safepoint._core.points import Level
from safepoint.agent.events import (
    Event,
    ModelCallEnded,
    ModelCallStarted,
    ReasoningStreamed,
    RunEnded,
    RungReached,
    RunStarted,
    TextStreamed,
    ToolCallEnded,
    ToolCallStarted,
)
from safepoint.agent.model import Finish, Model, ModelRequest
from safepoint.agent.run import Run
from safepoint.agent.span_content import arguments_json, cut, is_captured, messages_json, request_content
from safepoint.agent.span_metrics import Metrics
from safepoint.agent.usage import Usage
from safepoint.history.states import LedgerState
from safepoint.tools.base import ToolSpec

Value: TypeAlias = str | float | bool | Sequence[str]
Attributes: TypeAlias = Mapping[str, Value]
# A run and a part of it: None for the run itself, `_MODEL`, or the id of a tool call.
Key: TypeAlias = tuple[str, str | None]

_MODEL = "model call"
_CLIMB = list(Rung)
_OPEN: Final = current.create_key("safepoint-span")
_FINISHES: Final = {"end_turn": "stop", "tool_calls": "tool_call", "max_tokens": "length", "refused": "content_filter"}
"""Safepoint's finish reasons, in the words of the conventions."""
REMEMBERED: Final = 1024
"""How many spans of stopped runs are kept, for the runs that continue them."""
_stopped: OrderedDict[str, SpanContext] = OrderedDict()


def make_listener() -> Callable[[Event], None] | None:
    """The listener for a run's events; None while no provider is set, because the spans would go nowhere."""
    untraced = isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    # The class of the default meter provider has no public name.
    unmeasured = type(metrics.get_meter_provider()).__name__ == "_ProxyMeterProvider"
    if untraced and unmeasured:
        return None
    return Spans(trace.get_tracer("safepoint"), metrics.get_meter("safepoint"))


@dataclass(slots=True)
class _Open:
    """A span under way. `token` restores the span that was current before, in the task where this one started.

    `work` is its name on the ladder; `about` holds the facts about it, and `since` the time it started.
    """

    work: str
    span: Span
    about: dict[str, Value]
    since: float
    captures: bool
    token: Token[Context] | None = None
    rungs: list[Rung] = field(default_factory=list[Rung])
    has_words: bool = False

    def tell(self, about: Attributes) -> None:
        self.about.update(about)
        self.span.set_attributes(about)


def describe(*facts: object) -> None:
    """Add facts to the span that the running task has just started; does nothing if it is not one of Safepoint's."""
    opened = current.get_value(_OPEN)
    if not isinstance(opened, _Open):
        return
    match facts:
        case (Run(),):
            _describe_run(opened, cast("Run[Any, Any]", facts[0]))
        case (Model() as model, ModelRequest() as request):
            opened.tell(_request_attributes(model, request))
            if opened.captures:
                opened.span.set_attributes(request_content(request))
        case (Finish() as finish,):
            opened.tell(_reply_attributes(finish))
        case (ToolSpec() as spec,) if spec.description:
            opened.tell({"gen_ai.tool.description": spec.description})
        case _:
            pass


def _describe_run(opened: _Open, run: Run[Any, Any]) -> None:  # Any: a run of every agent
    session = getattr(run.session_around, "id", None)
    if isinstance(session, str):
        opened.tell({"gen_ai.conversation.id": session})
    if hasattr(run.agent, "members"):  # a composite: it has no model of its own
        opened.tell({"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": run.agent.name})
        opened.span.update_name(f"invoke_workflow {run.agent.name}")
    stopped = _stopped.get(run.continues or "")
    if stopped is not None:
        opened.span.add_link(stopped, {"safepoint.link": "continues"})


def _request_attributes(model: Model, request: ModelRequest) -> Attributes:
    settings = request.settings
    attributes: dict[str, Value] = {"gen_ai.request.stream": True}
    if settings.temperature is not None:
        attributes["gen_ai.request.temperature"] = settings.temperature
    if settings.max_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = settings.max_tokens
    if settings.stop:
        attributes["gen_ai.request.stop_sequences"] = tuple(settings.stop)
    url: object = getattr(model, "server_url", None)
    if isinstance(url, str) and (host := (parts := urlsplit(url)).hostname):
        attributes |= {"server.address": host, "server.port": parts.port or (80 if parts.scheme == "http" else 443)}
    return attributes


def _reply_attributes(finish: Finish) -> Attributes:
    attributes: dict[str, Value] = {"gen_ai.response.finish_reasons": (_FINISHES.get(finish.reason, finish.reason),)}
    if finish.response_id:
        attributes["gen_ai.response.id"] = finish.response_id
    if finish.response_model:
        attributes["gen_ai.response.model"] = finish.response_model
    return attributes


class Spans:
    """Makes the spans and metrics of one tree of runs. `content`: include messages; None reads the environment."""

    def __init__(self, tracer: Tracer, meter: Meter | None = None, *, content: bool | None = None) -> None:
        self._tracer = tracer
        self._metrics = Metrics(meter) if meter is not None else None
        self._captures = is_captured(os.environ) if content is None else content
        self._open: dict[Key, _Open] = {}

    def __call__(self, event: Event) -> None:
        run = event.run_id
        match event:
            case RunStarted(agent=agent):
                about: dict[str, Value] = {"gen_ai.agent.name": agent, "safepoint.run.id": run}
                self._start((run, None), event, "invoke_agent", agent, about)
            case ModelCallStarted():
                self._start_model_call(event)
            case TextStreamed() | ReasoningStreamed():
                self._hear_words(event)
            case ToolCallStarted():
                self._start_tool_call(event)
            case RungReached():
                self._climb(event)
            case ModelCallEnded():
                self._end_model_call(event)
            case ToolCallEnded():
                self._end_tool_call(event)
            case RunEnded():
                self._end_run(event)
            case _:
                pass

    def _start_model_call(self, event: ModelCallStarted) -> None:
        """Use the provider's names: price tables know them, not the string that chooses a model here."""
        name = event.model_name or event.model
        about: dict[str, Value] = {"gen_ai.request.model": name}
        if event.provider_name is not None:
            about["gen_ai.provider.name"] = event.provider_name
        key = (event.run_id, _MODEL)
        self._start(key, event, "chat", name, about, work=event.model)

    def _start_tool_call(self, event: ToolCallStarted) -> None:
        call = event.call
        about: dict[str, Value] = {
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
        }
        self._start((event.run_id, call.id), event, "execute_tool", call.name, about)
        if self._captures:
            arguments = {"gen_ai.tool.call.arguments": arguments_json(call.args)}
            self._open[event.run_id, call.id].span.set_attributes(arguments)

    def _start(
        self, key: Key, event: Event, operation: str, name: str, about: dict[str, Value], *, work: str | None = None
    ) -> None:
        attributes = {"gen_ai.operation.name": operation, **about, **self._inherited(key)}
        kind = SpanKind.CLIENT if operation == "chat" else SpanKind.INTERNAL
        span = self._tracer.start_span(f"{operation} {name}", kind=kind, attributes=attributes)
        opened = self._open[key] = _Open(work or name, span, attributes, event.time, self._captures)
        opened.token = current.attach(current.set_value(_OPEN, opened, trace.set_span_in_context(span)))

    def _inherited(self, key: Key) -> dict[str, Value]:
        """The attributes that a run's spans share: its conversation and, on a tool call, the agent."""
        run = self._open.get((key[0], None)) if key[1] is not None else None
        names = ("gen_ai.conversation.id",) if key[1] == _MODEL else ("gen_ai.conversation.id", "gen_ai.agent.name")
        return {name: run.about[name] for name in names if name in run.about} if run is not None else {}

    def _hear_words(self, event: TextStreamed | ReasoningStreamed) -> None:
        opened = self._open.get((event.run_id, _MODEL))
        if opened is not None and not opened.has_words:
            opened.has_words = True
            if self._metrics is not None:
                self._metrics.first_words(opened.about, event.time - opened.since)

    def _climb(self, event: RungReached) -> None:
        run, work = self._open.get((event.run_id, None)), self._open.get((event.run_id, event.call_id or _MODEL))
        if run is not None:
            run.rungs.append(event.rung)
        if work is not None and work.work == event.name:  # a hook beside the work has its own name
            work.rungs.append(event.rung)

    def _end_run(self, event: RunEnded) -> None:
        for key in [key for key in self._open if key[0] == event.run_id and key[1] is not None]:
            _end(self._open.pop(key), event.cancellation, event.error)  # a run that broke emitted no other end
        opened = self._open.pop((event.run_id, None))
        if opened.token is not None:
            current.detach(opened.token)  # a sub-agent's run shares the task of its call, whose span is current again
        opened.span.set_attribute("safepoint.stop_reason", str(event.stop_reason))
        _tell_usage(opened.span, event.usage)
        if event.cancellation is not None and self._metrics is not None:
            self._metrics.stopped(event.cancellation)
        _remember(event.run_id, opened.span.get_span_context())
        _end(opened, event.cancellation, event.error)

    def _end_model_call(self, event: ModelCallEnded) -> None:
        opened = self._open.pop((event.run_id, _MODEL))
        _tell_usage(opened.span, event.usage)
        if self._metrics is not None:
            self._metrics.model_call_ended(opened.about, event.time - opened.since, event.usage, event.error)
        if self._captures and event.message is not None:
            opened.span.set_attribute("gen_ai.output.messages", messages_json([event.message]))
        _end(opened, event.cancellation, event.error)

    def _end_tool_call(self, event: ToolCallEnded) -> None:
        opened = self._open.pop((event.run_id, event.entry.call_id), None)
        if opened is None:
            return  # it never started
        entry = event.entry
        opened.span.set_attribute("safepoint.tool.state", str(entry.state))
        if self._captures and entry.content is not None:
            opened.span.set_attribute("gen_ai.tool.call.result", cut(entry.content))
        if entry.state is LedgerState.FAILED:
            opened.span.set_attribute("error.type", "_OTHER")
            opened.span.set_status(Status(StatusCode.ERROR, entry.error))
        _end(opened, event.cancellation, None)


def _remember(run_id: str, span: SpanContext) -> None:
    _stopped[run_id] = span
    _stopped.move_to_end(run_id)
    while len(_stopped) > REMEMBERED:
        _stopped.popitem(last=False)


def _end(opened: _Open, cancellation: Cancellation | None, error: BaseException | None) -> None:
    span = opened.span
    if cancellation is not None:
        span.set_attributes(_cancel_attributes(cancellation, opened.rungs))
    elif error is not None:
        span.set_attribute("error.type", type(error).__qualname__)
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
    span.end()


def _cancel_attributes(cancellation: Cancellation, rungs: list[Rung]) -> Attributes:
    reason = cancellation.reason
    attributes: dict[str, Value] = {
        "safepoint.cancel.reason": reason.text,
        "safepoint.cancel.source": str(reason.source),
        "safepoint.cancel.level": cancellation.level.name.lower(),
        "safepoint.cancel.place": cancellation.place,
        "safepoint.cancel.latency": cancellation.stopped_at - cancellation.asked_at,
        "safepoint.cancel.escalated": cancellation.escalated,
        "safepoint.cancel.timed_out": cancellation.timed_out,
    }
    if reason.by is not None:
        attributes["safepoint.cancel.by"] = reason.by
    if rungs:
        attributes["safepoint.cancel.rung"] = str(max(rungs, key=_CLIMB.index))
    elif cancellation.level is Level.SAFE:
        attributes["safepoint.cancel.rung"] = "safe_point"
    return attributes


def _tell_usage(span: Span, usage: Usage) -> None:
    span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
    span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)
    if usage.cached_tokens:
        span.set_attribute("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens)
    if usage.reasoning_tokens:
        span.set_attribute("gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens)
    span.set_attribute("safepoint.usage.estimated", usage.estimated)
