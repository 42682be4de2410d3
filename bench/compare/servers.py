"""Safepoint's server beside Google ADK's: what `bench/bench_server.py` measures, kept instead of printed."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.bench_server import ADK_REQUESTS, BUSY, REQUESTS, Subject, collect_runs
from bench.served import ADK, adk_server, safepoint_server

Rows = list[dict[str, Any]]  # Any: JSON


def measure_servers(adk_python: Path, *, rounds: int) -> Rows:
    """Medians for each store, number of clients, path and server."""
    os.environ[ADK] = str(adk_python)
    rows: Rows = []
    for store in "memory", "sqlite":
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            ours = Subject(stack.enter_context(safepoint_server(store, folder)), REQUESTS[store])
            running = stack.enter_context(adk_server(store, folder))
            assert running is not None
            theirs = Subject(running, ADK_REQUESTS)
            for clients in 1, BUSY:
                found = asyncio.run(collect_runs(ours, theirs, clients, rounds))
                for (server, path), loads in found.items():
                    row = {
                        "server": server,
                        "store": store,
                        "clients": clients,
                        "path": path,
                        "rate": median(load.rate for load in loads),
                        "cpu": median(load.cpu for load in loads),
                        "p50": median(load.latency.p50 for load in loads),
                        "p99": median(load.latency.p99 for load in loads),
                    }
                    rows.append(row)
    return rows
