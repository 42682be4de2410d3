"""`safepoint chat [APP | module:agent | MODEL]` on the command line."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from safepoint.cli.options import fail


@dataclass(frozen=True)
class ChatOptions:
    """One field for each option, in the order of the help."""

    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[APP | MODULE:AGENT | MODEL]",
            help="A folder with agent.py, an agent in a module, or a model: 'local', 'openai:NAME', 'ollama:NAME'. "
            "Left out, a model is chosen: a provider whose key is set, else a model server that answers on this "
            "machine, else the embedded one.",
            show_default=False,
        ),
    ] = None
    session: Annotated[str | None, typer.Option(metavar="ID", help="Go on with that chat.")] = None
    latest: Annotated[bool, typer.Option("--continue", "-c", help="Go on with the last chat.")] = False
    data: Annotated[
        Path | None, typer.Option(help="The folder where chats are kept; ~/.local/share/safepoint unless named.")
    ] = None
    plain: Annotated[bool, typer.Option("--plain", help="No screen: lines only, as in a dumb terminal.")] = False


def run_chat(options: ChatOptions) -> None:
    """Chat, then exit: 0, 130 if it was stopped in a pipe or left by Ctrl-C, 2 if it can't begin."""
    from safepoint.cli.chat.archive import Archive, data_folder
    from safepoint.cli.chat.program import INTERRUPTED, ChatProgram
    from safepoint.cli.chat.target import find_target
    from safepoint.errors import SafepointError

    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # what cannot be decoded or shown must not end the chat
    interactive = sys.stdin.isatty() and sys.stderr.isatty()
    on_screen = (
        interactive and sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb") and not options.plain
    )
    folder = Path.cwd()
    try:
        target = find_target(options.target, folder)
        archive = Archive(options.data or data_folder(os.environ))
    except (SafepointError, ValueError, OSError) as error:
        fail(f"{error} (`safepoint chat script` needs no model, `safepoint tour` shows what can be stopped)")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None

    async def chat() -> int:
        program = ChatProgram(target, archive, folder)
        try:
            if on_screen:
                return await program.on_screen(options.session, latest=options.latest)
            return await program.in_lines(options.session, latest=options.latest, interactive=interactive)
        finally:
            await archive.aclose()

    try:
        code = asyncio.run(chat())
    except* SafepointError as errors:
        fail(str(errors.exceptions[0]))
    except* BrokenPipeError:
        # The reader of our output is gone. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    raise typer.Exit(code)
