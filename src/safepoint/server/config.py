"""What a server is told once, when it starts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from safepoint._core.asks import is_seconds
from safepoint._core.ladder import Ladder


class OnCrash(StrEnum):
    """What becomes of a run whose process died: it goes on, or is closed as it is."""

    RESUME = "resume"
    SEAL = "seal"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one key, one run and one request may take.

    `json_values`: of all kinds in one body. `request_seconds`: for a client to send one request whole.
    `viewers`: requests of all clients that wait for a run. `cancels`: of one key that are open at once; apart from
    this one, no limit refuses a cancel. `wrong_keys`: from one address in a minute; a right one is always let in.
    `socket_messages`: of one WebSocket in a second; `bad_frames`: of one WebSocket, that can't be read. One more
    closes it.
    """

    body_bytes: int = 8_000_000
    header_bytes: int = 32_000
    json_depth: int = 64
    json_values: int = 50_000
    request_seconds: float = 30.0
    live_runs: int = 16
    queued_runs: int = 64
    run_seconds: float = 3600.0
    viewers: int = 1000
    cancels: int = 256
    wrong_keys: int = 30
    socket_messages: int = 200
    bad_frames: int = 32

    def __post_init__(self) -> None:
        for field in fields(self):
            value: float = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{field.name}={value}: a limit is a number above 0")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How the server behaves.

    `shutdown_seconds`: how long live runs may look for a safe point after SIGTERM. Their ladders come on top, and up to
    five seconds for records and goodbyes; keep the sum below the pod's grace.
    `resume_on_start`: runs that a shutdown stopped go on in the next process, or stay stopped.
    `on_crash`: runs whose process died go on ("resume"), or are closed as they are ("seal").
    `heartbeat_seconds`: how often it looks whether other processes want its runs stopped, or have died.
    `keep_alive_seconds`: how long a stream is silent before a comment is sent. `stalled_seconds`: how long a client may
    read nothing of what it is sent before it is dropped; it can come back.
    `allowed_hosts`: names by which clients may call it, besides loopback.
    `allowed_origins`: pages of other servers that may call it, with a key: `https://app.example.com` or `regex:…`.
    `default_app`: the app of requests that name none: `/run` without `appName`, and addresses from `/users/` on.
    `insecure`: serve others than this machine without keys.
    `ladder`: how runs of this server are stopped, instead of by the ladders of their agents. A tool's own stays.
    """

    limits: Limits = Limits()
    shutdown_seconds: float = 10.0
    resume_on_start: bool = True
    on_crash: OnCrash = OnCrash.RESUME
    heartbeat_seconds: float = 1.0
    keep_alive_seconds: float = 15.0
    stalled_seconds: float = 30.0
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    insecure: bool = False
    default_app: str | None = None
    ladder: Ladder | None = None

    def __post_init__(self) -> None:
        if self.on_crash not in tuple(OnCrash):
            raise ValueError(f"on_crash={self.on_crash!r}: write 'resume' or 'seal'")
        for name in ("shutdown_seconds", "heartbeat_seconds", "keep_alive_seconds", "stalled_seconds"):
            if not is_seconds(getattr(self, name)):
                raise ValueError(f"{name}={getattr(self, name)!r}: write a number of seconds above 0")
