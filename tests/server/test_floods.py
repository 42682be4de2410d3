"""One client that sends too much is closed, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from safepoint.protocols.adk.live_frames import Intake
from safepoint.server.config import Limits
from safepoint.server.connection import Socket, wire_options
from tests.server.server_process import PATIENCE, ServerProcess, message, session_path
from tests.server.test_live import Live, mute_socket

FRAMES = 30_000
PATIENTLY = 2.0  # for what takes milliseconds; before frames were limited it took twelve seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("floods")
    with ServerProcess(folder) as running:
        yield running
        assert "Traceback" not in running.log.read_text()


def frames(payload: bytes, times: int, opcode: int = 1) -> bytes:
    """As a client sends them, masked with zeros."""
    return (bytes([0x80 | opcode, 0x80 | len(payload), 0, 0, 0, 0]) + payload) * times


def read_all(made: socket.socket) -> bytes:
    """What the server says until it closes the connection."""
    made.settimeout(PATIENCE)
    received = b""
    try:
        while piece := made.recv(65536):
            received += piece
            if received[-125:].find(b"\x88") >= 0:  # its close frame: answer as a client does
                made.sendall(frames(b"", 1, opcode=8))
    except OSError:
        pass
    return received


class Bystander:
    """Starts runs and stops them, one after the other, and notes how long each cancel took."""

    def __init__(self, server: ServerProcess) -> None:
        self.took: list[float] = []
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def __enter__(self) -> Bystander:
        self._server.post(session_path("bystander"))
        self._thread.start()
        self.until_asked(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)

    def until_asked(self, times: int) -> None:
        deadline = time.monotonic() + PATIENCE
        while len(self.took) < times:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def _go_on(self) -> None:
        while not self._over.is_set():
            body = message("bystander", "stall", streaming=True, onDisconnect="detach")
            with self._server.open_stream("POST", "/run_sse", body):
                began = time.monotonic()
                assert self._server.cancel("bystander").status == 200
                self.took.append(time.monotonic() - began)


@pytest.mark.parametrize("kind", ["bad", "empty", "ping"])
def test_a_flood_of_tiny_frames_does_not_hold_another_clients_cancel(server: ServerProcess, kind: str) -> None:
    server.create(f"flood-{kind}")
    flood = frames(*{"bad": (b"x", FRAMES, 1), "ping": (b"x", FRAMES, 9), "empty": (b"{}", FRAMES, 1)}[kind])
    with Bystander(server) as bystander:
        before = len(bystander.took)
        for _ in range(3):
            with mute_socket(server, f"flood-{kind}") as made:
                sending = threading.Thread(target=send_all, args=(made, flood))
                sending.start()
                bystander.until_asked(len(bystander.took) + 2)
                if kind != "ping":
                    assert (1008).to_bytes(2, "big") in read_all(made)
                sending.join(PATIENCE)
    worst = max(bystander.took[before:])
    print(f"\n{kind}: {len(bystander.took)} cancels, median {median(bystander.took):.4f} s, worst {worst:.4f} s")
    assert worst < PATIENTLY


def send_all(made: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # it is closed before all is sent
        made.sendall(data)


def test_so_many_bad_frames_are_answered_and_one_more_closes_the_socket(server: ServerProcess) -> None:
    with Live(server, "bad-frames") as live:
        for _ in range(16):
            live.socket.send("no json")
            assert live.next()["errorCode"] == "BAD_FRAME"
            live.send(blob={})
            assert live.next()["errorCode"] == "UNSUPPORTED"
        live.say("say fine")
        assert live.turn()[-1]["content"]["parts"] == [{"text": "fine "}]
        live.socket.send(b"\x00")
        assert live.closed() == (1008, "more than 32 frames that can't be read")


def test_more_messages_in_a_second_than_may_be_close_the_socket_and_stop_its_run(server: ServerProcess) -> None:
    naps = server.did().count("nap begins")
    with Live(server, "many") as live:
        live.say("nap 3000")
        server.until_did("nap begins", naps + 1)
        delta = json.dumps({"stateDelta": {"a": 1}})
        sending = threading.Thread(target=send_frames, args=(live.socket, delta, 5_000))
        sending.start()
        assert live.closed() == (1008, "more than 200 messages in a second")
        sending.join(PATIENCE)
    run = server.run_of("many", "ended")
    assert server.get(f"/runs/{run}").body["outcome"] == "cancelled"


def send_frames(opened: ClientConnection, text: str, times: int) -> None:
    try:
        for _ in range(times):
            opened.send(text)
    except ConnectionClosed:
        pass


def test_a_large_message_behind_many_frames_arrives_whole(server: ServerProcess) -> None:
    server.create("large")
    words = "w" * 3_000_000
    query = "app_name=worker&user_id=ann&session_id=large"
    with connect(f"ws://127.0.0.1:{server.port}/run_live?{query}", max_size=None) as opened:
        for _ in range(100):
            opened.send(json.dumps({"stateDelta": {"a": 1}}))
        opened.send(json.dumps({"content": {"parts": [{"text": f"say {words}"}]}}))
        heard = ""
        while not (event := json.loads(opened.recv(timeout=PATIENCE))).get("turnComplete"):
            heard += event["content"]["parts"][0]["text"]
    assert heard == f"{words} "


def test_a_message_is_taken_whole_if_its_client_leaves_at_once(server: ServerProcess) -> None:
    server.create("leaves")
    text = json.dumps({"content": {"parts": [{"text": "note left " + "x" * 200_000}]}}).encode()
    with mute_socket(server, "leaves&on_disconnect=detach") as made:
        made.sendall(bytes([0x81, 0x80 | 127]) + len(text).to_bytes(8, "big") + bytes(4) + text)
    server.run_of("leaves", "ended")
    assert any(line.startswith("note left") for line in server.did())


def test_a_client_that_leaves_behind_a_bad_frame_has_left_and_nothing_else(server: ServerProcess) -> None:
    server.create("bad-and-gone")
    for _ in range(10):
        with mute_socket(server, "bad-and-gone") as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            made.sendall(frames(b"[NaN]", 3))
    deadline = time.monotonic() + PATIENCE
    while "safepoint_viewers 0" not in server.get("/metrics").body:
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Wire(asyncio.Transport):
    """What the server writes to a socket. Its client reads at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:  # Any: as the base class has it
        self.written += data

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...


