"""Two processes that watch each other's runs: neither can be talked to by a third, and a lost link loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from safepoint.serving.events import Turn
from safepoint.serving.peer_wire import (
    MOST,
    MOST_UNPROVED,
    BadPeer,
    EventFrame,
    FeedHeader,
    Goodbye,
    Greeting,
    Line,
    WatchAnswer,
    WatchRefusal,
    WatchRequest,
    new_nonce,
    proof,
)
from tests.server.server_process import PATIENCE, ServerProcess
from tests.server.test_watching_elsewhere import Servers, Watcher, text_of
from tests.storage.postgres.tcp_proxy import TcpProxy

Peer = dict[str, Any]  # Any: JSON


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder: Path = tmp_path_factory.mktemp("peers")
    with ServerProcess(folder) as here, ServerProcess(folder) as there:
        yield here, there


def database(server: ServerProcess) -> Path:
    return server.folder / "data" / "safepoint.db"


def owner_of(server: ServerProcess, run: str) -> tuple[str, Peer]:
    """The worker that has the run, and where it is reached."""
    with closing(sqlite3.connect(database(server))) as db:
        [worker, peer] = db.execute(
            "SELECT w.id, w.peer FROM run_records r JOIN workers w ON w.id = r.owner WHERE r.run_id = ?", (run,)
        ).fetchone()
    return worker, json.loads(peer)


def move_owner(server: ServerProcess, run: str, **changes: object) -> None:
    """The owner's row says another address, or token."""
    worker, peer = owner_of(server, run)
    with closing(sqlite3.connect(database(server), isolation_level=None)) as db:
        db.execute("UPDATE workers SET peer = ? WHERE id = ?", (json.dumps({**peer, **changes}), worker))


def live_run(servers: Servers, session: str, text: str) -> str:
    here, there = servers
    here.create(session)
    here.run_in_thread(session, text, onDisconnect="detach")
    return there.run_of(session, "live")


def warnings(server: ServerProcess, about: str) -> int:
    return sum("a peer at" in line and about in line for line in server.log.read_text().splitlines())


# -- who asks and lies -------------------------------------------------------------------------------------------------


