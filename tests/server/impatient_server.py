"""`safepoint serve` with little patience, so that what takes seconds can be tested in tenths of them."""

from __future__ import annotations

import argparse
from pathlib import Path

from safepoint.server import Catalog, Limits, ServerConfig, create_app, serve
from safepoint.sessions import SqliteStore

VIEWERS = 40
STALLED_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 0.3

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("apps", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    store = SqliteStore(options.data / "safepoint.db")
    config = ServerConfig(
        limits=Limits(viewers=VIEWERS), stalled_seconds=STALLED_SECONDS, keep_alive_seconds=KEEP_ALIVE_SECONDS
    )
    app = create_app(Catalog.load(options.apps), store=store, config=config)
    serve(app, port=options.port)
