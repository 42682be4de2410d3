"""Sessions in ADK's JSON. Pure."""

from __future__ import annotations

from safepoint.protocols.adk.events import Json, event_json
from safepoint.serving.run_lookup import SessionView


def session_json(view: SessionView) -> Json:
    return {
        "id": view.key.session,
        "appName": view.key.app,
        "userId": view.key.user,
        "state": dict(view.state),
        "events": [event_json(event) for event in view.events],
        "lastUpdateTime": view.updated_at,
    }
