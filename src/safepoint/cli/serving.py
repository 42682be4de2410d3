"""`safepoint serve`: from what was written on the command line to a server that answers.

Errors are found before a socket is served, and told in one line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from safepoint._core.ladder import Ladder
from safepoint.agent.agent import Agent
from safepoint.cli.demo import NAME, demo_agent
from safepoint.cli.keys import KEY_FILE
from safepoint.cli.model_setup import ready
from safepoint.cli.options import fail
from safepoint.cli.serve_options import DATA, LogFormat, ServeOptions
from safepoint.errors import ModelNotReady, StoreError
from safepoint.server.app import create_app
from safepoint.server.auth import check_exposed
from safepoint.server.config import OnCrash, Role, ServerConfig
from safepoint.server.keys import KeyFile
from safepoint.server.logs import JsonLines, TextLines, configure_logging
from safepoint.server.origins import is_loopback
from safepoint.server.process import address_of, listen, serve_on
from safepoint.serving.apps import Catalog
from safepoint.storage.opening import POSTGRES, open_storage
from safepoint.storage.protocol import Storage
from safepoint.storage.sqlite.storage import SqliteStorage

if TYPE_CHECKING:
    from safepoint.server.config import Limits


# `--limit NAME=VALUE` and `--ladder NAME=SECONDS`: every limit and every rung of the server by its own name.


def limits_of(changes: Iterable[str]) -> Limits:
    """Raises ValueError with what to write instead."""
    from safepoint.server.config import Limits

    return Limits(**_read("--limit", Limits(), changes))


def ladder_of(changes: Iterable[str]) -> Ladder | None:
    """None if nothing is to be changed. Raises ValueError as above."""
    found = _read("--ladder", Ladder(), changes)
    return Ladder(**found) if found else None


def _read(option: str, usual: Limits | Ladder, changes: Iterable[str]) -> dict[str, Any]:  # Any: int or float, by name
    names = [each.name for each in fields(usual)]
    found: dict[str, Any] = {}  # Any: as above
    for change in changes:
        name, _, value = change.partition("=")
        if name not in names:
            raise ValueError(f"{option} {change}: write NAME=VALUE; the names are {', '.join(names)}")
        kind = int if isinstance(getattr(usual, name), int) else float
        try:
            found[name] = kind(value)
        except ValueError:
            raise ValueError(f"{option} {change}: {value!r} is no {kind.__name__}") from None
    return found


_log = logging.getLogger("safepoint.server")


def run_server(options: ServeOptions, role: Role | None = None) -> None:
    """Serve until a signal ends it; returns then, or raises `typer.Exit` if it can't begin."""
    lines = JsonLines() if options.log_format is LogFormat.JSON else TextLines()
    configure_logging(lines, options.log_level.upper())
    catalog = _catalog(options)
    storage = _storage(options)
    try:
        config, keys = _config(options, role or Role(options.role)), KeyFile((options.data or DATA) / KEY_FILE)
        check_exposed(f"--host {options.host}", config, keys, exposed=not is_loopback(options.host))
        app = create_app(catalog, storage=storage, config=config, keys=keys)
    except ValueError as error:
        fail(str(error))
    try:
        listener = listen(options.host, options.port)
    except OSError as error:
        fail(f"can't listen on {options.host} port {options.port}: {_words(error)}; choose another --host or --port")
    _announce(options, config.role, catalog, address_of(listener))
    serve_on(listener, app)


def _config(options: ServeOptions, role: Role) -> ServerConfig:
    return ServerConfig(
        role=role,
        local_slots=options.local_slots,
        job_slots=options.job_slots,
        shutdown_seconds=options.shutdown_seconds,
        resume_on_start=options.resume_on_start,
        on_crash=OnCrash(options.on_crash),
        limits=limits_of(options.limit),
        ladder=ladder_of(options.ladder),
        allowed_hosts=tuple(options.allowed_host),
        allowed_origins=tuple(options.allow_origin),
        insecure=options.insecure,
        default_app=options.default_app,
        peer_address=None if options.peer_address == "off" else options.peer_address,
    )


def _catalog(options: ServeOptions) -> Catalog:
    if options.apps is None:
        return Catalog.of({NAME: _demo(options.model)})
    if options.model is not None:
        fail("--model is for the demo: the apps in APPS_DIR name their models themselves")
    if ":" in str(options.apps) and not options.apps.exists():
        return _by_name(str(options.apps))
    try:
        catalog = Catalog.load(options.apps)
    except OSError as error:
        fail(f"can't read {options.apps}: {_words(error)}")
    if not list(catalog):
        fail(f"no app in {options.apps}: write {options.apps}/NAME/agent.py with an `agent` in it")
    return catalog


def _by_name(word: str) -> Catalog:
    """The app that a module here has under a name, as `shop:graph`."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return Catalog.of_object(word)
    except (ImportError, ValueError) as error:
        fail(str(error))
    finally:
        sys.path.pop(0)


def _demo(model: str | None) -> Agent[Any, Any]:  # Any: as agents are declared
    if model is None:
        return demo_agent()
    try:
        return demo_agent(ready(model, 0.0))
    except (ModelNotReady, ValueError) as error:
        fail(str(error))


def _storage(options: ServeOptions) -> Storage:
    """The storage, found to be readable."""
    if options.store == "sqlite" and options.listen_url is None and options.lease is None:
        return _storage_in(options.data or DATA)
    if options.store in ("memory", "memory:") and options.data is not None:
        fail("--data is for --store sqlite: what is kept in memory needs no folder")
    address = {"memory": "memory:", "sqlite": "sqlite:"}.get(options.store, options.store)
    try:
        storage = open_storage(address, listen_url=options.listen_url, lease=options.lease)
        asyncio.run(_check(storage, address, options.listen_url))
    except StoreError as error:
        fail(f"--store: {error}")
    return storage


async def _check(storage: Storage, address: str, listen_url: str | None) -> None:
    """Raises `StoreError`. Cancellation: nothing has changed."""
    await storage.check()
    if address.startswith(POSTGRES):
        from safepoint.storage.postgres.health import check_pushes

        await check_pushes(address, listen_url)


def _storage_in(folder: Path) -> Storage:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        storage = SqliteStorage(folder / "safepoint.db")
        asyncio.run(storage.check())
    except (OSError, StoreError) as error:
        fail(f"can't use {folder} for sessions and runs: {error}; choose another --data")
    return storage


def _words(error: OSError) -> str:
    """What the system says, without what Python adds."""
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror or str(error)


def _announce(options: ServeOptions, role: Role, catalog: Catalog, address: str) -> None:
    names = ", ".join(app.name for app in catalog if app.agent is not None) or "no app"
    broken = [app.name for app in catalog if app.agent is None]
    _log.info("serving %s on %s", names, address, extra={"event": "serving", "address": address, "broken": broken})
    if options.log_format is LogFormat.TEXT:
        doing = "works on runs of" if role is Role.WORKER else "accepts runs of" if role is Role.API else "serves"
        typer.echo(f"Safepoint {doing} {names} on {address}")
        if broken:
            typer.echo(f"Not served, because they can't be loaded: {', '.join(broken)}")
        typer.echo("Ctrl-C stops all runs at a safe point and ends the server; Ctrl-C again forces it.")