async def listens(scope: Any, receive: Any, send: Any) -> None:  # Any: as ASGI has it
    await send({"type": "websocket.accept"})
    while True:
        await receive()


def test_the_loop_turns_while_frames_that_came_at_once_are_read() -> None:
    async def main() -> None:
        config = Config(listens, **wire_options(Limits()), lifespan="off")
        config.load()
        wire, opened = Wire(), Socket(config, ServerState(), {})
        opened.connection_made(wire)
        head = {"Host": "x", "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        lines = [f"{name}: {value}" for name, value in head.items()]
        opened.data_received(
            "\r\n".join(["GET / HTTP/1.1", *lines, f"Sec-WebSocket-Key: {'A' * 22}==", "", ""]).encode()
        )
        while b"101" not in wire.written:  # noqa: ASYNC110  # a socket has no event to wait for
            await asyncio.sleep(0)
        begun, turns = len(wire.written), 0
        opened.data_received(frames(b"x", FRAMES, opcode=9))
        while len(wire.written) - begun < 3 * FRAMES:  # a pong for each
            await asyncio.sleep(0)
            turns += 1
        assert turns > 20, "it takes hundreds of milliseconds, and other tasks have their turn after each"
        for task in opened.tasks:
            task.cancel()
        await asyncio.wait(opened.tasks)

    asyncio.run(main())


def test_messages_are_counted_by_the_second() -> None:
    now = [0.0]
    intake = Intake(Limits(socket_messages=3, bad_frames=2), lambda: now[0])
    assert [intake.message() for _ in range(3)] == [None] * 3
    assert intake.message() == "more than 3 messages in a second"
    now[0] += 1.0
    assert [intake.message() for _ in range(2)] == [None] * 2
    assert [bool(intake.bad_frame()) for _ in range(3)] == [False, False, True]
