"""`safepoint acp [APP | MODULE:AGENT | MODEL]`: an agent inside an editor, over stdin and stdout."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from safepoint._extras import missing
from safepoint.cli.options import fail
from safepoint.cli.serve_options import LogLevel
from safepoint.storage.opening import FORMS

if TYPE_CHECKING:
    from safepoint.cli.chat.target import Target
    from safepoint.protocols.acp.stdio import FrameDescriptors
    from safepoint.storage.protocol import Storage

_CLOSING = 1.0
_FALLBACK_NAME = "agent"


class WhenBusy(StrEnum):
    INTERRUPT = "interrupt"
    QUEUE = "queue"
    REJECT = "reject"


@dataclass(frozen=True)
class AcpOptions:
    """One field for each option, in the order of the help."""

    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[APP | MODULE:AGENT | MODEL]",
            help="A folder with agent.py, an agent in a module, or a model: 'local', 'openai:NAME', 'ollama:NAME'.",
            show_default=False,
        ),
    ] = None
    store: Annotated[
        str | None,
        typer.Option(
            envvar="SAFEPOINT_STORE",
            metavar="WHERE",
            help=f"Where sessions are kept: {FORMS}; a file in ~/.local/share/safepoint unless named.",
        ),
    ] = None
    if_busy: Annotated[
        WhenBusy, typer.Option(help="A prompt for a session whose turn is live: stop that turn, wait, or refuse.")
    ] = WhenBusy.INTERRUPT
    log_level: Annotated[LogLevel, typer.Option(help="From which level on lines go to stderr.")] = LogLevel.WARNING


def run_acp(options: AcpOptions) -> None:
    """Serve one editor until it closes stdin; returns then, or raises `typer.Exit` if it can't begin."""
    try:
        from safepoint.protocols.acp.stdio import take_over_stdio
    except ModuleNotFoundError as error:
        fail(str(missing("safepoint acp", "acp", error)))
    logging.basicConfig(
        stream=sys.stderr, level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s"
    )
    frames = take_over_stdio()

    from safepoint.cli.chat.target import find_target
    from safepoint.errors import SafepointError

    try:
        target = find_target(options.target, Path.cwd())
    except (SafepointError, ValueError, OSError) as error:
        fail(str(error))
    asyncio.Runner().run(_serve(options, target, _storage(options), frames))
    # Neither the loop nor Python is wound up: a task or a thread that a stop has left behind would hold the exit.
    sys.stderr.flush()
    os._exit(0)


async def _serve(options: AcpOptions, target: Target, storage: Storage, frames: FrameDescriptors) -> None:
    """Cancellation: all runs are stopped."""
    from safepoint.protocols.acp.agent import AcpAgent, serve
    from safepoint.protocols.acp.rpc import RpcConnection
    from safepoint.protocols.acp.stdio import open_streams
    from safepoint.serving.apps import Catalog
    from safepoint.serving.config import OnCrash, ServingConfig
    from safepoint.serving.freezes import FreezeWatcher
    from safepoint.serving.ids import is_id
    from safepoint.serving.lease_sweeper import LeaseSweeper
    from safepoint.serving.principal import Principal
    from safepoint.serving.run_manager import RunManager

    name = target.agent.name if is_id(target.agent.name) else _FALLBACK_NAME
    # A run whose editor has gone is closed as it is: no editor would see it go on.
    config = ServingConfig(on_crash=OnCrash.SEAL, resume_on_start=False)
    manager = RunManager(Catalog.of({name: target.agent}), storage, config)
    sweeper = LeaseSweeper(manager)
    freezes = FreezeWatcher(manager, sweeper.look_again)
    await freezes.start()
    await sweeper.start()
    rpc = RpcConnection(*await open_streams(frames))
    agent = AcpAgent(manager, name, Principal("editor", user="editor"), rpc, if_busy=options.if_busy.value)
    leaving = asyncio.Event()
    for sign in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sign, leaving.set)
    await serve(agent, rpc, leaving)
    await sweeper.stop()
    await freezes.stop()
    if await manager.shut_down():
        with suppress(TimeoutError):  # a storage that hangs does not hold the exit
            async with asyncio.timeout(_CLOSING):
                await storage.aclose()


def _storage(options: AcpOptions) -> Storage:
    """The storage, found to be readable."""
    from safepoint.cli.chat.archive import data_folder
    from safepoint.errors import StoreError
    from safepoint.storage.opening import open_storage

    try:
        address = options.store
        if address is None:
            folder = data_folder(os.environ)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            address = f"sqlite:{folder / 'editor.db'}"
        storage = open_storage(address)
        asyncio.run(storage.check())
    except (OSError, StoreError) as error:
        fail(f"--store: {error}")
    return storage
