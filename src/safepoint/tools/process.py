"""A tool that runs in a process of its own: `@tool(run_in="process")`. The one kind of code that can always be stopped.

The function is not sent: the new process imports its module and finds it by name, as `multiprocessing` does when it
spawns. The arguments are pickled; what comes back is never unpickled: the worker writes the text that the model would
be given, as JSON, into a file without a name. So a worker that has gone wrong can lie, but it can't run anything here.

A process has no `ToolContext`: it can't see the run. NOW sends TERM, which raises `StopTool` in the function, so that
`finally` blocks run; what does not end is killed, with everything that it has started.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from safepoint._core.clock import Clock
from safepoint._core.work import Work
from safepoint.errors import ProcessFailed, Retry, ToolDefinitionError, UsageError
from safepoint.tools.family import Ended, Family

# A worker writes no more than this; a rendered result is far below it.
_MOST = 16_000_000
_PROGRAM = "import sys; sys.path[:] = {path!r}; from safepoint.tools.worker import main; main({job}, {reply})"
# Set in a worker while it imports the program that started it.
importing = False


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker is told first: whose program it has to import, if the function is in there."""

    argv: list[str]
    main_name: str | None
    main_path: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a function can be found again: its module, and its name in there."""

    module: str
    qualname: str

    @classmethod
    def of(cls, label: str, function: Callable[..., Any], *, context: bool) -> Place:  # Any: every function
        """Refuses, when the tool is defined, what no other process could find or call."""
        if not inspect.isfunction(function) or "<lambda>" in function.__qualname__:
            raise ToolDefinitionError(f"{label}: run_in='process' needs a plain function, written with `def`")
        if "<locals>" in function.__qualname__:
            raise ToolDefinitionError(
                f"{label} is defined inside another function, where a new process can't find it; "
                "move it to the top of its module, or write run_in='thread'"
            )
        if context:
            raise ToolDefinitionError(
                f"{label}: a process has no ToolContext; take that parameter out, pass what the function needs as "
                "arguments, and clean up in `finally`, or write run_in='thread'"
            )
        main = sys.modules.get("__main__")
        if function.__module__ == "__main__" and getattr(main, "__file__", None) is None:
            raise ToolDefinitionError(
                f"{label} is typed in here and not in a file, where a new process can't find it; put it in a module"
            )
        return cls(function.__module__, function.__qualname__)

    def find(self) -> object:
        """What has that name now: a tool, or a function."""
        found: object = sys.modules.get(self.module) or __import__(self.module, fromlist=["_"])
        for name in self.qualname.split("."):
            found = getattr(found, name)
        return found


def check_platform(platform: str = sys.platform) -> None:
    """Refuse a system without process groups."""
    if platform == "win32":
        raise ToolDefinitionError(
            "run_in='process' and shell tools need process groups and signals, which Windows lacks: "
            "write run_in='thread'"
        )


async def in_process(work: Work[object], place: Place, args: dict[str, Any], clock: Clock) -> object:  # Any: typed
    """Run the function that is found there in a new process, as the body of `work`; what it returned, as text.

    Cancellation: the process and all that it started are killed, and waited for, within a second.
    """
    if importing:
        raise UsageError(
            "a process tool was called while the program was being imported by a process tool: write "
            "`if __name__ == '__main__':` around what starts your program"
        )
    with _nameless() as job, _nameless() as reply:
        job.write(_pickled(_job(place)) + _pickled(place) + pickled_arguments(args))
        job.seek(0)
        family = Family(
            work.name,
            [*_interpreter(), "-c", _PROGRAM.format(path=sys.path, job=job.fileno(), reply=reply.fileno())],
            clock=clock,
            pass_fds=(job.fileno(), reply.fileno()),
        )
        work.killable = family
        ended = await family.wait()
        reply.seek(0)
        return _read(reply.read(_MOST), ended, asked=work.rung is not None)


def _read(reply: bytes, ended: Ended, *, asked: bool) -> object:
    """What the worker had to say, or what its end says for it."""
    try:
        told: object = json.loads(reply)
    except ValueError:
        told = None
    match told:
        case {"value": str(text)}:
            return text
        case {"retry": str(text)}:
            raise Retry(text)
        case {"error": str(text)}:
            raise ProcessFailed(text)
        case _ if asked:
            raise asyncio.CancelledError
        case _:
            raise ProcessFailed(f"the process that ran it {ended} before the function had returned")


def _job(place: Place) -> Job:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    path: str | None = getattr(main, "__file__", None)
    path = os.path.abspath(path) if path is not None else None
    if place.module != "__main__":
        return Job(sys.argv, None, None)
    return Job(sys.argv, spec.name if spec is not None else None, None if spec is not None else path)


def _pickled(value: object) -> bytes:
    return pickle.dumps(value)


def pickled_arguments(args: dict[str, Any]) -> bytes:  # Any: typed by the tool's signature
    for name, value in args.items():
        try:
            pickle.dumps(value)
        except Exception as error:
            raise TypeError(
                f"the argument {name!r}, of type {type(value).__name__}, can't be sent to another process ({error}); "
                "use plain data, or write run_in='thread'"
            ) from error
    return pickle.dumps(args)


def _interpreter() -> list[str]:
    """This Python, with the options it was started with: warnings, -X, -O."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # pyright: ignore[reportPrivateUsage,reportUnknownMemberType,reportAttributeAccessIssue]  # as multiprocessing does
    return [sys.executable, *flags]


def _nameless() -> IO[bytes]:
    return tempfile.TemporaryFile(buffering=0)
