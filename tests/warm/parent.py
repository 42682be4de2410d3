"""The parent: imports what it is told to, forks when it is told to, and tells how its children ended.

It has one thread, no event loop and no open file but its control socket, so that a fork of it is as good as new. Each
request is one line of JSON, with the child's stdin, stdout and stderr; each answer is one line: a child's pid, and
later that pid with its exit code. When the socket closes, it kills what still runs and ends.

A child leaves `serve` with what it is to run, and runs it at the bottom of the stack: it ends as any Python ends, with
its exit handlers, its threads and its traceback.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType

LONGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """`module`: whether `argv[0]` is the name of a module, as after `python -m`, or the path of a file."""

    argv: list[str]
    module: bool
    cwd: str
    env: dict[str, str]
    preload: list[str]
    warnings_are_errors: bool
    new_session: bool
    in_background: bool


def serve(control: socket.socket) -> Callable[[], None]:
    """Answer requests until the socket closes. Returns in a child only, what it is to run."""
    usual_filters = list(warnings.filters)
    warnings.simplefilter("error")  # what warns when it is imported warns in the child, where the test can see it
    ended, bell = os.pipe()
    for end in (ended, bell):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(bell)
    signal.signal(signal.SIGCHLD, _wake)
    living: set[int] = set()
    while True:
        ready, _, _ = select.select([control.fileno(), ended], [], [])
        if ended in ready:
            with suppress(BlockingIOError):
                os.read(ended, LONGEST)
            _report_ended(control, living)
        if control.fileno() in ready:
            line, files, _, _ = socket.recv_fds(control, LONGEST, 3)
            if not line:
                for pid in living:
                    os.kill(pid, signal.SIGKILL)
                sys.exit()
            while not line.endswith(b"\n"):
                line += control.recv(LONGEST)
            request = Request(**json.loads(line))
            for name in request.preload:
                _preload(name)
            gc.collect()
            gc.freeze()
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for file in (ended, bell):
                    os.close(file)
                if not request.warnings_are_errors:
                    warnings.resetwarnings()
                    warnings.filters[:] = usual_filters  # type: ignore[index]  # pyright: ignore[reportIndexIssue]  # a list
                return _become(request, files)
            living.add(pid)
            for file in files:
                os.close(file)
            _answer(control, {"pid": pid})


def _wake(_signal: int, _frame: FrameType | None) -> None:
    """So that the signal is written to the pipe."""


def _report_ended(control: socket.socket, living: set[int]) -> None:
    for pid in list(living):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            living.discard(pid)
            _answer(control, {"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _answer(control: socket.socket, answer: dict[str, int]) -> None:
    with suppress(OSError):  # the tests are over
        control.sendall(json.dumps(answer).encode() + b"\n")


def _preload(name: str) -> None:
    """`a.b` or `a.b:c`. What cannot be imported is left to the child, which says so."""
    module, _, attribute = name.partition(":")
    with suppress(Exception):
        getattr(importlib.import_module(module), attribute, None)


def _become(request: Request, files: list[int]) -> Callable[[], None]:
    """In the child: what the command line would have made of a new process."""
    if request.new_session:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    signal.signal(signal.SIGINT, signal.SIG_IGN if request.in_background else signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv = list(request.argv)
    first = request.cwd if request.module else str(Path(request.argv[0]).parent)
    added = [each for each in request.env.get("PYTHONPATH", "").split(os.pathsep) if each and each not in sys.path]
    sys.path[:1] = [first, *added]

    def run() -> None:
        if request.module:
            runpy.run_module(request.argv[0], run_name="__main__", alter_sys=True)
        else:
            main = sys.modules["__main__"] = ModuleType("__main__")
            main.__file__ = request.argv[0]
            exec(compile(Path(request.argv[0]).read_bytes(), request.argv[0], "exec"), vars(main))

    return run


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as control:
        run = serve(control)
    run()
