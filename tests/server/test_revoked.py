"""Whoever may not be here any more is sent away from what is open too, and their runs follow their policy."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.server.guarded import Guarded
from tests.server.server_process import PATIENCE, Frames, Later, message, session_path

SOON = 5.0  # a second is promised; a busy machine may be late
NUMBERS = count()


class Guest:
    """Somebody with a key, or a login, of their own for `ann`'s sessions; it ends with `end`."""

    def __init__(self, world: Guarded, how: str) -> None:
        self._world = world
        self._how = how
        self.session = f"guest{next(NUMBERS)}"
        world.keys[self.session] = world.keyfile.add(self.session, user="ann")
        assert world.ask(self.session, "POST", session_path(self.session)).status == 200
        self.headers: Mapping[str, str] = world.bearer(self.session)
        if how != "key":
            self.headers = {"Cookie": world.cookie(self.session), "Origin": world.origin}

    def end(self) -> float:
        """When it was over."""
        if self._how == "login":
            assert self._world.ask(None, "POST", "/logout", headers=self.headers).status == 200
        else:
            self._world.keyfile.revoke(self.session)
        return time.monotonic()

    @contextmanager
    def socket(self, **more: str) -> Generator[ClientConnection]:
        query = {"app_name": "worker", "user_id": "ann", "session_id": self.session, **more}
        address = f"ws://127.0.0.1:{self._world.server.port}/run_live?{urlencode(query)}"
        with connect(address, additional_headers=self.headers, open_timeout=PATIENCE) as opened:
            yield opened

    @contextmanager
    def stream(self, text: str, **more: object) -> Generator[Frames]:
        body = message(self.session, text, streaming=True, **more)
        with self._world.server.open_stream("POST", "/run_sse", body, self.headers) as frames:
            yield frames

    def outcome(self) -> tuple[str, str | None]:
        """Of its run, once that is over, with what stopped it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            (run,) = [
                each for each in self._world.ask("boss", "GET", "/runs").body if each["sessionId"] == self.session
            ]
            if run["state"] not in ("live", "queued"):
                return run["outcome"], run.get("reason", {}).get("source")
            assert time.monotonic() < deadline, run
            time.sleep(0.02)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path_factory.mktemp("revoked"))
    with guarded.server:
        yield guarded
        assert "Traceback" not in guarded.server.log.read_text()


@pytest.fixture(params=["key", "login", "key of a login"])
def guest(world: Guarded, request: pytest.FixtureRequest) -> Guest:
    return Guest(world, request.param)


def say(opened: ClientConnection, text: str) -> None:
    opened.send(json.dumps({"content": {"parts": [{"text": text}]}}))


def read_to_close(opened: ClientConnection) -> tuple[list[dict[str, Any]], int | None, str | None]:  # Any: JSON
    seen: list[dict[str, Any]] = []  # Any: as above
    try:
        while True:
            seen.append(json.loads(opened.recv(timeout=SOON)))
    except ConnectionClosed:
        return seen, opened.close_code, opened.close_reason


def test_a_silent_socket_is_closed(guest: Guest) -> None:
    with guest.socket() as opened:
        began = guest.end()
        seen, code, reason = read_to_close(opened)
    assert time.monotonic() - began < SOON
    assert (seen, code) == ([], 1008)
    assert reason in ("this key is wrong or revoked", "this login is over: log in again")


def test_a_socket_that_streams_is_closed_and_its_run_stopped(world: Guarded, guest: Guest) -> None:
    with guest.socket() as opened:
        say(opened, "drip 3000")
        for _ in range(3):
            assert json.loads(opened.recv(timeout=PATIENCE))["partial"]
        began = guest.end()
        assert read_to_close(opened)[1] == 1008
    assert time.monotonic() - began < SOON
    assert guest.outcome() == ("cancelled", "disconnect")


def test_a_message_after_the_end_starts_nothing(world: Guarded, guest: Guest) -> None:
    with guest.socket() as opened:
        guest.end()
        say(opened, f"note {guest.session}")
        assert read_to_close(opened)[1] == 1008
    assert f"note {guest.session}" not in world.server.did()
    assert [run for run in world.ask("boss", "GET", "/runs").body if run["sessionId"] == guest.session] == []


@pytest.mark.parametrize("text", ["drip 3000", "nap 3000"])
def test_a_stream_ends_with_a_last_event_that_says_why(guest: Guest, text: str) -> None:
    with guest.stream(text) as frames:
        seen = iter(frames)
        next(seen)
        began = guest.end()
        *_, (_, last) = seen
    assert time.monotonic() - began < SOON
    assert last["error_details"]["error_type"] == "Unauthorized"
    assert guest.outcome() == ("cancelled", "disconnect")


@pytest.mark.parametrize("wire", ["ag-ui", "ui-stream"])
def test_a_stream_for_front_ends_ends_too_and_its_run_is_stopped(world: Guarded, guest: Guest, wire: str) -> None:
    naps = world.server.did().count("nap begins")
    said: dict[str, Any]  # Any: JSON
    if wire == "ag-ui":
        said = {"id": "m", "role": "user", "content": "nap 3000"}
        path, body = "/ag-ui/worker", {"threadId": guest.session, "runId": "r", "messages": [said]}
    else:
        said = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "nap 3000"}]}
        path, body = "/ui/worker/chat", {"id": guest.session, "messages": [said]}
    data = json.dumps(body).encode()
    connection = world.server.connect()
    try:
        connection.request("POST", path, data, {"content-type": "application/json", **guest.headers})
        response = connection.getresponse()
        assert response.status == 200
        world.server.until_did("nap begins", naps + 1)
        began = guest.end()
        rest = response.read().decode()
    finally:
        connection.close()
    assert time.monotonic() - began < SOON
    assert "this key is wrong or revoked" in rest or "this login is over" in rest
    assert guest.outcome() == ("cancelled", "disconnect")


def test_whoever_only_watches_is_sent_away_and_the_run_goes_on(world: Guarded, guest: Guest) -> None:
    owner = Guest(world, "key")
    with owner.stream("nap 3000", onDisconnect="detach"):
        pass
    (run,) = [each["runId"] for each in world.ask("boss", "GET", "/runs").body if each["sessionId"] == owner.session]
    with world.server.open_stream("GET", f"/runs/{run}/events", headers=guest.headers) as frames:
        guest.end()
        *_, (_, last) = frames
    assert last["error_details"]["error_type"] == "Unauthorized"
    assert world.ask("boss", "GET", f"/runs/{run}").body["state"] == "live"
    world.ask("boss", "POST", f"/runs/{run}:cancel")


@pytest.mark.parametrize(
    ("policy", "outcome"), [("cancel", ("cancelled", "disconnect")), ("detach", ("end_turn", None))]
)
def test_the_run_follows_its_policy(world: Guarded, policy: str, outcome: tuple[str, str | None]) -> None:
    guest = Guest(world, "key")
    with guest.socket(on_disconnect=policy) as opened:
        say(opened, "nap 1.5" if policy == "detach" else "nap 3000")
        opened.recv(timeout=PATIENCE)
        guest.end()
        assert read_to_close(opened)[1] == 1008
    assert guest.outcome() == outcome


def test_whoever_waits_for_the_end_of_a_run_is_refused(world: Guarded, guest: Guest) -> None:
    began = world.server.did().count("nap begins")
    waiting = Later(lambda: world.server.post("/run", message(guest.session, "nap 3000"), guest.headers))
    world.server.until_did("nap begins", began + 1)
    guest.end()
    assert waiting.answer().status == 401
    assert guest.outcome() == ("cancelled", "disconnect")


@pytest.mark.parametrize("kind", ["stream", "socket"])
def test_a_client_that_reads_nothing_does_not_stay_longer(world: Guarded, kind: str) -> None:
    """A stalled client is waited for half a minute otherwise."""
    guest, said, naps = Guest(world, "key"), "pour 400; nap 3000", world.server.did().count("nap begins")
    head = {**guest.headers, "Host": f"127.0.0.1:{world.server.port}"}
    if kind == "stream":
        body = json.dumps(message(guest.session, said, streaming=True)).encode()
        line = "POST /run_sse"
        head |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    else:
        text = json.dumps({"content": {"parts": [{"text": said}]}}).encode()
        body = bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text
        line = f"GET /run_live?app_name=worker&user_id=ann&session_id={guest.session}"
        head |= {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        head |= {"Sec-WebSocket-Key": "A" * 22 + "=="}
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", world.server.port))
        lines = [f"{line} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
        client.sendall("\r\n".join(lines).encode() + (body if kind == "stream" else b""))
        assert client.recv(12) in (b"HTTP/1.1 101", b"HTTP/1.1 200")
        if kind == "socket":
            client.sendall(body)
        world.server.until_did("nap begins", naps + 1)
        began = guest.end()
        assert guest.outcome() == ("cancelled", "disconnect")
        assert time.monotonic() - began < SOON
