"""What a run does to the state of its session, told on its events as ADK does it: `actions.stateDelta`.

The state is stored with the facts of the run, and is the same object for as long as nobody has changed it: a run that
leaves it alone costs nothing here. A change is told once, by the event that comes next, and is kept by the id of that
event, so that it is there whenever the event is told again. What a client changed meanwhile has an event of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from safepoint.server.wire_events import Json, plain, with_state
from safepoint.serving.shared_state import difference


class StateDeltas:
    """Of one run. `deltas`: by event id."""

    def __init__(self) -> None:
        self.deltas: dict[str, Json] = {}
        self._seen: Mapping[str, Any] = {}  # Any: JSON values
        self._patched: dict[str, Any] = {}  # Any: as above

    def begin(self, state: Mapping[str, Any]) -> None:  # Any: as above
        """Whatever was so before the run is none of its doing."""
        self._seen = state

    def patched(self, delta: Mapping[str, Any]) -> None:  # Any: as above
        """A client has changed it."""
        self._patched |= delta

    def on(self, event: Json, state: Mapping[str, Any]) -> Json:  # Any: as above
        """The event with what has changed since the one before it, if anything has."""
        if state is not self._seen:
            found = difference(self._seen, state)
            delta = {name: value for name, value in found.items() if self._patched.get(name, self) != value}
            self._seen = state
            if delta:
                self.deltas[event["id"]] = {**self.deltas.get(event["id"], {}), **plain(delta)}
        told = self.deltas.get(event["id"])
        return event if told is None else with_state(event, told)
