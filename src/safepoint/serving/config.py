"""How runs are served, whatever the protocol: decided once, when the process starts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from safepoint._core.asks import is_seconds
from safepoint._core.ladder import Ladder


class OnCrash(StrEnum):
    """What becomes of a run whose process died: it is resumed, or closed as it is."""

    RESUME = "resume"
    SEAL = "seal"


class Role(StrEnum):
    """What a process does with runs: it accepts and works, it only accepts, or it only works."""

    SERVE = "serve"
    API = "api"
    WORKER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """How many runs one key may have live and queued, and how many seconds a run may take."""

    live_runs: int = 16
    queued_runs: int = 64
    run_seconds: float = 3600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value: float = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{field.name}={value}: a limit is a number above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """How runs begin, are looked after and end. `safepoint.server.ServerConfig` documents the fields."""

    limits: RunLimits = RunLimits()
    shutdown_seconds: float = 10.0
    resume_on_start: bool = True
    on_crash: OnCrash = OnCrash.RESUME
    heartbeat_seconds: float = 1.0
    keep_alive_seconds: float = 15.0
    stalled_seconds: float = 30.0
    default_app: str | None = None
    ladder: Ladder | None = None
    peer_address: str | None = "127.0.0.1:0"
    role: Role = Role.SERVE
    local_slots: int = 100
    job_slots: int = 100

    def __post_init__(self) -> None:
        if self.role not in tuple(Role):
            raise ValueError(f"role={self.role!r}: write 'serve', 'api' or 'worker'")
        for name in ("local_slots", "job_slots"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r}: write 1 or more")
        if self.on_crash not in tuple(OnCrash):
            raise ValueError(f"on_crash={self.on_crash!r}: write 'resume' or 'seal'")
        if self.peer_address is not None:
            split_address(self.peer_address)
        for field in fields(self):
            if field.name.endswith("_seconds") and not is_seconds(getattr(self, field.name)):
                raise ValueError(f"{field.name}={getattr(self, field.name)!r}: write a number of seconds above 0")


def split_address(text: str) -> tuple[str, int]:
    """`HOST:PORT`. Raises ValueError with what to write instead."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"peer_address={text!r}: write HOST:PORT, with port 0 for one that is free")
    if host in ("0.0.0.0", "::"):
        raise ValueError(f"peer_address={text!r}: others could not find it there: write an address of this machine")
    return host, int(port)
