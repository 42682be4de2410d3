"""The two streams of the process, kept clean: stdin and stdout carry frames, and nothing else can touch them.

The frames get descriptors of their own. What a tool or a library prints goes to stderr, and a program that a tool
starts finds an empty stdin: it can't eat a frame.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
from dataclasses import dataclass
from typing import TextIO

from safepoint.protocols.acp.rpc import LONGEST_FRAME


@dataclass(frozen=True, slots=True)
class FrameDescriptors:
    """Where frames come from, and where they go."""

    reading: int
    writing: int


def take_over_stdio() -> FrameDescriptors:
    """Before anything of the app is imported: an import may print."""
    sys.stdout.flush()
    descriptors = FrameDescriptors(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    printed: TextIO = sys.stdout
    if isinstance(printed, io.TextIOWrapper):
        printed.reconfigure(line_buffering=True)  # what is printed appears among the log lines, in order
    return descriptors


async def open_streams(descriptors: FrameDescriptors) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises `ValueError` for a file: the loop can wait for pipes, sockets and terminals only.

    Cancellation: the descriptors stay open.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LONGEST_FRAME)
    protocol = asyncio.StreamReaderProtocol(reader)
    await loop.connect_read_pipe(lambda: protocol, os.fdopen(descriptors.reading, "rb", buffering=0))
    # Its own reader is never fed: this protocol only knows when the pipe is full.
    flow = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: flow, os.fdopen(descriptors.writing, "wb", buffering=0))
    return reader, asyncio.StreamWriter(transport, flow, None, loop)
