"""One WebSocket, many messages: streamed, refused, stopped, left, and always closed with a whole history."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.server.impatient_server import STALLED_SECONDS
from tests.server.server_process import PATIENCE, ServerProcess, calls_and_results, texts, until_let_go

Json = dict[str, Any]  # Any: JSON


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("live")
    with ServerProcess(folder, command=("tests.server.impatient_server",)) as running:
        yield running


class Live:
    """`with Live(server, session) as live:`; one socket of one session, which is made if it is not there."""

    def __init__(self, server: ServerProcess, session: str, **query: str) -> None:
        server.post(f"/apps/worker/users/ann/sessions/{session}")
        self.socket = open_socket(server, session_id=session, **query)

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, **frame: object) -> None:
        self.socket.send(json.dumps(frame))

    def say(self, text: str, **more: object) -> None:
        self.send(content={"parts": [{"text": text}]}, **more)

    def next(self) -> Json:
        found: Json = json.loads(self.socket.recv(timeout=PATIENCE))
        return found

    def turn(self) -> list[Json]:
        """All events up to the one that completes the turn."""
        found = [self.next()]
        while not found[-1].get("turnComplete"):
            found.append(self.next())
        return found

    def closed(self) -> tuple[int, str]:
        """The code and the reason of the close, once it comes."""
        return read_to_close(self.socket)


def read_to_close(connection: ClientConnection) -> tuple[int, str]:
    with suppress(ConnectionClosed):
        while True:
            connection.recv(timeout=PATIENCE)
    return connection.close_code or 0, connection.close_reason or ""


def open_socket(server: ServerProcess, **query: str) -> ClientConnection:
    words = urlencode({"app_name": "worker", "user_id": "ann", **query})
    address = f"ws://127.0.0.1:{server.port}/run_live?{words}"
    return connect(address, max_size=None, open_timeout=PATIENCE, legacy=True)


def whole(events: list[Json]) -> list[Json]:
    """What the agent said and did. A message that joins a run is told too."""
    return [event for event in events if not event.get("partial") and event["author"] != "user"]


def assert_sealed(server: ServerProcess, session: str) -> None:
    events = server.events(session)
    calls, results = calls_and_results(events)
    assert sorted(calls) == sorted(results), [str(event)[-500:] for event in events]


def until_idle(server: ServerProcess, session: str) -> Json:
    """The newest run of the session, once it is over."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = [run for run in server.get("/runs").body if run["sessionId"] == session]
        if found and found[0]["state"] not in ("live", "queued"):
            return dict(found[0])
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def test_each_message_is_a_run_whose_words_are_streamed(server: ServerProcess) -> None:
    with Live(server, "talk", modalities="TEXT") as live:
        live.say("say one two three")
        first = live.turn()
        live.send(content={"role": "user", "parts": [{"text": "note a"}]})
        second = live.turn()
    partials = [event for event in first if event.get("partial")]
    assert "".join(texts(partials)) == "one two three "
    assert texts(whole(first)) == ["one two three "]
    assert {event["id"] for event in first} == {whole(first)[-1]["id"]}
    assert [next(iter(event["content"]["parts"][0])) for event in whole(second)] == [
        "functionCall",
        "functionResponse",
        "text",
    ]
    assert "note a" in server.did()
    assert not any(value is None for event in first for value in event.values())
    assert texts(server.events("talk")) == ["say one two three", "one two three ", "note a", "done "]


def test_both_spellings_are_taken_and_a_state_delta_goes_with_the_message_or_alone(server: ServerProcess) -> None:
    with Live(server, "spelled") as live:
        live.say("say a", state_delta={"one": 1})
        live.turn()
        live.send(
            content={"parts": [{"inlineData": {"mimeType": "text/plain", "data": "YQ=="}}]}, stateDelta={"two": 2}
        )
        live.turn()
        live.send(content={"parts": [{"inline_data": {"mime_type": "text/plain", "data": "YQ=="}}]})
        live.turn()
        live.send(stateDelta={"three": 3})
        live.say("say b")
        live.turn()
    assert server.get("/apps/worker/users/ann/sessions/spelled").body["state"] == {"one": 1, "two": 2, "three": 3}


def test_a_message_may_come_in_parts_and_nothing_runs_before_it_is_whole(server: ServerProcess) -> None:
    with Live(server, "parts") as live:
        live.say("say a;", partial=True)
        live.say("note whole")
        live.turn()
    assert server.prompts()[-2][-1]["parts"] == server.prompts()[-1][-3]["parts"]
    assert [event["author"] for event in server.events("parts")].count("user") == 1
    assert texts(server.events("parts"))[:2] == ["say a;", "note whole"]


