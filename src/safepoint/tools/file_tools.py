"""Tools to read, list and write the files below one folder: `files("docs")`. See `folder` for what is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from safepoint.errors import ToolDefinitionError
from safepoint.tools.base import BaseTool
from safepoint.tools.context import CallContext
from safepoint.tools.folder import Folder
from safepoint.tools.function import tool

MAX_READ = 100_000
MAX_WRITE = 1_000_000
MAX_ENTRIES = 1_000


def files(
    root: str | os.PathLike[str],
    *,
    read_only: bool = False,
    prefix: str = "",
    max_read: int = MAX_READ,
    max_write: int = MAX_WRITE,
) -> list[BaseTool]:
    """`read_file`, `list_files` and, unless `read_only`, `write_file`, all below `root`.

    `max_read` and `max_write`: bytes of one call. A long file is read in pieces.
    """
    if sys.platform == "win32":
        raise ToolDefinitionError(
            "file tools open folders by descriptor, which Windows lacks; write your own with @tool"
        )
    for option, value in (("max_read", max_read), ("max_write", max_write)):
        if not isinstance(value, int) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
            raise ValueError(f"{option}={value!r}: write a whole number of bytes from 1 up")
    folder = Folder(Path(root))
    tools: list[BaseTool] = [_reading(folder, prefix, max_read), _listing(folder, prefix)]
    return tools if read_only else [*tools, _writing(folder, prefix, max_write)]


def _reading(folder: Folder, prefix: str, most: int) -> BaseTool:
    @tool(name=f"{prefix}read_file", effect="pure")
    def read_file(path: str, offset: int = 0) -> str:
        """Read a text file.

        Args:
            path: Below the folder, as "notes/today.md".
            offset: At which byte to begin, to go on in a long file.
        """
        if offset < 0:
            raise ValueError(f"offset={offset}: write a number of bytes from 0 up")
        piece = folder.read(path, offset, most)
        if b"\x00" in piece.data:
            return f"[{path} is not text: {piece.size} bytes]"
        text = piece.data.decode("utf-8", "replace")
        end = piece.offset + len(piece.data)
        return text if end >= piece.size else f"{text}\n[{end} of {piece.size} bytes; go on with offset={end}]"

    return read_file


def _listing(folder: Folder, prefix: str) -> BaseTool:
    @tool(name=f"{prefix}list_files", effect="pure")
    def list_files(path: str = ".") -> str:
        """List a folder; the names of folders end with a slash."""
        names, more = folder.entries(path, MAX_ENTRIES)
        return "\n".join([*names, "[there are more]"] if more else names) or "(empty folder)"

    return list_files


def _writing(folder: Folder, prefix: str, most: int) -> BaseTool:
    @tool(name=f"{prefix}write_file", effect="idempotent")
    def write_file(path: str, text: str, ctx: CallContext) -> str:
        """Write a whole text file, and the folders above it; what it contained before is replaced."""
        data = text.encode("utf-8", "replace")
        if len(data) > most:
            raise ValueError(f"the text has {len(data)} bytes, and {most} is the most: write several files")
        folder.write(path, data, ctx.check)
        return f"wrote {len(data)} bytes"

    return write_file
