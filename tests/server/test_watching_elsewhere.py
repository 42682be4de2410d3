"""Runs are watched at any process: the same events under the same ids, and text before its message is whole."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.server.server_process import PATIENCE, ServerProcess, message, texts

Event = dict[str, Any]  # Any: JSON
Servers = tuple[ServerProcess, ServerProcess]
Start = Callable[[], ServerProcess]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder: Path = tmp_path_factory.mktemp("watched")
    with ServerProcess(folder) as here, ServerProcess(folder) as there:
        yield here, there


@pytest.fixture
def new_server(tmp_path: Path) -> Start:
    """Each is one more process on the same storage."""
    return lambda: ServerProcess(tmp_path)


class Watcher:
    """Reads a stream in a thread: (id, event, when), and comments."""

    def __init__(self, server: ServerProcess, run: str, after: int | None = None) -> None:
        self.seen: list[tuple[int | None, Event, float]] = []
        self.comments: list[str] = []
        headers = {} if after is None else {"last-event-id": str(after)}
        self._connection = server.connect()
        self._connection.request("GET", f"/runs/{run}/events", headers=headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        seq: int | None = None
        try:
            for raw in self._answer:
                line = raw.decode().rstrip("\n")
                if line.startswith(":"):
                    self.comments.append(line[1:].strip())
                elif line.startswith("id:"):
                    seq = int(line[3:])
                elif line.startswith("data:"):
                    self.seen.append((seq, json.loads(line[5:]), time.monotonic()))
                    seq = None
        except (OSError, ValueError):
            pass
        finally:
            self._answer.close()
            self._connection.close()

    @property
    def events(self) -> list[Event]:
        return [event for _, event, _ in self.seen]

    @property
    def whole(self) -> list[tuple[int | None, Event]]:
        return [(seq, event) for seq, event, _ in self.seen if not event.get("partial")]

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, (self.seen, self.comments)
            time.sleep(0.02)

    def until_text(self, text: str) -> None:
        self.until(lambda: text in "".join(texts(self.events)))

    def to_its_end(self) -> Watcher:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), self.seen
        return self

    def leave(self) -> None:
        self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)


def until_over(server: ServerProcess, run: str) -> dict[str, Any]:  # Any: JSON
    deadline = time.monotonic() + PATIENCE
    while (found := server.get(f"/runs/{run}").body)["state"] != "ended":
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return dict(found)


def text_of(events: list[Event]) -> tuple[str, str]:
    """What came in pieces, and what came whole."""
    pieces = "".join(texts([event for event in events if event.get("partial")]))
    return pieces, "".join(texts([event for event in events if not event.get("partial")]))


def test_two_processes_show_the_same_events_under_the_same_ids(servers: Servers) -> None:
    here, there = servers
    here.create("same")
    here.run_in_thread("same", "say before; note same; nap 1", onDisconnect="detach")
    run = there.run_of("same", "live")
    both = [Watcher(server, run) for server in servers]
    one, other = [watcher.to_its_end() for watcher in both]
    assert one.whole == other.whole
    for watcher in both:
        assert text_of(watcher.events)[1] == "before done "
        assert text_of(watcher.events)[0].endswith("done ")
    assert not other.comments


def test_words_come_as_they_are_said_and_whoever_comes_late_gets_those_before(servers: Servers) -> None:
    here, there = servers
    here.create("words")
    here.run_in_thread("words", "drip 20", onDisconnect="detach")
    run = there.run_of("words", "live")
    early = Watcher(there, run)
    early.until_text("drop drop drop ")
    late = Watcher(there, run)
    late.to_its_end()
    early.to_its_end()
    assert text_of(early.events) == text_of(late.events) == ("drop " * 20,) * 2
    times = [at for _, event, at in early.seen if event.get("partial")]
    assert len(times) > 5
    assert times[-1] - times[0] > 1, "the words came all at once"


def test_output_of_a_tool_is_seen_at_the_other_process(servers: Servers) -> None:
    here, there = servers
    here.create("output")
    here.run_in_thread("output", "tell one two 1", onDisconnect="detach")
    run = there.run_of("output", "live")
    both = [Watcher(server, run).to_its_end() for server in (there, here)]
    assert both[0].whole == both[1].whole
    assert "one two" in str(both[0].events)


def test_a_viewer_comes_back_to_any_process_and_misses_and_repeats_nothing(servers: Servers) -> None:
    here, there = servers
    here.create("back")
    here.run_in_thread("back", "say first; note back; nap 2", onDisconnect="detach")
    run = there.run_of("back", "live")
    watcher = Watcher(there, run)
    watcher.until(lambda: watcher.whole)
    watcher.leave()
    [seq] = [seq for seq, _ in watcher.whole]
    assert seq is not None
    rest = [Watcher(server, run, after=seq) for server in servers]
    for each in rest:
        each.to_its_end()
        ids = [event["id"] for event in [*watcher.events, *each.events] if not event.get("partial")]
        assert len(set(ids)) == len(ids), ids
    assert rest[0].whole == rest[1].whole


def test_a_run_ends_with_its_last_viewer_wherever_that_is(servers: Servers) -> None:
    here, there = servers
    here.create("last")
    with closing(here.begin("POST", "/run_sse", message("last", "nap 30", onDisconnect="cancel"))):
        run = there.run_of("last", "live")
        watcher = Watcher(there, run)
        watcher.until(lambda: watcher.whole)
    time.sleep(1.0)
    assert here.get(f"/runs/{run}").body["state"] == "live", "it has a viewer at the other process"
    watcher.leave()
    assert until_over(here, run)["reason"]["source"] == "disconnect"


def test_a_repeated_message_is_told_as_it_goes_on_elsewhere(servers: Servers) -> None:
    here, there = servers
    here.create("again")
    first = here.run_in_thread("again", "drip 10", idempotencyKey="k", streaming=True)
    there.run_of("again", "live")
    with there.stream("again", "drip 10", idempotencyKey="k") as frames:
        seen = [event for _, event in frames]
    assert text_of(seen) == ("drop " * 10,) * 2
    assert first.answer().body[-1]["id"] == seen[-1]["id"]


def test_an_owner_that_cannot_be_reached_is_told_and_nothing_is_missing_or_doubled_when_it_can(
    servers: Servers,
) -> None:
    here, there = servers
    here.create("frozen")
    here.run_in_thread("frozen", "drip 30", onDisconnect="detach")
    run = there.run_of("frozen", "live")
    watcher = Watcher(there, run)
    watcher.until_text("drop drop ")
    assert here.process is not None
    here.process.send_signal(signal.SIGSTOP)
    try:
        watcher.until(lambda: watcher.comments)
        assert "only what is stored" in watcher.comments[0]
    finally:
        here.process.send_signal(signal.SIGCONT)
    watcher.to_its_end()
    assert text_of(watcher.events) == ("drop " * 30,) * 2


def test_the_stream_goes_on_after_a_kill_of_the_owner_and_each_event_is_told_once(new_server: Start) -> None:
    with new_server() as here, new_server() as there:
        here.create("killed")
        here.run_in_thread("killed", "say first; note killed; nap 3", onDisconnect="detach")
        run = there.run_of("killed", "live")
        watcher = Watcher(there, run)
        here.until_did("nap begins")
        watcher.until(lambda: watcher.whole)
        here.kill()
        watcher.to_its_end()
        ids = [event["id"] for _, event in watcher.whole]
        assert len(set(ids)) == len(ids), watcher.seen
        assert texts([watcher.events[-1]]) == ["done "]
        stored = [event for event in there.events("killed") if event["author"] != "user" or "id" in event]
        assert set(ids) <= {event["id"] for event in stored}


def test_a_run_that_is_handed_over_is_seen_to_its_real_end(new_server: Start) -> None:
    with new_server() as here, new_server() as there, new_server() as third:
        here.create("moved")
        here.run_in_thread("moved", "say first; note moved; nap 1.5", onDisconnect="detach")
        run = there.run_of("moved", "live")
        watchers = [Watcher(server, run) for server in (there, third)]
        here.until_did("nap begins")
        here.terminate()
        for watcher in watchers:
            watcher.to_its_end()
            ids = [event["id"] for _, event in watcher.whole]
            assert len(set(ids)) == len(ids), watcher.seen
            assert texts([watcher.events[-1]]) == ["done "], watcher.events[-1]
            assert "shutting down" not in str(watcher.events)
        assert watchers[0].whole == watchers[1].whole
        ends = [watcher.seen[-1][2] for watcher in watchers]
        assert abs(ends[0] - ends[1]) < 1.0, "the stream of one of them went on late"