async def dial(peer: Peer) -> tuple[Line, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(peer["host"], peer["port"])
    return Line(reader, writer, 5.0), writer


async def greeted(line: Line) -> str:
    greeting = await line.read()
    assert isinstance(greeting, Greeting)
    return greeting.nonce


async def is_cut_off(line: Line) -> bool:
    try:
        await line.read()
    except (OSError, EOFError):
        return True
    return False


def test_an_asker_without_the_token_is_cut_off_and_logged_once(servers: Servers) -> None:
    run = live_run(servers, "stranger", "nap 20")
    _, peer = owner_of(servers[0], run)

    async def ask() -> None:
        for token in ("", "0" * 64, peer["token"][:-1], peer["token"] + "0"):
            line, _ = await dial(peer)
            nonce = await greeted(line)
            await line.send(WatchRequest(run, new_nonce(), proof(token, "asker", nonce, run)))
            assert await is_cut_off(line), token
            line.close()
        # A proof that was overheard, for the nonce of another connection, and one for another run, prove nothing.
        line, _ = await dial(peer)
        old = await greeted(line)
        line.close()
        for said in ((old, run), (None, "run_other")):
            line, _ = await dial(peer)
            nonce = await greeted(line)
            await line.send(WatchRequest(run, new_nonce(), proof(peer["token"], "asker", said[0] or nonce, said[1])))
            assert await is_cut_off(line), said
            line.close()

    asyncio.run(ask())
    assert warnings(servers[0], "its proof is wrong") == 1
    assert peer["token"] not in servers[0].log.read_text()


def test_what_is_no_message_or_is_too_large_is_cut_off_at_once_and_costs_no_memory(servers: Servers) -> None:
    run = live_run(servers, "huge", "nap 20")
    _, peer = owner_of(servers[0], run)
    lies = [
        (1 << 31).to_bytes(4) + b"x" * 100,
        (MOST_UNPROVED + 1).to_bytes(4),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        (4).to_bytes(4) + b"null",
        (15).to_bytes(4) + b'{"kind":"beat"}',
        (2000).to_bytes(4) + b"[" * 2000,
    ]

    async def lie() -> None:
        for data in lies:
            line, writer = await dial(peer)
            await greeted(line)
            began = time.monotonic()
            writer.write(data)
            assert await is_cut_off(line), data
            assert time.monotonic() - began < 2.0
            line.close()
        # Many that say nothing at all: no more than so many are waited for, and not for long.
        silent = [await dial(peer) for _ in range(200)]
        began = time.monotonic()
        for line, _ in silent:
            with contextlib.suppress(OSError, EOFError):
                await line.read()
                assert await is_cut_off(line)
            line.close()
        assert time.monotonic() - began < 10.0

    asyncio.run(lie())
    for about in (f"more than {MOST_UNPROVED} bytes", "it sent what is no message", "too many links"):
        assert warnings(servers[0], about) == 1, about
    assert servers[0].get("/health").status == 200


def test_an_asker_with_the_token_is_told_of_runs_that_are_here_and_of_no_others(servers: Servers) -> None:
    run = live_run(servers, "right", "say right; nap 20")
    _, peer = owner_of(servers[0], run)

    async def ask(run: str) -> object:
        line, _ = await dial(peer)
        nonce, mine = await greeted(line), new_nonce()
        await line.send(WatchRequest(run, mine, proof(peer["token"], "asker", nonce, run)))
        said = await line.read()
        if isinstance(said, WatchAnswer):
            assert said.proof == proof(peer["token"], "owner", mine, run)
            line.trust()
            begun = await line.read()
            assert isinstance(begun, FeedHeader)
            said = await line.read()
            await line.send(Goodbye())
        line.close()
        return said

    assert isinstance(asyncio.run(ask(run)), EventFrame)
    assert isinstance(asyncio.run(ask("run_nowhere")), WatchRefusal)


# -- who answers and lies ----------------------------------------------------------------------------------------------

Answer = Callable[[Line, asyncio.StreamWriter, str], Awaitable[object]]


@contextmanager
def fake_owner(answer: Answer) -> Generator[tuple[int, list[float]]]:
    """Its port, and when it was asked. It knows the token that `answer` is given, if it is told one."""
    asked: list[float] = []
    ready, loop = threading.Event(), asyncio.new_event_loop()
    ports: list[int] = []
    stopped = asyncio.Event()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(time.monotonic())
        line = Line(reader, writer, PATIENCE)
        line.trust()
        with contextlib.suppress(OSError, EOFError, BadPeer, TimeoutError):
            await answer(line, writer, new_nonce())
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(take, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await stopped.wait()
        server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(5)
    try:
        yield ports[0], asked
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(5)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def garbage(line: Line, writer: asyncio.StreamWriter, nonce: str) -> None:
    writer.write(b"220 mail.example.com ESMTP\r\n" * 100)
    await writer.drain()


async def without_proof(line: Line, writer: asyncio.StreamWriter, nonce: str) -> None:
    await line.send(Greeting(nonce))
    watch = await line.read()
    assert isinstance(watch, WatchRequest)
    await line.send(WatchAnswer(proof("guessed", "owner", watch.nonce, watch.run)))
    await line.send(FeedHeader(Turn("run", "agent"), 0))


@pytest.mark.parametrize("answer", [garbage, without_proof])
def test_an_owner_that_is_none_is_not_believed_and_logged_once(servers: Servers, answer: Answer) -> None:
    here, there = servers
    run = live_run(servers, f"fake-{answer.__name__}", "say true; nap 4")
    before = warnings(there, "127.0.0.1:")
    with fake_owner(answer) as (port, asked):
        move_owner(here, run, port=port)
        watcher = Watcher(there, run)
        watcher.until(lambda: watcher.comments)
        watcher.to_its_end()
        assert len(asked) > 1, "it was not tried again"
    assert text_of(watcher.events)[1] == "true done ", "what is stored is told all the same"
    assert warnings(there, "127.0.0.1:") == before + 1


def test_an_owner_that_knows_the_token_and_sends_too_much_is_left_alone(servers: Servers) -> None:
    here, there = servers
    run = live_run(servers, "flood", "say true; nap 4")
    _, peer = owner_of(here, run)

    async def flood(line: Line, writer: asyncio.StreamWriter, nonce: str) -> None:
        await line.send(Greeting(nonce))
        watch = await line.read()
        assert isinstance(watch, WatchRequest)
        await line.send(WatchAnswer(proof(peer["token"], "owner", watch.nonce, watch.run)))
        await line.send(FeedHeader(Turn(run, "agent"), 0))
        writer.write((MOST + 1).to_bytes(4))
        while True:
            writer.write(b"x" * 1_000_000)
            await writer.drain()

    with fake_owner(flood) as (port, _):
        move_owner(here, run, port=port)
        watcher = Watcher(there, run).to_its_end()
    assert text_of(watcher.events)[1] == "true done "
    assert warnings(there, f"more than {MOST} bytes") == 1


# -- links that are lost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["cut", "silent", "deaf"])
def test_a_link_that_is_lost_is_told_and_what_follows_is_neither_missing_nor_doubled(
    servers: Servers, fault: str
) -> None:
    here, there = servers
    run = live_run(servers, fault, "drip 60")
    with TcpProxy(owner_of(here, run)[1]["port"]).running() as proxy:
        move_owner(here, run, port=proxy.port)
        watcher = Watcher(there, run)
        watcher.until_text("drop drop ")
        proxy.refuse = True
        if fault == "cut":
            proxy.cut_all()
        else:
            setattr(proxy, fault, True)
        watcher.until(lambda: watcher.comments)
        heard = len(watcher.events)
        proxy.silent = proxy.deaf = proxy.refuse = False
        proxy.cut_all()
        watcher.until(lambda: len(watcher.events) > heard + 3)
        watcher.to_its_end()
    assert text_of(watcher.events) == ("drop " * 60,) * 2


def test_a_link_that_is_lost_does_not_end_a_run_whose_viewers_are_behind_it(servers: Servers) -> None:
    here, there = servers
    here.create("held")
    with TcpProxy(0).running() as proxy:
        with here.stream("held", "drip 70", onDisconnect="cancel") as frames:
            next(iter(frames))
            run = there.run_of("held", "live")
            proxy.target = owner_of(here, run)[1]["port"]
            move_owner(here, run, port=proxy.port)
            watcher = Watcher(there, run)
            watcher.until_text("drop ")
        proxy.cut_all()
        watcher.to_its_end()
    assert text_of(watcher.events) == ("drop " * 70,) * 2
