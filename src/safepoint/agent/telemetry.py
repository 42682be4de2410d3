"""The seam to OpenTelemetry: where it is installed and in use, every run makes spans. Elsewhere this does nothing.

OpenTelemetry is imported once, when the first run starts, and never by `import safepoint`. A run below another one
passes its events up, so only the topmost run has a listener.

Events say what a run does; spans also carry the request, the session and the tool. `describe` takes those; while
nothing is traced, it costs the read of one variable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

from safepoint.agent.event_hub import EventHub
from safepoint.agent.events import Event

Listener: TypeAlias = Callable[[Event], object]

_log = logging.getLogger("safepoint")


def trace(hub: EventHub) -> None:
    """Make spans of this run and of all runs below it."""
    listener = _listener_maker()() if hub.is_topmost else None
    if listener is not None:
        follow(hub, listener)


def follow(hub: EventHub, listener: Listener) -> None:
    """Attach this listener, which makes the spans of the run."""
    global _describe
    if _describe is None:
        from safepoint.agent.spans import describe as describe_span

        _describe = describe_span
    hub.listen(listener)


def describe(*facts: object) -> None:
    """Add the facts that the last event does not carry: a run, a model and its request, a `Finish`, a tool's spec.

    Call it in the task that emitted the event.
    """
    if _describe is not None:
        _describe(*facts)


_describe: Callable[..., None] | None = None


@contextmanager
def remote_parent(headers: Mapping[str, str]) -> Generator[None]:
    """Inside the block, spans continue the trace that these headers name (`traceparent`, or as propagators are set).

    Does nothing where OpenTelemetry is not installed. Start the run inside the block; it may continue after it.
    """
    try:
        context: Any = import_module("opentelemetry.context")  # Any: need not be installed
        propagate: Any = import_module("opentelemetry.propagate")
    except ModuleNotFoundError:
        yield
        return
    token = context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        context.detach(token)


@cache
def _listener_maker() -> Callable[[], Listener | None]:
    try:
        from safepoint.agent.spans import make_listener
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "opentelemetry":
            raise
        return _nobody
    except Exception:  # a broken package must not stop runs
        _log.exception("OpenTelemetry is installed but cannot be imported: runs leave no spans")
        return _nobody
    return make_listener


def _nobody() -> None:
    return None
