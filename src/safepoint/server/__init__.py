"""Serve agents over HTTP, SSE and WebSocket. `create_app(…)` is the ASGI app, `serve(app)` the process around it."""

try:
    from safepoint.server.app import create_app
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "safepoint":
        raise
    raise ModuleNotFoundError(f"the server needs {error.name}: install safepoint[server]", name=error.name) from error
from safepoint.server.apps import Catalog
from safepoint.server.config import Limits, OnCrash, ServerConfig
from safepoint.server.keys import KeyFile
from safepoint.server.serving import serve

__all__ = ["Catalog", "KeyFile", "Limits", "OnCrash", "ServerConfig", "create_app", "serve"]