def test_a_malformed_frame_gets_an_error_and_the_socket_goes_on(server: ServerProcess) -> None:
    bad: list[str | bytes] = [
        "no json",
        "[]",
        '{"content": 3}',
        '{"content": {"parts": [{"txt": "x"}]}}',
        "{}",
        '{"content": {}}',
        b"\xff",
    ]
    with Live(server, "bad") as live:
        for frame in bad:
            live.socket.send(frame)
            told = live.next()
            assert told["errorCode"] in ("BAD_FRAME", "BAD_REQUEST"), frame
            assert told["errorMessage"]
            assert {"id", "author", "timestamp", "actions", "invocationId"} <= told.keys()
        live.say("say fine")
        assert texts(whole(live.turn())) == ["fine "]
    assert len(server.events("bad")) == 2


@pytest.mark.parametrize("field", ["blob", "activity_start", "activityEnd", "audio_stream_end"])
def test_audio_gets_an_error_that_says_so(server: ServerProcess, field: str) -> None:
    with Live(server, "audio") as live:
        live.send(**{field: {"data": "YQ==", "mimeType": "audio/pcm"}})
        told = live.next()
        assert told["errorCode"] == "UNSUPPORTED"
        assert "text" in told["errorMessage"]


@pytest.mark.parametrize(
    ("query", "code", "reason"),
    [
        ({"session_id": "nowhere"}, 1002, "Session not found"),
        ({"session_id": "a", "app_name": "nobody"}, 1008, "App not found: nobody"),
        ({"session_id": "a/b"}, 1008, ""),
        ({"session_id": "talk", "modalities": "AUDIO"}, 1008, "modalities=AUDIO: this server speaks TEXT only"),
        ({"session_id": "talk", "proactive_audio": "true"}, 1008, "proactive_audio: this server speaks TEXT only"),
    ],
)
def test_what_can_not_be_is_closed_with_its_code(
    server: ServerProcess, query: dict[str, str], code: int, reason: str
) -> None:
    with open_socket(server, **query) as refused:
        closed = read_to_close(refused)
    assert closed[0] == code
    assert reason in closed[1]
    assert server.get("/apps/worker/users/ann/sessions/nowhere").status == 404


def test_a_second_message_is_refused_and_the_first_runs_on(server: ServerProcess) -> None:
    times = server.did().count("nap ends") + 1
    with Live(server, "busy") as live:
        live.say("nap 0.5")
        assert "functionCall" in live.next()["content"]["parts"][0]
        live.say("say no")
        assert live.next()["errorCode"] == "SESSION_BUSY"
        assert texts(whole(live.turn())) == ["done "]
    server.until_did("nap ends", times)
    assert "no " not in texts(server.events("busy"))


@pytest.mark.parametrize(
    ("policy", "answers"),
    [("queue", ["done ", "second "]), ("interrupt", ["second "]), ("steer", ["second "])],
)
def test_if_busy_is_honoured_and_nothing_is_told_twice(server: ServerProcess, policy: str, answers: list[str]) -> None:
    session = f"busy-{policy}"
    times = server.did().count("nap begins") + 1
    with Live(server, session, if_busy=policy) as live:
        live.say("nap 0.5")
        server.until_did("nap begins", times)
        live.say("say second")
        events = live.turn()
        if policy != "steer":
            events += live.turn()
        live.say("say third")
        events += live.turn()
    assert texts(whole(events)) == [*answers, "third "]
    assert len({event["id"] for event in whole(events)}) == len(whole(events))
    assert_sealed(server, session)


def test_the_cancel_route_stops_a_live_run_and_the_socket_goes_on(server: ServerProcess) -> None:
    times = server.did().count("nap begins") + 1
    ends = server.did().count("nap ends")
    with Live(server, "cancel") as live:
        live.say("nap 30")
        server.until_did("nap begins", times)
        answer = server.cancel("cancel", reason="enough")
        assert answer.body["status"] == "cancelled"
        last = live.turn()[-1]
        assert (last["errorCode"], "enough" in last["errorMessage"]) == ("INVOCATION_ABORTED", True)
        live.say("say still here")
        assert texts(whole(live.turn())) == ["still here "]
    assert server.did().count("nap ends") == ends
    assert_sealed(server, "cancel")


def test_a_question_can_be_answered_on_the_same_socket(server: ServerProcess) -> None:
    with Live(server, "ask") as live:
        live.say("ask colour")
        call = calls_and_results(live.turn())[0][0]
        live.send(content={"parts": [{"functionResponse": {"id": call, "name": "ask", "response": {"result": "red"}}}]})
        live.turn()
    assert "answer red" in server.did()


