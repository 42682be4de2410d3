"""`safepoint serve` with a short lease, and with a clock that is wrong, if it is told so."""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from safepoint.server import Catalog, Limits, ServerConfig, create_app, serve
from safepoint.server.logs import TextLines, configure_logging
from safepoint.storage.postgres.storage import PostgresStorage

JUMPS = 0.7


def wrong_clock(ahead: float, jumps: float) -> None:
    """`time.time` of this process is so far ahead, and every so often by another amount up to `jumps`."""
    right = time.time
    origin = time.monotonic()

    def wrong() -> float:
        period = int((time.monotonic() - origin) / JUMPS)
        return right() + ahead + (random.Random(period).uniform(-jumps, jumps) if jumps else 0.0)

    time.time = wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("apps", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--store")
    parser.add_argument("--listen-url", default=None)
    parser.add_argument("--lease", type=float, default=1.0)
    parser.add_argument("--heartbeat", type=float, default=0.3)
    parser.add_argument("--deadline", type=float, default=5.0)
    parser.add_argument("--patience", type=float, default=30.0)
    parser.add_argument("--ahead", type=float, default=0.0)
    parser.add_argument("--jumps", type=float, default=0.0)
    parser.add_argument("--shutdown-seconds", type=float, default=10.0)
    options = parser.parse_args()
    configure_logging(TextLines(), "INFO")
    wrong_clock(options.ahead, options.jumps)
    storage = PostgresStorage(
        options.store,
        lease=options.lease,
        deadline=options.deadline,
        patience=options.patience,
        listen_url=options.listen_url,
    )
    config = ServerConfig(
        heartbeat_seconds=options.heartbeat,
        shutdown_seconds=options.shutdown_seconds,
        limits=Limits(live_runs=2000, queued_runs=2000),
    )
    app = create_app(Catalog.load(options.apps), storage=storage, config=config)
    serve(app, port=options.port)
