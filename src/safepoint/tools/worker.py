"""The process in which a process tool runs: `main(job, reply)`, with two open descriptors.

    read the job ─▶ become able to import ─▶ find the function ─▶ call it ─▶ write one reply, and leave at once

TERM raises `StopTool` in the function. Threads and processes that the function leaves running do not hold this process:
it exits without waiting for threads, and the keeper ends the processes.

Only this process writes the reply. A function that forks returns from its call twice: the child has no reply, and exits
where its parent would have answered.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing.spawn
import os
import pickle
import signal
import sys
from functools import partial
from types import FrameType
from typing import Any, cast

from safepoint.errors import Retry, StopTool
from safepoint.history.json_codec import encode_attachments
from safepoint.history.rendering import refuse_coroutine, render_error
from safepoint.tools import process
from safepoint.tools.content import content_of
from safepoint.tools.function import Tool


def main(job: int, reply: int) -> None:
    os.set_inheritable(job, False)
    os.set_inheritable(reply, False)
    os.register_at_fork(after_in_child=partial(_let_go, reply))
    answering = os.getpid()
    outcome = _run(job)
    if os.getpid() == answering:  # a child forked by C code has skipped the hook above
        with open(reply, "wb") as file:
            file.write(json.dumps(outcome).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _run(job: int) -> dict[str, Any]:  # Any: JSON
    """The outcome of the call. Every exception that it raises is reported."""
    try:
        with open(job, "rb") as file:
            spec: process.Job = pickle.load(file)
            _prepare(spec)
            place: process.ProcessTarget = pickle.load(file)
            args: dict[str, Any] = pickle.load(file)  # Any: typed by the tool's signature
        found = place.find()
        function = cast("Tool[..., object]", found).function if isinstance(found, Tool) else found
        if not callable(function):
            raise TypeError(f"{place.qualname} in {place.module} is {found!r}, and not the tool")
        signal.signal(signal.SIGTERM, _leave)
        content = content_of(refuse_coroutine(function(**args)))
        return {"value": content.text} | encode_attachments(content.parts)
    except StopTool:
        return {"stopped": ""}
    except Retry as error:
        return {"retry": str(error)}
    except BaseException as error:
        return {"error": render_error(error)}
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the reply is being written


def _prepare(job: process.Job) -> None:
    """Use the host's directory and path, and import its program under another name if the function is in there."""
    process.importing = True
    try:
        preparation: dict[str, object] = {"sys_argv": job.argv}
        if job.main_name is not None:
            preparation["init_main_from_name"] = job.main_name
        elif job.main_path is not None:
            preparation["init_main_from_path"] = job.main_path
        multiprocessing.spawn.prepare(preparation)
    finally:
        process.importing = False


def _let_go(descriptor: int) -> None:
    with contextlib.suppress(OSError):  # the function may have closed all descriptors
        os.close(descriptor)


def _leave(_number: int, _frame: FrameType | None) -> None:
    raise StopTool()
