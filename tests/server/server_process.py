"""A real server in a process of its own, and a plain client over real sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from safepoint.protocols.adk.requests import RunRequest
from safepoint.serving.submission import Submission
from tests.signals import default_signals
from tests.warm.process import Process, start_python

APPS = Path(__file__).parent / "apps"
PATIENCE = 30.0
START = 120.0  # on a machine that has much else to do
SERVER_MODULES = ("safepoint.cli.main", "safepoint.cli.serving", "safepoint.server.middleware")


@dataclass(frozen=True)
class Answer:
    """What came back. `body`: as JSON where it is JSON, else the text."""

    status: int
    body: Any  # Any: JSON
    headers: Mapping[str, str]


class ServerProcess:
    """`with ServerProcess(folder) as server:`; it may be killed and started again on the same data.

    `env` adds to the environment, `options` to the command line; `data`: whether it is given a folder for that;
    `command`: the module that serves; `inside`: a program that runs it; `in_background`: SIGINT is ignored, as a
    script's `&` starts its commands. `tool_log`: what tools really did, a line each.
    """

    def __init__(
        self,
        folder: Path,
        *,
        apps: Path | None = APPS,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        data: bool = True,
        command: Sequence[str] = ("safepoint", "serve"),
        inside: Sequence[str] = (),
        in_background: bool = False,
    ) -> None:
        self.folder = folder
        self.tool_log = folder / "tools.log"
        self.prompt_log = folder / "prompts.log"
        self.log = folder / "server.log"
        self.port = free_port()
        self._apps = apps
        self._command = tuple(command)
        self._inside = tuple(inside)
        self._in_background = in_background
        self._options = (*(("--data", str(folder / "data")) if data else ()), *options)
        self._env = {"TOOL_LOG": str(self.tool_log), "PROMPT_LOG": str(self.prompt_log), **(env or {})}
        self.process: Process | None = None

    @property
    def each(self) -> Sequence[ServerProcess]:
        """The processes that it is."""
        return (self,)

    def __enter__(self) -> ServerProcess:
        try:
            self.start()
        except BaseException:  # also a test that takes too long
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Returns when it answers."""
        where = [str(self._apps)] if self._apps is not None else []
        command = [*self._command, *where, "--port", str(self.port), *self._options]
        with self.log.open("ab") as log:
            self.process = self._start(command, log.fileno())
        deadline = time.monotonic() + START
        while True:
            with suppress(OSError):
                if self.http("GET", "/health").status == 200:
                    return
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(self.log.read_text()[-2000:])
            time.sleep(0.05)

    def _start(self, command: list[str], log: int) -> Process:
        env = {**os.environ, **self._env}
        if self._inside:
            whole = [*self._inside, sys.executable, "-m", *command]
            with default_signals():
                return subprocess.Popen(whole, stdout=log, stderr=log, env=env)
        return start_python(
            command,
            module=True,
            preload=SERVER_MODULES,
            files=(None, log, log),
            env=env,
            options=["in_background"] if self._in_background else [],
        )

    def kill(self) -> None:
        """SIGKILL, and wait."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def terminate(self, timeout: float = PATIENCE) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout)
        self.process = None
        return code

    def connect(self, timeout: float = PATIENCE) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def http(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """One request on a connection of its own. `body`: bytes as they are, anything else as JSON."""
        connection = self.connect()
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
            given = {name.lower(): value for name, value in response.getheaders()}
            is_json = given.get("content-type", "").startswith("application/json")
            return Answer(response.status, json.loads(text) if is_json else text, given)
        finally:
            connection.close()

    def begin(self, method: str, path: str, body: object = None) -> HTTPResponse:
        """One request, its answer begun and not read. Closing the answer closes the connection."""
        connection = self.connect()
        data = None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, data, {"content-type": "application/json", "connection": "close"})
            return connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def post(self, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        return self.http("POST", path, body, headers)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.http("GET", path, headers=headers)

    def create(self, session: str, user: str = "ann") -> None:
        answer = self.post(session_path(session, user))
        assert answer.status == 200, answer

    def run(self, session: str, text: str, **more: object) -> Answer:
        """To its end."""
        return self.post("/run", message(session, text, **more))

    def run_in_thread(self, session: str, text: str, **more: object) -> Later:
        return Later(lambda: self.run(session, text, **more))

    def cancel(self, session: str, user: str = "ann", app: str = "worker", **body: object) -> Answer:
        return self.post(f"{session_path(session, user, app)}:cancel", body)

    def events(self, session: str, user: str = "ann") -> list[dict[str, Any]]:  # Any: JSON
        answer = self.get(session_path(session, user))
        assert answer.status == 200, answer
        events: list[dict[str, Any]] = answer.body["events"]  # Any: JSON
        return events

    def run_of(self, session: str, state: str) -> str:
        """The id of a run of that session, once one is in that state."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found: list[dict[str, Any]] = self.get(f"/runs?state={state}").body  # Any: JSON
            for run in found:
                if run["sessionId"] == session:
                    return str(run["runId"])
            assert time.monotonic() < deadline, (session, state, self.get("/runs").body)
            time.sleep(0.05)

    @contextmanager
    def stream(
        self, session: str, text: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> Generator[Frames]:
        """`/run_sse` with partials; leaving the block closes the connection."""
        with self.open_stream("POST", "/run_sse", message(session, text, streaming=True, **more), headers) as frames:
            yield frames

    @contextmanager
    def open_stream(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Generator[Frames]:
        connection = self.connect()
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
            response = connection.getresponse()
            assert response.status == 200, (response.status, response.read())
            yield Frames(response)
        finally:
            connection.close()

    def did(self) -> list[str]:
        return self.tool_log.read_text().splitlines() if self.tool_log.exists() else []

    def prompts(self) -> list[Any]:  # Any: JSON
        """What the model was asked, oldest first."""
        return [json.loads(line) for line in self.prompt_log.read_text().splitlines()]

    def until_did(self, what: str, times: int = 1) -> None:
        """Wait until a tool has really done it, so often."""
        deadline = time.monotonic() + PATIENCE
        while self.did().count(what) < times:
            assert time.monotonic() < deadline, f"never {what!r}: {self.did()}"
            time.sleep(0.01)


class Frames:
    """The frames of one stream: (id, event), comments left out."""

    def __init__(self, response: HTTPResponse) -> None:
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.comments = 0
        self._response = response

    def __iter__(self) -> Iterator[tuple[int | None, dict[str, Any]]]:  # Any: JSON
        seq: int | None = None
        data = ""
        for raw in self._response:
            line = raw.decode().rstrip("\r\n")
            if line.startswith(":"):
                self.comments += 1
            elif line.startswith("id:"):
                seq = int(line[3:])
            elif line.startswith("data:"):
                data += line[5:].strip()
            elif not line and data:
                yield seq, json.loads(data)
                seq, data = None, ""


class Later:
    """A call in a thread, and its answer once that is there. A server that was killed gives none."""

    def __init__(self, call: Callable[[], Any]) -> None:  # Any: an answer, or nothing that anybody reads
        self._answers: list[Answer] = []
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError, HTTPException):
            self._answers.append(self._call())

    def answer(self) -> Answer:
        self._thread.join(PATIENCE)
        assert self._answers, "no answer came"
        return self._answers[0]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def session_path(session: str, user: str = "ann", app: str = "worker") -> str:
    return f"/apps/{app}/users/{user}/sessions/{session}"


def submission(session: str, text: str, **more: object) -> Submission:
    """What the server submits to its run manager for such a message."""
    return RunRequest.model_validate(message(session, text, **more)).submission()


def message(session: str, text: str, **more: object) -> dict[str, object]:
    """The body of `/run`. `more` adds fields, or takes the place of those here."""
    said = {"role": "user", "parts": [{"text": text}]}
    return {"appName": "worker", "userId": "ann", "sessionId": session, "newMessage": said, **more}


def parts(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:  # Any: JSON
    found: list[dict[str, Any]] = []  # Any: as above
    for event in events:
        content: dict[str, Any] = event.get("content") or {}  # Any: as above
        found += content.get("parts", [])
    return found


def texts(events: Sequence[Mapping[str, Any]]) -> list[str]:  # Any: JSON
    return [part["text"] for part in parts(events) if "text" in part]


def calls_and_results(events: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:  # Any: JSON
    """The ids of all calls and of all results."""
    calls = [part["functionCall"]["id"] for part in parts(events) if "functionCall" in part]
    return calls, [part["functionResponse"]["id"] for part in parts(events) if "functionResponse" in part]


def until_let_go(server: ServerProcess, client: socket.socket) -> None:
    """Wait until the server's system has given up its end of the connection, whatever the client does."""
    ends = f":{server.port:04X}", f":{client.getsockname()[1]:04X}"
    deadline = time.monotonic() + PATIENCE
    while True:
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        if not any(line[1].endswith(ends[0]) and line[2].endswith(ends[1]) for line in lines):
            return
        assert time.monotonic() < deadline, "its connection is still there"
        time.sleep(0.05)
