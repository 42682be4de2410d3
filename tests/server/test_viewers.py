"""Those who watch a run: slow, stalled, gone, many, and back again. The run goes on as if nobody was there."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from safepoint.protocols.adk.events import encode
from safepoint.serving.events import FeedEvent, MessageEvent, PartialText, RunEnd, Turn
from safepoint.serving.feed import Feed
from tests.server.impatient_server import VIEWERS
from tests.server.server_process import PATIENCE, ServerProcess, calls_and_results, message, texts, until_let_go


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("viewers")
    with ServerProcess(folder, command=("tests.server.impatient_server",)) as running:
        yield running


def connected(
    server: ServerProcess, method: str, path: str, body: object = None, *, window: int = 4096
) -> socket.socket:
    """A client that has asked, and reads nothing unless it is made to."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    client.connect(("127.0.0.1", server.port))
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\ncontent-type: application/json\r\n"
    client.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return client


def run_of(server: ServerProcess, session: str) -> dict[str, Any]:  # Any: JSON
    """The newest run of the session."""
    return next(run for run in server.get("/runs").body if run["sessionId"] == session)


def until(server: ServerProcess, session: str, **wanted: object) -> dict[str, Any]:  # Any: JSON
    """The newest run of the session, once it is so."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = [run for run in server.get("/runs").body if run["sessionId"] == session]
        for run in found[: 1 if "runId" not in wanted else None]:
            if all(run.get(name) == value for name, value in wanted.items()):
                return dict(run)
        assert time.monotonic() < deadline, found[:3]
        time.sleep(0.02)


def memory_of(server: ServerProcess) -> int:
    """Resident bytes."""
    assert server.process is not None
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def test_stalled_readers_hold_next_to_nothing(server: ServerProcess) -> None:
    server.create("held")
    with ExitStack() as crowd:
        body = message("held", "pour 80; stall", streaming=True, onDisconnect="detach")
        crowd.enter_context(connected(server, "POST", "/run_sse", body))
        server.until_did("stall")
        run_id, before = run_of(server, "held")["runId"], memory_of(server)
        path = f"/runs/{run_id}/events"
        stalled = [crowd.enter_context(connected(server, "GET", path)) for _ in range(30)]
        assert all(client.recv(1) for client in stalled)
        grown = memory_of(server) - before
        server.cancel("held")
    assert len(texts(server.events("held"))[1]) == 8_000_000
    assert grown < 60_000_000, "30 viewers would hold 240 MB if each had what it has not read"


def test_stalled_readers_do_not_slow_the_run(server: ServerProcess) -> None:
    server.create("alone")
    server.create("crowd")
    began = time.monotonic()
    assert len(texts(server.run("alone", "nap 0.2").body)[-1]) > 0
    server.run("alone", "pour 80")
    alone = time.monotonic() - began
    with ExitStack() as crowd:
        began = time.monotonic()
        body = message("crowd", "nap 0.2", streaming=True, onDisconnect="detach")
        crowd.enter_context(connected(server, "POST", "/run_sse", body))
        first = until(server, "crowd")["runId"]
        body = message("crowd", "pour 80", streaming=True, onDisconnect="detach", ifBusy="queue")
        crowd.enter_context(connected(server, "POST", "/run_sse", body))
        while (run_id := run_of(server, "crowd")["runId"]) == first:
            time.sleep(0.01)
        for _ in range(30):
            crowd.enter_context(connected(server, "GET", f"/runs/{run_id}/events"))
        until(server, "crowd", runId=run_id, outcome="end_turn")
    assert time.monotonic() - began < 3 * alone + 5
    assert len(texts(server.events("crowd"))[-1]) == 8_000_000


def test_a_reader_that_never_reads_is_dropped_and_its_run_stopped(server: ServerProcess) -> None:
    server.create("never")
    with connected(server, "POST", "/run_sse", message("never", "pour 40; nap 30", streaming=True)) as client:
        stopped = until(server, "never", state="ended")
        assert (stopped["outcome"], stopped["reason"]["source"]) == ("cancelled", "disconnect")
        until_let_go(server, client)
    calls, results = calls_and_results(server.events("never"))
    assert len(calls) == 1
    assert calls == results


def test_a_reader_that_is_slow_has_everything_in_the_end(server: ServerProcess) -> None:
    server.create("slow")
    read = bytearray()
    with connected(server, "POST", "/run_sse", message("slow", "pour 60", streaming=True), window=200_000) as client:
        while data := client.recv(100_000):
            read += data
            if data.endswith(b"0\r\n\r\n"):
                break
            time.sleep(0.002)
    frames = bytes(read).split(b"\n\n")
    assert b'"usageMetadata"' in frames[-2]
    assert frames[-2].count(b"x") > 5_999_900
    poured = sum(frame.count(b"x") for frame in frames[:-2])
    assert 0 < poured < 6_001_000, "no word twice; once the whole message is there, it takes the place of the rest"


def test_who_comes_back_gets_the_stored_events_then_the_words_so_far_then_what_follows(server: ServerProcess) -> None:
    server.create("back")
    body = message("back", "note a; nap 0.1", streaming=True, onDisconnect="detach")
    with server.open_stream("POST", "/run_sse", body) as frames:
        first = next(iter(frames))
    run_id = run_of(server, "back")["runId"]
    with server.open_stream("GET", f"/runs/{run_id}/events?after={first[0]}") as frames:
        rest = list(frames)
    with server.open_stream("GET", f"/runs/{run_id}/events", headers={"last-event-id": "1"}) as frames:
        again = [frame for frame in frames if not frame[1].get("partial")]
    assert [frame for frame in rest if not frame[1].get("partial")] == again
    assert [seq for seq, _ in again] == [2, 3]
    assert again[-1][1]["content"]["parts"] == [{"text": "done "}]


def test_results_are_told_before_the_words_that_answer_them_and_words_have_the_id_of_their_message(
    server: ServerProcess,
) -> None:
    server.create("order")
    with server.stream("order", "note a") as frames:
        told = [event for _, event in frames]
    kinds = ["partial" if event.get("partial") else next(iter(event["content"]["parts"][0])) for event in told]
    assert kinds == ["functionCall", "functionResponse", *["partial"] * (len(told) - 3), "text"]
    assert {event["id"] for event in told[2:]} == {told[-1]["id"]}
    assert kinds.count("partial") >= 1


def test_the_words_so_far_come_as_one_piece(server: ServerProcess) -> None:
    server.create("words")
    body = message("words", "say one two three; stall", streaming=True, onDisconnect="detach")
    with server.open_stream("POST", "/run_sse", body) as frames:
        seen = ""
        for _, event in frames:
            seen += event["content"]["parts"][0]["text"]
            if seen == "one two three ":
                break
    run_id = run_of(server, "words")["runId"]
    with server.open_stream("GET", f"/runs/{run_id}/events") as frames:
        again = iter(frames)
        seq, event = next(again)
        assert (seq, event["partial"], event["content"]["parts"][0]["text"]) == (0, True, "one two three ")
        server.cancel("words")
        *_, (_, last) = again
    assert last["errorCode"] == "INVOCATION_ABORTED"


def test_many_viewers_see_the_same_and_one_more_than_may_is_refused(server: ServerProcess) -> None:
    server.create("many")
    body = message("many", "say one two; stall", streaming=True)
    with server.open_stream("POST", "/run_sse", body) as first, ExitStack() as others:
        next(iter(first))
        run_id = run_of(server, "many")["runId"]
        path = f"/runs/{run_id}/events"
        streams = [others.enter_context(server.open_stream("GET", path)) for _ in range(VIEWERS - 1)]
        refused = server.get(path)
        assert (refused.status, str(VIEWERS) in refused.body["detail"]) == (503, True)
        server.cancel("many")
        ends = [list(stream)[-1] for stream in (first, *streams)]
    assert {seq for seq, _ in ends} == {1}
    assert len({json.dumps(event, sort_keys=True) for _, event in ends}) == 1
    with server.open_stream("GET", path) as again:
        assert len(list(again)) == 1


def test_a_silent_stream_is_kept_alive_and_no_proxy_may_buffer_it(server: ServerProcess) -> None:
    server.create("silent")
    with server.stream("silent", "nap 1") as frames:
        told = list(frames)
    assert frames.comments >= 2
    assert told[-1][1]["content"]["parts"] == [{"text": "done "}]
    assert frames.headers["x-accel-buffering"] == "no"
    assert "no-transform" in frames.headers["cache-control"]
    assert frames.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("path", ["/run", "/run_sse"])
def test_a_run_ends_when_its_only_client_leaves(server: ServerProcess, path: str) -> None:
    session = f"left{path[4:]}"
    server.create(session)
    times = server.did().count("nap begins") + 1
    with connected(server, "POST", path, message(session, "nap 30", streaming=True)):
        server.until_did("nap begins", times)
    ended = until(server, session, state="ended")
    assert (ended["outcome"], ended["reason"]["source"]) == ("cancelled", "disconnect")


def test_a_client_that_leaves_before_the_headers_leaves_no_run_behind(server: ServerProcess) -> None:
    for number in range(20):
        server.create(f"early{number}")
    for number in range(20):
        connected(server, "POST", "/run_sse", message(f"early{number}", "nap 30", streaming=True)).close()
    deadline = time.monotonic() + PATIENCE
    while live := [run for run in server.get("/runs?state=live").body if run["sessionId"].startswith("early")]:
        assert time.monotonic() < deadline, live
        time.sleep(0.02)


def test_cancel_after_waits_for_a_viewer_to_come_back_and_starts_anew_when_that_leaves(server: ServerProcess) -> None:
    server.create("waits")
    body = message("waits", "nap 30", streaming=True, onDisconnect={"cancelAfter": 1.0})
    times = server.did().count("nap begins") + 1
    with connected(server, "POST", "/run_sse", body):
        server.until_did("nap begins", times)
    run_id = run_of(server, "waits")["runId"]
    time.sleep(0.6)
    with connected(server, "GET", f"/runs/{run_id}/events") as client:
        assert client.recv(10)
        time.sleep(0.7)
        assert run_of(server, "waits")["state"] == "live", "somebody watches"
    left = time.monotonic()
    time.sleep(0.7)
    assert run_of(server, "waits")["state"] == "live", "the time of the first leave does not count any more"
    until(server, "waits", outcome="cancelled")
    assert time.monotonic() - left >= 0.95


def test_a_viewer_of_a_message_that_joined_a_run_is_a_viewer_of_that_run(server: ServerProcess) -> None:
    server.create("steered")
    times = server.did().count("nap begins") + 1
    with connected(server, "POST", "/run_sse", message("steered", "nap 1", streaming=True)):
        server.until_did("nap begins", times)
        joins = connected(server, "POST", "/run_sse", message("steered", "nap 30", ifBusy="steer"))
        server.until_did("nap begins", times + 1)
    assert run_of(server, "steered") is not None
    live = server.get("/runs?state=live").body
    assert [run["sessionId"] for run in live] == ["steered"]
    joins.close()
    deadline = time.monotonic() + PATIENCE
    while server.get("/runs?state=live").body:
        assert time.monotonic() < deadline, "nobody watches, and it runs on"
        time.sleep(0.02)


# -- the feed by itself ------------------------------------------------------------------------------------------------


def told(feed: Feed, after: int = 0) -> list[tuple[int, str]]:
    """What a viewer who comes now can take: the number, and the text or the id."""
    found: list[tuple[int, str]] = []
    with feed.view(after) as viewer:
        while (frame := viewer.take()) is not None:
            found.append((frame.seq, frame.event.text if isinstance(frame.event, PartialText) else "whole"))
    return found


def test_words_keep_their_order_and_thoughts_stay_apart() -> None:
    feed = Feed(Turn("run_1", "a"))
    for text, thought in (("hm", True), ("m", True), ("yes", False), (" no", False)):
        feed.append_partial(PartialText(feed.turn, 0, 0.0, text, thought))
    assert told(feed) == [(0, "hmm"), (0, "yes no")]


def test_words_of_a_failed_attempt_are_not_told_with_those_of_the_next() -> None:
    feed = Feed(Turn("run_1", "a"))
    feed.append_partial(PartialText(feed.turn, 0, 0.0, "half an ans", False))
    with feed.view() as viewer:
        assert viewer.take() is not None
        feed.begin()
        feed.append_partial(PartialText(feed.turn, 0, 0.0, "the answer", False))
        frame = viewer.take()
    assert frame is not None
    assert isinstance(frame.event, PartialText)
    assert frame.event.text == "the answer"


def test_no_viewer_is_given_more_words_at_once_than_it_may_hold() -> None:
    feed = Feed(Turn("run_1", "a"))
    for _ in range(10):
        feed.append_partial(PartialText(feed.turn, 0, 0.0, "x" * 100_000, False))
    assert max(len(text) for _, text in told(feed)) <= 400_000
    assert sum(len(text) for _, text in told(feed)) == 1_000_000


def test_words_wake_only_who_wants_to_see_them() -> None:
    feed, words, whole = Feed(Turn("run_1", "a")), asyncio.Event(), asyncio.Event()
    with feed.view(several=words), feed.view(partials=False, several=whole):
        feed.append_partial(PartialText(feed.turn, 0, 0.0, "one", False))
        assert (words.is_set(), whole.is_set()) == (True, False)
        feed.append(MessageEvent(feed.turn, 0, 1.0))
        assert whole.is_set()


def test_an_event_is_encoded_once_for_each_wire_however_many_view_it() -> None:
    feed, written = Feed(Turn("run_1", "a")), list[str]()

    def count(event: FeedEvent) -> str:
        written.append("counted")
        return event.id

    def shout(event: FeedEvent) -> str:
        written.append("shouted")
        return event.id.upper()

    with feed.view() as one, feed.view() as two:
        feed.append(MessageEvent(feed.turn, 0, 1.0))
        feed.append_partial(PartialText(feed.turn, 1, 1.0, "more"))
        for encoder in (count, count, shout):
            with feed.view() as viewer:
                while (frame := viewer.take()) is not None:
                    frame.encoded(encoder)
        assert [one.take(), one.take()] == [two.take(), two.take()]
    assert sorted(written) == ["counted", "counted", "shouted", "shouted"]


def test_half_a_surrogate_pair_can_be_sent() -> None:
    feed = Feed(Turn("run_1", "a"))
    feed.append_partial(PartialText(feed.turn, 0, 0.0, "\ud83d", False))
    with feed.view() as viewer:
        frame = viewer.take()
    assert frame is not None
    assert json.loads(frame.encoded(encode).encode())["content"]["parts"] == [{"text": "\ud83d"}]


def test_the_feed_tells_when_the_first_viewer_comes_and_the_last_one_leaves() -> None:
    heard: list[bool] = []
    feed, other = Feed(Turn("run_1", "a"), watched=heard.append), Feed(Turn("run_2", "a"))
    first, second = feed.view(), feed.view()
    first.leave()
    first.leave()
    assert heard == [True]
    second.leave()
    third = feed.view()
    assert heard == [True, False, True]
    feed.join(other)
    assert (third.feed, heard) == (other, [True, False, True])


async def _waits(feed: Feed) -> bool:
    """Cancellation: that of the test."""
    with feed.view() as viewer:
        waiting = asyncio.create_task(viewer.wait())
        await asyncio.sleep(0)
        feed.append(MessageEvent(feed.turn, 0, 0.0, end=RunEnd("end_turn")))
        await waiting
        frame = viewer.take()
    return frame is not None and frame.last


def test_who_waits_is_woken_and_sees_that_it_is_the_last() -> None:
    assert asyncio.run(_waits(Feed(Turn("run_1", "a"))))
