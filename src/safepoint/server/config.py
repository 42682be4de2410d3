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

    `shutdown_seconds`: how long live runs may look for a safe point after SIGTERM. Their ladders come on top, and up to
    five seconds for records and goodbyes; keep the sum below the pod's grace.
    `resume_on_start`: runs that a shutdown stopped go on in the next process, or stay stopped.
    `on_crash`: runs whose process died go on ("resume"), or are closed as they are ("seal").
    `heartbeat_seconds`: how often it looks whether other processes want its runs stopped, or have died.
    `allowed_hosts`: names by which clients may call it, besides loopback.
    """

    limits: Limits = Limits()
    shutdown_seconds: float = 10.0
    resume_on_start: bool = True
    on_crash: Literal["resume", "seal"] = "resume"
    heartbeat_seconds: float = 1.0
    keep_alive_seconds: float = 15.0
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
