"""What a server is told once, when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Limits:
    """What one key, one run and one request may take."""

    body_bytes: int = 8_000_000
    header_bytes: int = 32_000
    json_depth: int = 64
    live_runs: int = 16
    queued_runs: int = 64
    run_seconds: float = 3600.0
    viewers: int = 1000


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How the server behaves.

    `shutdown_seconds`: how long live runs may look for a safe point after SIGTERM; keep it below the pod's grace.
    `resume_on_start`: what happens to runs that a shutdown or a crash stopped: they go on, or stay stopped.
    `keep_alive_seconds`: how long a stream is silent before a comment is sent. `stalled_seconds`: how long a client may
    read nothing of what it is sent before it is dropped; it can come back.
    `allowed_hosts`: names by which clients may call it, besides loopback.
    """

    limits: Limits = Limits()
    shutdown_seconds: float = 10.0
    resume_on_start: bool = True
    on_crash: Literal["resume", "seal"] = "resume"
    keep_alive_seconds: float = 15.0
    stalled_seconds: float = 30.0
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
