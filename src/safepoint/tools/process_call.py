"""One call of a process tool, from the host's side: what is sent, and how the reply is read. See `process`.

Loaded with the first call: only programs that use process tools pay for the imports.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import subprocess
import sys
import tempfile
from typing import IO, Any, cast

from safepoint._core.clock import Clock
from safepoint._core.work import Work
from safepoint.errors import ProcessFailed, Retry, UsageError
from safepoint.history.encoding import Json
from safepoint.history.json_codec import decode_attachments
from safepoint.tools import process
from safepoint.tools.content import MAX_PART_BYTES, Content
from safepoint.tools.process import Job, ProcessTarget
from safepoint.tools.process_tree import Ended, ProcessTree

# The limit of a worker's reply: the parts of a result, in base 64, and its text.
_MOST = 2 * MAX_PART_BYTES
_PROGRAM = "import sys; sys.path[:] = {path!r}; from safepoint.tools.worker import main; main({job}, {reply})"


async def in_process(
    work: Work[object], place: ProcessTarget, args: dict[str, Any], clock: Clock
) -> object:  # Any: typed
    """Run the function in a new process, as the body of `work`; return its result as text.

    Cancellation: the process and everything it started are killed, and waited for, within a second.
    """
    if process.importing:
        raise UsageError(
            "a process tool was called while the program was being imported by a process tool: write "
            "`if __name__ == '__main__':` around what starts your program"
        )
    with _nameless() as job, _nameless() as reply:
        job.write(_pickled(_job(place)) + _pickled(place) + pickled_arguments(args))
        job.seek(0)
        tree = ProcessTree(
            work.name,
            [*_interpreter(), "-c", _PROGRAM.format(path=sys.path, job=job.fileno(), reply=reply.fileno())],
            clock=clock,
            pass_fds=(job.fileno(), reply.fileno()),
        )
        work.killable = tree
        ended = await tree.wait()
        reply.seek(0)
        return _read(reply.read(_MOST), ended, asked=work.rung is not None)


def _read(reply: bytes, ended: Ended, *, asked: bool) -> object:
    """The worker's reply, or the error that its end implies."""
    try:
        answer: object = json.loads(reply)
    except ValueError:
        answer = None
    match answer:
        case {"value": str(text)}:
            return Content(text, decode_attachments(cast("Json", answer)))
        case {"retry": str(text)}:
            raise Retry(text)
        case {"error": str(text)}:
            raise ProcessFailed(text)
        case _ if asked:
            raise asyncio.CancelledError
        case _:
            raise ProcessFailed(f"the process that ran it {ended} before the function had returned")


def _job(place: ProcessTarget) -> Job:
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