def test_close_closes_and_the_run_follows_its_policy(server: ServerProcess) -> None:
    times = server.did().count("nap begins") + 1
    with Live(server, "close") as live:
        live.say("nap 30")
        server.until_did("nap begins", times)
        live.send(close=True)
        assert live.closed()[0] == 1000
    ended = until_idle(server, "close")
    assert (ended["outcome"], ended["reason"]["source"]) == ("cancelled", "disconnect")
    assert_sealed(server, "close")
    assert texts(server.run("close", "say next").body) == ["next "]


@pytest.mark.parametrize("how", ["closes", "vanishes"])
def test_a_client_that_leaves_stops_its_run_and_the_history_is_closed(server: ServerProcess, how: str) -> None:
    times = server.did().count("nap begins") + 1
    with Live(server, how) as live:
        live.say("nap 30")
        server.until_did("nap begins", times)
        if how == "vanishes":
            live.socket.socket.shutdown(socket.SHUT_RDWR)
    assert until_idle(server, how)["outcome"] == "cancelled"
    assert_sealed(server, how)
    assert any("functionResponse" in part for event in server.events(how) for part in event["content"]["parts"])


def test_a_detached_run_outlives_its_socket(server: ServerProcess) -> None:
    times = server.did().count("nap begins") + 1
    with Live(server, "detached", on_disconnect="detach") as live:
        live.say("nap 0.5")
        server.until_did("nap begins", times)
    assert until_idle(server, "detached")["outcome"] == "end_turn"


def test_a_client_that_reads_nothing_neither_holds_its_run_nor_its_connection(server: ServerProcess) -> None:
    server.create("stalled")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        path = "/run_live?app_name=worker&user_id=ann&session_id=stalled"
        hello = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        client.sendall(f"{hello}sec-websocket-key: {'A' * 22}==\r\nsec-websocket-version: 13\r\n\r\n".encode())
        assert client.recv(12) == b"HTTP/1.1 101"
        said = json.dumps({"content": {"parts": [{"text": "pour 40; nap 30"}]}}).encode()
        client.sendall(bytes([0x81, 0x80 | len(said), 0, 0, 0, 0]) + said)
        began = time.monotonic()
        ended = until_idle(server, "stalled")
        assert time.monotonic() - began < 10 * STALLED_SECONDS
        assert (ended["outcome"], ended["reason"]["source"]) == ("cancelled", "disconnect")
        until_let_go(server, client)
    assert_sealed(server, "stalled")


def test_a_failed_run_says_so_and_the_socket_goes_on(server: ServerProcess) -> None:
    with Live(server, "fails") as live:
        live.say("fail badly")
        assert "badly" in live.turn()[-1]["errorMessage"]
        live.say("say well")
        assert texts(whole(live.turn())) == ["well "]


def test_a_deleted_session_closes_its_socket_at_the_next_message(server: ServerProcess) -> None:
    with Live(server, "deleted") as live:
        server.http("DELETE", "/apps/worker/users/ann/sessions/deleted")
        live.say("say x")
        assert live.closed() == (1002, "Session not found")
    assert server.get("/apps/worker/users/ann/sessions/deleted").status == 404


def test_sigterm_tells_live_sockets_how_their_run_ended_and_then_closes_them(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, command=("tests.server.impatient_server",)) as server:
        with Live(server, "idle") as idle, Live(server, "running") as running, mute_socket(server, "idle") as mute:
            running.say("nap 0.3; note a")
            server.until_did("nap begins")
            code = server.terminate(timeout=10)  # also if a client never answers the close
            told = running.turn()
            assert told[-1]["errorCode"] == "INVOCATION_ABORTED"
            assert running.closed() == (1012, "the server is shutting down")
            assert idle.closed()[0] == 1012
            assert mute.recv(100) == b"\x88\x02" + (1012).to_bytes(2, "big"), "a close frame, and nothing else"
        assert code == 0
        assert "nap ends" in server.did(), "a safe point was waited for"


def mute_socket(server: ServerProcess, session: str) -> socket.socket:
    """An open WebSocket of a client that never says anything, not even that it has heard the close."""
    made = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    head = {
        "Host": f"127.0.0.1:{server.port}",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Version": "13",
    }
    lines = [f"GET /run_live?app_name=worker&user_id=ann&session_id={session} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in head.items()]
    made.sendall("\r\n".join([*lines, "", ""]).encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += made.recv(1)
    assert answer.startswith(b"HTTP/1.1 101")
    return made
