"""Tools to read, list and write the files below one folder: `files("docs")`. `Folder` says what is refused."""

from __future__ import annotations

import os
import stat
import sys
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from safepoint.errors import ToolDefinitionError
from safepoint.tools.base import BaseTool
from safepoint.tools.context import CallContext
from safepoint.tools.function import tool

# A folder that no path leads out of: every path is resolved first, and must still lie below the root.
#
# A resolved path has no symbolic link in it. So it is opened one name at a time, from the root down, and a link on the
# way must have been put there since: it is refused, not followed. Anything but a plain file or a folder (a pipe, a
# device, a socket) is refused too, because reading it may block for ever. A file is written whole, under another name,
# and then renamed: a reader sees the old text or the new one, and a write that is cut has changed nothing.

_DIRECTORY = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_READ = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a file, from `offset` on, and the size of the whole file."""

    data: bytes
    offset: int
    size: int


class Folder:
    """Raises `PermissionError` for a path that leads out, and the system's own errors otherwise."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve(strict=True)
        if not self._root.is_dir():
            raise NotADirectoryError(f"{root} is not a folder")

    def read(self, path: str, offset: int, most: int) -> Piece:
        with self._opened(self._names(path)) as file:
            size = os.fstat(file).st_size
            os.lseek(file, offset, os.SEEK_SET)
            return Piece(os.read(file, most), offset, size)

    def write(self, path: str, data: bytes, check: Callable[[], object]) -> None:
        """Write the whole file; `check` is called before anything has changed, and may raise."""
        names = self._names(path)
        if not names:
            raise IsADirectoryError(f"{path!r} is the folder itself: write the name of a file in it")
        with self._folder(names[:-1], make=True) as folder:
            mode = _mode_of(names[-1], folder, path)
            temporary = f".{uuid.uuid4().hex}.part"
            file = os.open(temporary, _NEW, mode, dir_fd=folder)
            try:
                with open(file, "wb") as writing:
                    writing.write(data)
                    writing.flush()
                    os.fsync(writing.fileno())
                check()
                os.replace(temporary, names[-1], src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise

    def entries(self, path: str, most: int) -> tuple[list[str], bool]:
        """The names in a folder, in order, folders with a slash; and whether there are more."""
        with self._folder(self._names(path)) as folder, os.scandir(folder) as found:
            names: list[str] = []
            for entry in found:
                if len(names) == most:
                    return sorted(names), True
                names.append(entry.name + ("/" if entry.is_dir(follow_symlinks=False) else ""))
            return sorted(names), False

    def _names(self, path: str) -> tuple[str, ...]:
        """The names below the root that lead there, all links resolved."""
        given = PurePosixPath(path)
        if given.is_absolute() or ".." in given.parts or "\x00" in path:
            raise PermissionError(
                f"{path!r} is not a path below the folder: write it without a leading / and without .."
            )
        resolved = (self._root / given).resolve()
        if not resolved.is_relative_to(self._root):
            raise PermissionError(f"{path!r} is a link that leads out of the folder")
        return resolved.relative_to(self._root).parts

    @contextmanager
    def _folder(self, names: tuple[str, ...], *, make: bool = False) -> Generator[int]:
        """Open the folder that these names lead to."""
        here = os.open(self._root, _DIRECTORY)
        try:
            for name in names:
                if make:
                    with suppress(FileExistsError):  # if it is no folder, opening it raises
                        os.mkdir(name, dir_fd=here)
                below = os.open(name, _DIRECTORY, dir_fd=here)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)

    @contextmanager
    def _opened(self, names: tuple[str, ...]) -> Generator[int]:
        if not names:
            raise IsADirectoryError("this is the folder itself: write the name of a file in it")
        with self._folder(names[:-1]) as folder:
            file = os.open(names[-1], _READ, dir_fd=folder)
            try:
                _check_plain(os.fstat(file).st_mode, names[-1])
                yield file
            finally:
                os.close(file)


def _check_plain(mode: int, name: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{name!r} is a folder: list it instead")
    if not stat.S_ISREG(mode):
        raise PermissionError(f"{name!r} is not a plain file")


def _mode_of(name: str, folder: int, path: str) -> int:
    """The permissions of the new file: those of the old file, if there is one."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0o644
    _check_plain(mode, path)
    return stat.S_IMODE(mode)


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
