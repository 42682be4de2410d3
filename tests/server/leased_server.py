"""`safepoint serve` with a short lease, and, if it is told so, with a clock that is ahead."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from safepoint.server import Catalog, ServerConfig, create_app, serve
from safepoint.sessions import SqliteStorage

LEASE = 2.0

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("apps", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--ahead", type=float, default=0.0)
    options = parser.parse_args()
    right = time.time
    time.time = lambda: right() + options.ahead
    options.data.mkdir(parents=True, exist_ok=True)
    storage = SqliteStorage(options.data / "safepoint.db", lease=LEASE)
    app = create_app(Catalog.load(options.apps), storage=storage, config=ServerConfig(heartbeat_seconds=0.2))
    serve(app, port=options.port)
