"""Everything that `safepoint serve` can be told. Light to import: the server itself is loaded when it is to serve."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from safepoint.storage.opening import FORMS

DATA = Path(".safepoint")


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Crashed(StrEnum):
    RESUME = "resume"
    SEAL = "seal"


class ServeRole(StrEnum):
    SERVE = "serve"
    API = "api"


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """One field for each option of `safepoint worker`."""

    apps: Annotated[Path, typer.Argument(metavar="APPS_DIR", help="A folder with NAME/agent.py for each app.")]
    store: Annotated[
        str, typer.Option(envvar="SAFEPOINT_STORE", metavar="URL", help="postgresql://USER:PASSWORD@HOST/DATABASE")
    ]
    listen_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A direct address of PostgreSQL, where --store leads to a pooler."),
    ] = None
    peer_address: Annotated[
        str,
        typer.Option(
            envvar="SAFEPOINT_PEER_ADDRESS",
            metavar="HOST:PORT",
            help="Where other processes on the same storage watch its runs; or 'off'.",
        ),
    ] = "127.0.0.1:0"
    lease: Annotated[
        float | None, typer.Option(min=1, max=300, help="Seconds after which a silent process counts as dead.")
    ] = None
    slots: Annotated[int, typer.Option(min=1, help="How many runs at a time.")] = 100
    host: Annotated[str, typer.Option(help="Where /health, /ready and /metrics are answered.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 0
    insecure: Annotated[bool, typer.Option("--insecure", help="Answer others than this machine without keys.")] = False
    data: Annotated[Path | None, typer.Option(help=f"The folder of the API keys; {DATA} unless named.")] = None
    shutdown_seconds: Annotated[
        float, typer.Option(min=0.1, help="How long runs may look for a safe point after SIGTERM.")
    ] = 10.0
    on_crash: Annotated[Crashed, typer.Option(help="What becomes of runs whose process died.")] = Crashed.RESUME
    log_format: Annotated[LogFormat, typer.Option(help="How log lines look.")] = LogFormat.TEXT
    log_level: Annotated[LogLevel, typer.Option(help="From which level on; requests and runs are info.")] = (
        LogLevel.INFO
    )

    def as_server(self) -> ServeOptions:
        """The server that a worker is: one that accepts nothing."""
        same = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "slots"}
        return ServeOptions(**same, job_slots=self.slots)


@dataclass(frozen=True)
class ServeOptions:
    """One field for each option, in the order of the help."""

    apps: Annotated[
        Path | None,
        typer.Argument(
            metavar="APPS_DIR",
            help="A folder with NAME/agent.py for each app, or module:name for one; without it, a demo.",
        ),
    ] = None
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 8000
    store: Annotated[
        str,
        typer.Option(
            envvar="SAFEPOINT_STORE",
            metavar="WHERE",
            help=f"Where sessions and runs are kept: {FORMS}; or sqlite, for a file in --data.",
        ),
    ] = "sqlite"
    listen_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A direct address of PostgreSQL, where --store leads to a pooler."),
    ] = None
    peer_address: Annotated[
        str,
        typer.Option(
            envvar="SAFEPOINT_PEER_ADDRESS",
            metavar="HOST:PORT",
            help="Where other processes on the same storage watch its runs; or 'off'.",
        ),
    ] = "127.0.0.1:0"
    lease: Annotated[
        float | None, typer.Option(min=1, max=300, help="Seconds after which a silent process counts as dead.")
    ] = None
    data: Annotated[Path | None, typer.Option(help=f"The folder of the SQLite file; {DATA} unless named.")] = None
    allowed_host: Annotated[list[str], typer.Option(help="A name clients may call it by, besides loopback.")] = field(
        default_factory=list[str]
    )
    allow_origin: Annotated[list[str], typer.Option(help="A page that may call it: https://… or regex:….")] = field(
        default_factory=list[str]
    )
    limit: Annotated[list[str], typer.Option(metavar="NAME=VALUE", help="Change a limit.")] = field(
        default_factory=list[str]
    )
    ladder: Annotated[
        list[str], typer.Option(metavar="NAME=SECONDS", help="Change how long a rung of the ladder lasts.")
    ] = field(default_factory=list[str])
    default_app: Annotated[
        str | None,
        typer.Option(envvar="ADK_DEFAULT_APP_NAME", help="The app of requests that name none, as ADK has it."),
    ] = None
    insecure: Annotated[bool, typer.Option("--insecure", help="Serve others than this machine without keys.")] = False
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who answers in the demo: 'local', 'openai:NAME', …")
    ] = None
    shutdown_seconds: Annotated[
        float, typer.Option(min=0.1, help="What a shutdown may take, whatever tools declare.")
    ] = 10.0
    resume_on_start: Annotated[bool, typer.Option(help="Go on with runs that a shutdown stopped.")] = True
    role: Annotated[ServeRole, typer.Option(help="serve: accept runs and work; api: only accept them.")] = (
        ServeRole.SERVE
    )
    local_slots: Annotated[int, typer.Option(min=1, help="So many accepted runs it works on itself.")] = 100
    job_slots: Annotated[int, typer.Option(min=1, help="So many runs of others it takes at a time.")] = 100
    on_crash: Annotated[Crashed, typer.Option(help="What becomes of runs whose process died.")] = Crashed.RESUME
    log_format: Annotated[LogFormat, typer.Option(help="How log lines look.")] = LogFormat.TEXT
    log_level: Annotated[LogLevel, typer.Option(help="From which level on; requests and runs are info.")] = (
        LogLevel.INFO
    )
