"""A process of the warm parent, with the parts of `subprocess.Popen` that tests use."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from tests.signals import default_signals, sigint_ignored

ROOT = Path(__file__).parents[2]


class WarmProcess:
    """`python -m argv…` (or a file's path, without `module`) that imports nothing of `preload` any more.

    It hears Ctrl-C, wherever the tests run; with `in_background` it ignores it. Files are descriptors, and None is
    nothing to read or the file of the tests.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        preload: Sequence[str],
        module: bool = False,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        files: tuple[int | None, int | None, int | None] = (None, None, None),
        options: Sequence[str] = (),
    ) -> None:
        assert set(options) <= {"warnings_are_errors", "new_session", "in_background"}
        request = {
            "argv": list(argv),
            "module": module,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "preload": list(preload),
            **{name: name in options for name in ("warnings_are_errors", "new_session", "in_background")},
        }
        self.args = list(argv)
        self.returncode: int | None = None
        self._parent = parent()
        self.pid = self._parent.start(request, files)

    def __enter__(self) -> WarmProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wait()

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.code_of(self.pid, 0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._parent.code_of(self.pid, timeout)
            if self.returncode is None:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process: TypeAlias = WarmProcess | subprocess.Popen[bytes]


def start_python(
    argv: Sequence[str],
    *,
    preload: Sequence[str],
    module: bool = False,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    files: tuple[int | None, int | None, int | None] = (None, None, None),
    options: Sequence[str] = (),
) -> Process:
    """A `WarmProcess`, or a new Python that imports everything itself.

    That is what the option `fresh` asks for, and `SAFEPOINT_COLD=1`, as in `make test-cold`, for all of them.
    """
    if not os.environ.get("SAFEPOINT_COLD") and "fresh" not in options:
        return WarmProcess(argv, preload=preload, module=module, cwd=cwd, env=env, files=files, options=options)
    flags = [*(["-W", "error"] if "warnings_are_errors" in options else []), *(["-m"] if module else [])]
    with sigint_ignored() if "in_background" in options else default_signals():
        return subprocess.Popen(
            [sys.executable, *flags, *argv],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL if files[0] is None else files[0],
            stdout=files[1],
            stderr=files[2],
            start_new_session="new_session" in options,
        )


class Parent:
    """The warm parent of this process, as its client. Any thread may call it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm.parent", str(theirs.fileno())],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._lock = threading.Lock()
        self._unread = b""
        self._started: list[int] = []
        self._codes: dict[int, int] = {}

    def start(self, request: Mapping[str, object], files: tuple[int | None, int | None, int | None]) -> int:
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            given = [nothing if files[0] is None else files[0], files[1] or 1, files[2] or 2]
            with self._lock:
                socket.send_fds(self._socket, [json.dumps(request).encode() + b"\n"], given)
                while not self._started:
                    self._read(None)
                return self._started.pop()
        finally:
            os.close(nothing)

    def code_of(self, pid: int, timeout: float | None) -> int | None:
        """How it ended, or None if it goes on after that time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if pid not in self._codes and self._read(min(0.05, left) if left is not None else 0.05):
                    continue
                if pid in self._codes:
                    return self._codes[pid]
            if deadline is not None and time.monotonic() >= deadline:
                return None

    def _read(self, timeout: float | None) -> bool:
        """Take what has come; whether anything has."""
        if not select.select([self._socket], [], [], timeout)[0]:
            return False
        more = self._socket.recv(1 << 16)
        assert more, "the warm parent has ended"
        *lines, self._unread = (self._unread + more).split(b"\n")
        for line in lines:
            answer: dict[str, int] = json.loads(line)
            if "code" in answer:
                self._codes[answer["pid"]] = answer["code"]
            else:
                self._codes.pop(answer["pid"], None)  # of one that had the same number
                self._started.append(answer["pid"])
        return True

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_parents: list[Parent] = []


def parent() -> Parent:
    """The one of this process, started when it is first needed."""
    if not _parents:
        _parents.append(Parent())
        atexit.register(_parents[0].close)
    return _parents[0]
