"""A run's events as OpenTelemetry spans, named by the conventions for generative AI.

    invoke_agent NAME                  the run; below whatever span its caller was in
    ├─ chat MODEL                      each try of each model call
    └─ execute_tool NAME               each tool call that started
       └─ invoke_agent NAME            a sub-agent, and likewise any span that the tool makes itself, also in a thread

Starts and ends are paired on every path, so every span is ended. Nesting comes from where a start is told: inside the
task that starts. There the span becomes the current one, and what that task begins inherits it. The task of a model
call or a tool call ends with it, so nothing has to be put back. A cancel is no error: it leaves the status unset and
is told in attributes `safepoint.cancel.*`.

Imported only where OpenTelemetry is installed: see `telemetry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Token
from dataclasses import dataclass, field
from typing import TypeAlias

from opentelemetry import context as current
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from safepoint._core.endings import Cancellation
from safepoint._core.ladder import Rung
from safepoint._core.points import Level
from safepoint.agent.events import (
    Event,
    ModelCallEnded,
    ModelCallStarted,
    RunEnded,
    RungReached,
    RunStarted,
    ToolCallEnded,
    ToolCallStarted,
)
from safepoint.agent.usage import Usage
from safepoint.history.states import LedgerState

Attributes: TypeAlias = Mapping[str, str | float | bool]
# A run, and what it does: None for the run itself, `_MODEL`, or the id of a tool call.
Key: TypeAlias = tuple[str, str | None]

_MODEL = "model call"
_CLIMB = list(Rung)


def make_listener() -> Callable[[Event], None] | None:
    """What a run tells its events to; None while no provider is set, because then nobody would see the spans."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return None
    return Spans(trace.get_tracer("safepoint"))


@dataclass(slots=True)
class _Open:
    """A span under way. `token` puts back what was current before, in the task where it started.

    `work` is the name under which the ladder knows it.
    """

    work: str
    span: Span
    token: Token[Context]
    rungs: list[Rung] = field(default_factory=list[Rung])


class Spans:
    """Makes the spans of one tree of runs."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[Key, _Open] = {}

    def __call__(self, event: Event) -> None:
        run = event.run_id
        match event:
            case RunStarted(agent=agent):
                self._start((run, None), "invoke_agent", agent, {"gen_ai.agent.name": agent, "safepoint.run.id": run})
            case ModelCallStarted():
                self._start_model_call(event)
            case ToolCallStarted(call=call):
                about = {"gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.id, "gen_ai.tool.type": "function"}
                self._start((run, call.id), "execute_tool", call.name, about)
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
        """Under the provider's names: price tables know them, and not the string that chooses a model here."""
        name = event.model_name or event.model
        about = {"gen_ai.request.model": name}
        if event.provider_name is not None:
            about["gen_ai.provider.name"] = event.provider_name
        key = (event.run_id, _MODEL)
        self._start(key, "chat", name, about, kind=SpanKind.CLIENT, work=event.model)

    def _start(
        self,
        key: Key,
        operation: str,
        name: str,
        about: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        work: str | None = None,
    ) -> None:
        attributes = {"gen_ai.operation.name": operation, **about}
        span = self._tracer.start_span(f"{operation} {name}", kind=kind, attributes=attributes)
        self._open[key] = _Open(work or name, span, current.attach(trace.set_span_in_context(span)))

    def _climb(self, event: RungReached) -> None:
        run, work = self._open.get((event.run_id, None)), self._open.get((event.run_id, event.call_id or _MODEL))
        if run is not None:
            run.rungs.append(event.rung)
        if work is not None and work.work == event.name:  # a hook beside the work has its own name
            work.rungs.append(event.rung)

    def _end_run(self, event: RunEnded) -> None:
        for key in [key for key in self._open if key[0] == event.run_id and key[1] is not None]:
            _end(self._open.pop(key), event.cancellation, event.error)  # a run that broke told no other end
        opened = self._open.pop((event.run_id, None))
        current.detach(opened.token)  # a sub-agent's run has the task of its call, whose span is current again
        opened.span.set_attribute("safepoint.stop_reason", str(event.stop_reason))
        _tell_usage(opened.span, event.usage)
        _end(opened, event.cancellation, event.error)

    def _end_model_call(self, event: ModelCallEnded) -> None:
        opened = self._open.pop((event.run_id, _MODEL))
        _tell_usage(opened.span, event.usage)
        _end(opened, event.cancellation, event.error)

    def _end_tool_call(self, event: ToolCallEnded) -> None:
        opened = self._open.pop((event.run_id, event.entry.call_id), None)
        if opened is None:
            return  # it never started
        entry = event.entry
        opened.span.set_attribute("safepoint.tool.state", str(entry.state))
        if entry.state is LedgerState.FAILED:
            opened.span.set_attribute("error.type", "_OTHER")
            opened.span.set_status(Status(StatusCode.ERROR, entry.error))
        _end(opened, event.cancellation, None)


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
    told: dict[str, str | float | bool] = {
        "safepoint.cancel.reason": reason.text,
        "safepoint.cancel.source": str(reason.source),
        "safepoint.cancel.level": cancellation.level.name.lower(),
        "safepoint.cancel.place": cancellation.place,
        "safepoint.cancel.latency": cancellation.stopped_at - cancellation.asked_at,
        "safepoint.cancel.escalated": cancellation.escalated,
        "safepoint.cancel.timed_out": cancellation.timed_out,
    }
    if reason.by is not None:
        told["safepoint.cancel.by"] = reason.by
    if rungs:
        told["safepoint.cancel.rung"] = str(max(rungs, key=_CLIMB.index))
    elif cancellation.level is Level.SAFE:
        told["safepoint.cancel.rung"] = "safe_point"
    return told


def _tell_usage(span: Span, usage: Usage) -> None:
    span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
    span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)
    span.set_attribute("safepoint.usage.estimated", usage.estimated)
