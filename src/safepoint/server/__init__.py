"""Serve agents over HTTP, SSE and WebSocket. `create_app(…)` is the ASGI app, `serve(app)` the process around it."""

from safepoint._extras import missing

try:
    from safepoint.server.app import create_app
except ModuleNotFoundError as error:
    raise missing("the server", "server", error) from error
from safepoint.server.config import Limits, OnCrash, ServerConfig
from safepoint.server.keys import KeyFile
from safepoint.server.process import serve
from safepoint.serving.apps import Catalog

__all__ = ["Catalog", "KeyFile", "Limits", "OnCrash", "ServerConfig", "create_app", "serve"]
