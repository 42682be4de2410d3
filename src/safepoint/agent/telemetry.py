"""The seam to OpenTelemetry: where it is installed and in use, every run leaves its spans there. Elsewhere, nothing.

OpenTelemetry is looked for once, when the first run starts, and never by `import safepoint`. A run below another one
tells its events there too, so only the topmost is listened to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

from safepoint.agent.event_hub import EventHub
from safepoint.agent.events import Event

Listener: TypeAlias = Callable[[Event], object]

_log = logging.getLogger("safepoint")


def trace(hub: EventHub) -> None:
    """Have the spans of this run, and of all below it, made."""
    listener = _listener_maker()() if hub.is_topmost else None
    if listener is not None:
        hub.listen(listener)


@cache
def _listener_maker() -> Callable[[], Listener | None]:
    try:
        from safepoint.agent.spans import make_listener
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "opentelemetry":
            raise
        return _nobody
    except Exception:  # somebody else's broken package must not stop our runs
        _log.exception("OpenTelemetry is installed but cannot be imported: runs leave no spans")
        return _nobody
    return make_listener


def _nobody() -> None:
    return None
