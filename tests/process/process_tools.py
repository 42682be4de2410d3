"""Functions that tests run in processes of their own. A new process imports this module, so it stays small."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from safepoint import Retry, tool


@dataclass
class Point:
    x: int
    y: int


@tool(run_in="process", effect="pure")
def describe(point: Point, names: list[str]) -> dict[str, object]:
    """Where it is, and which process says so."""
    return {"x": point.x, "names": names, "pid": os.getpid(), "is_leader": os.getsid(0) == os.getpgid(0) == os.getpid()}


@tool(run_in="process")
def ends(how: str) -> str:
    """End in one of the ways in which a process can end."""
    match how:
        case "raises":
            raise ValueError("no such row")
        case "retries":
            raise Retry("the date must be in the future")
        case "sys.exit":
            sys.exit(2)
        case "os._exit":
            os._exit(3)
        case "SIGSEGV":
            ctypes.string_at(0)
        case "SIGKILL":
            os.kill(os.getpid(), 9)
        case _:
            pass
    return how


def say_ready(folder: str) -> None:
    Path(folder, "ready").touch()


@tool(run_in="process")
def holds_the_gil(folder: str) -> int:
    """Never let go of the interpreter, nor look at a signal: one call into C."""
    say_ready(folder)
    return sum(range(10**15))


@tool(run_in="process")
def cleans_up(folder: str) -> str:
    """Wait, and tidy up when told to stop."""
    try:
        say_ready(folder)
        time.sleep(3600)
    finally:
        Path(folder, "cleaned").touch()
    return "done"


@tool(run_in="process")
def gives_what_it_has(folder: str) -> str:
    """Wait, and return early when told to stop."""
    say_ready(folder)
    try:
        time.sleep(3600)
    except BaseException as error:
        return f"half, because of {type(error).__name__}"
    return "whole"


@tool(run_in="process")
def runs(script: str) -> str:
    """Run a shell script and wait for it."""
    return str(subprocess.run(["/bin/sh", "-c", script], check=False).returncode)


@tool(run_in="process")
def forks(what_the_child_does: str, first: str) -> str:
    """Leave a forked child behind, which comes back from here too, before or after its parent."""
    reading, writing = os.pipe()
    child = os.fork() if what_the_child_does != "forks in C" else ctypes.CDLL(None).fork()
    if child:
        if first == "child":
            os.waitpid(child, 0)
        os.close(writing)
        return "the parent's"
    if first == "parent":
        os.close(writing)
        os.read(reading, 1)  # its end comes with the parent's, which has answered by then
    match what_the_child_does:
        case "raises":
            raise ValueError("the child's")
        case "exits":
            sys.exit(3)
        case "retries":
            raise Retry("the child's")
        case "writes everywhere":
            for descriptor in range(3, 64):
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, b'{"value": "forged"}', 0)
        case _:
            pass
    return "the child's"
