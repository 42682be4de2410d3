"""Clients come, stop runs and go, at random moments, over real sockets; afterwards the server is as it was before.

The seed is fixed, so the same course is taken each time, as far as two processes allow it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.server.server_process import ServerProcess, calls_and_results, message

CLIENTS = 8
CYCLES_OF_A_SESSION = 20
SETTLING = 60.0
MEMORY = 60_000_000
_CLOSED = b"\x88\x02" + struct.pack("!H", 1000)

MESSAGES = ("say one two three", "nap 600", "note a; nap 600", "think hm; say so", "say half; stall", "stall", "fail x")
POLICIES: tuple[object, ...] = ("cancel", "cancel", "cancel", {"cancelAfter": 0.05})


@dataclass(frozen=True)
class Held:
    """What a server holds."""

    tasks: int
    threads: int
    files: int
    memory: int


def held_by(server: ServerProcess) -> Held:
    assert server.process is not None
    proc = Path(f"/proc/{server.process.pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    memory = int(status["VmRSS"].split()[0]) * 1024
    return Held(gauge(server, "tasks"), int(status["Threads"]), len(os.listdir(proc / "fd")), memory)


def gauge(server: ServerProcess, name: str) -> int:
    lines = server.get("/metrics").body.splitlines()
    return sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith(f"safepoint_{name}"))


def settled(server: ServerProcess, like: Held | None = None) -> Held:
    """What it holds once nothing is live; if that is known, once it holds no more than this."""
    deadline = time.monotonic() + SETTLING
    while True:
        live, now = gauge(server, 'runs{state="live"}') + gauge(server, 'runs{state="queued"}'), held_by(server)
        like_before = like is None or (
            now.tasks <= like.tasks and now.threads <= like.threads and now.files <= like.files
        )
        if not live and like_before:
            return now
        assert time.monotonic() < deadline, (live, now, like, server.get("/runs?state=live").body[:3])
        time.sleep(0.1)


class Client:
    """Goes through cycles by itself, on a session of its own that it deletes after a while."""

    def __init__(self, server: ServerProcess, number: int, course: random.Random) -> None:
        self.port = server.port
        self.course = course
        self.done: Counter[str] = Counter()
        self._name = f"c{number}"
        self._sessions = 0

    async def come_and_go(self, connections: int) -> None:
        """Cancellation: that of the test."""
        while self.done["connections"] < connections:
            await self._new_session()
            for _ in range(CYCLES_OF_A_SESSION):
                await self._cycle()
        await self._check_history()

    @property
    def session(self) -> str:
        return f"{self._name}-{self._sessions}"

    async def _new_session(self) -> None:
        path = "/apps/worker/users/ann/sessions"
        if self._sessions:
            await self._check_history()
            await self._ask("DELETE", f"{path}/{self.session}")
        self._sessions += 1
        await self._ask("POST", f"{path}/{self.session}")

    async def _check_history(self) -> None:
        """Nobody watches, so the last run ends by itself; and every call has its result, whatever stopped its run."""
        path = f"/apps/worker/users/ann/sessions/{self.session}"
        async with asyncio.timeout(SETTLING):
            while await self._is_live():
                pass
        events = json.loads(await self._ask("GET", path))["events"]
        calls, results = calls_and_results(events)
        assert sorted(calls) == sorted(results), events
        self.done["calls"] += len(calls)

    async def _is_live(self) -> bool:
        await asyncio.sleep(0.02)
        return f'"{self.session}"'.encode() in await self._ask("GET", "/runs?state=live")

    async def _cycle(self) -> None:
        way = self.course.choice((self._stream, self._stream, self._call, self._socket))
        cancelling = self.course.random() < 0.5
        stop = asyncio.create_task(self._cancel_soon()) if cancelling else None
        try:
            with suppress(OSError, EOFError, asyncio.IncompleteReadError):
                await way()
        finally:
            if stop is not None:
                await stop
        self.done[way.__name__] += 1

    async def _cancel_soon(self) -> None:
        await asyncio.sleep(self.course.random() * 0.03)
        at = self.course.choice(("now", "now", "any", "force"))
        body = {"at": at, "waitSeconds": 0} | ({"withinSeconds": 0.05} if at == "any" else {})
        answer = await self._ask("POST", f"/apps/worker/users/ann/sessions/{self.session}:cancel", body)
        self.done["cancelled" if answer.startswith(b'{"status"') else "nothing to cancel"] += 1

    # -- the three ways ------------------------------------------------------------------------------------------------

    def _message(self) -> dict[str, object]:
        choose = self.course.choice
        return message(
            self.session, choose(MESSAGES), streaming=True, onDisconnect=choose(POLICIES), ifBusy="interrupt"
        )

    async def _stream(self) -> None:
        await self._request(_post("/run_sse", self._message()))

    async def _call(self) -> None:
        await self._request(_post("/run", self._message()))

    async def _request(self, data: bytes) -> None:
        """Send, and leave before, in the midst of, or after the answer."""
        reader, writer = await self._open()
        try:
            moment = self.course.choice(("half sent", "sent", "soon", "soon", "headers", "a frame", "the end"))
            self.done[moment] += 1
            writer.write(data[: len(data) // 2] if moment == "half sent" else data)
            await writer.drain()
            async with asyncio.timeout(self.course.random() * 0.4):
                if moment == "soon":
                    await asyncio.sleep(self.course.random() * 0.06)
                elif moment == "headers":
                    await reader.readuntil(b"\r\n\r\n")
                elif moment == "a frame":
                    await reader.readuntil(b"data: ")
                    await reader.read(self.course.randrange(1, 100))
                elif moment == "the end":
                    while await reader.read(65536):
                        pass
        except TimeoutError:
            pass
        finally:
            await self._leave(writer)

    async def _socket(self) -> None:
        reader, writer = await self._open()
        try:
            path = f"/run_live?app_name=worker&user_id=ann&session_id={self.session}&if_busy=interrupt"
            head = (
                f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            )
            writer.write(f"{head}sec-websocket-key: {'A' * 22}==\r\nsec-websocket-version: 13\r\n\r\n".encode())
            if self.course.random() < 0.9:
                assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
                for _ in range(self.course.randrange(3)):
                    writer.write(_frame({"content": {"parts": [{"text": self.course.choice(MESSAGES)}]}}))
                    await asyncio.sleep(self.course.random() * 0.02)
                if self.course.random() < 0.3:
                    writer.write(_frame({"close": True}))
                    async with asyncio.timeout(10):
                        await reader.readuntil(_CLOSED)
                        self.done["closed"] += 1
        finally:
            await self._leave(writer)

    # -- sockets -------------------------------------------------------------------------------------------------------

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.done["connections"] += 1
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def _leave(self, writer: asyncio.StreamWriter) -> None:
        """Politely, or with a reset."""
        if self.course.random() < 0.3:
            taken: socket.socket = writer.get_extra_info("socket")
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _ask(self, method: str, path: str, body: object = None) -> bytes:
        reader, writer = await self._open()
        try:
            writer.write(_post(path, body, method=method, more="connection: close\r\n"))
            answer = await reader.read()
            head, _, data = answer.partition(b"\r\n\r\n")
            assert not head.startswith(b"HTTP/1.1 5"), answer
            return data
        finally:
            writer.close()
            await writer.wait_closed()


def _post(path: str, body: object, *, method: str = "POST", more: str = "") -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{more}"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def _frame(value: object) -> bytes:
    data = json.dumps(value).encode()
    size = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + struct.pack("!H", len(data))
    return b"\x81" + size + bytes(4) + data


async def _soak(server: ServerProcess, connections: int, seed: int) -> Counter[str]:
    """Cancellation: that of the test."""
    clients = [Client(server, number, random.Random(seed * 100 + number)) for number in range(CLIENTS)]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.come_and_go(connections // CLIENTS))
    total: Counter[str] = Counter()
    for client in clients:
        total += client.done
    return total


def soak(server: ServerProcess, *, seed: int, warm_up: int, connections: int) -> tuple[Counter[str], Held, Held]:
    if warm_up:
        asyncio.run(_soak(server, warm_up, 100 + seed))
    before = settled(server)
    done = asyncio.run(_soak(server, connections, seed))
    after = settled(server, before)
    assert "nap ends" not in server.did(), "a tool outlived its run"
    assert gauge(server, "viewers") == 0
    assert after.memory - before.memory < MEMORY, (before, after)
    assert done["connections"] >= connections
    ways = [done[way] for way in ("_stream", "_call", "_socket", "cancelled")]
    assert min(ways) > connections / 50, done
    assert done["calls"] > connections / 200, done
    return done, before, after


@pytest.mark.timeout(300)
def test_five_hundred_clients_come_and_go_and_leave_nothing(server: ServerProcess) -> None:
    soak(server, seed=2, warm_up=300, connections=500)


@pytest.mark.proof
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_clients_come_and_go_and_leave_nothing(server: ServerProcess) -> None:
    """In five parts. What the server keeps on purpose fills up in the first, and with it the holes in its memory."""
    began, memory = time.monotonic(), list[int]()
    for part in range(1, 6):
        done, before, after = soak(server, seed=part, warm_up=4000 if part == 1 else 0, connections=20_000)
        memory.append(after.memory)
        told = f"part {part}, {time.monotonic() - began:.0f} s: {before} -> {after}; {dict(done)}"
        print(told, flush=True)
    assert memory[-1] - memory[1] < MEMORY / 2, memory
