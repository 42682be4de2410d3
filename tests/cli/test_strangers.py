"""The commands, where something else than a Safepoint server is at the address: one line, and the code of an error."""

from __future__ import annotations

import re
import socket
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from itertools import cycle
from threading import Thread

import pytest
from typer.testing import CliRunner, Result

from safepoint.cli.main import app

COMMANDS = (
    ("ps",),
    ("stop", "run_1"),
    ("stop", "--all"),
    ("stop", "--session", "app/ann/s"),
    ("steer", "run_1", "hello"),
    ("why", "run_1"),
    ("resume", "run_1"),
    ("logs", "run_1"),
    ("logs", "run_1", "--follow"),
)
IDS = [" ".join(words) for words in COMMANDS]


def http(body: str, kind: str = "application/json", status: str = "200 OK", more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body.encode())}\r\n\r\n"
    return (head + body).encode()


JSON_OF_OTHERS = (
    "{}",
    "null",
    "7",
    '"hello"',
    "[1, null]",
    '[{"id": 1}]',
    '{"status": "ok"}',
    '{"status": "cancelled"}',
    '{"runs": {}, "status": "cancelled"}',
    '{"state": 3, "outcome": {}, "runId": [], "holding": "much", "events": "many"}',
    "[" * 100_000,
    '{"cut',
)


def received_request(client: socket.socket) -> bool:
    """Read one whole request: to close a connection with unread bytes resets it, and the answer is lost on the way."""
    received = b""
    while chunk := client.recv(65_536):
        received += chunk
        head, end, body = received.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        if end and len(body) >= (int(length[1]) if length else 0):
            return True
    return False


@contextmanager
def at(answers: Iterable[bytes]) -> Generator[str]:
    """An address where each caller gets the next of these bytes, and the connection is closed."""

    def serve(listener: socket.socket) -> None:
        for answer in answers:
            client, _ = listener.accept()
            with client:
                if not received_request(client):
                    return  # the test is over
                client.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = Thread(target=serve, args=(listener,), daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            socket.create_connection(listener.getsockname()).close()
            serving.join()


def cli(url: str, *words: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"SAFEPOINT_URL": url, "SAFEPOINT_KEY": ""})


def is_one_line(result: Result, code: int) -> bool:
    told_once = len(result.stderr.splitlines()) == 1 and result.stderr.startswith("safepoint: ")
    return isinstance(result.exception, SystemExit) and result.exit_code == code and told_once


@pytest.mark.parametrize("words", COMMANDS, ids=IDS)
def test_json_of_another_service_is_told_in_one_line(words: tuple[str, ...]) -> None:
    for body in JSON_OF_OTHERS:
        for asked in (words, (*words, "--json")):
            with at(cycle([http(body)])) as url:
                result = cli(url, *asked)
            assert is_one_line(result, 1), (body[:50], result.output, result.exception)
            assert f"{url} does not answer as a Safepoint server does" in result.stderr
            assert result.stdout == ""


@pytest.mark.parametrize("words", COMMANDS, ids=IDS)
def test_a_web_page_is_told_in_one_line(words: tuple[str, ...]) -> None:
    page = "<!doctype html>\n<title>Router</title>\n<p>Log in"
    for status in ("200 OK", "404 Not Found", "302 Found", "500 Oops"):
        with at(cycle([http(page, "text/html", status)])) as url:
            result = cli(url, *words)
        assert is_one_line(result, 1), (status, result.output, result.exception)


@pytest.mark.parametrize("words", COMMANDS, ids=IDS)
def test_a_connection_that_is_closed_is_told_in_one_line(words: tuple[str, ...]) -> None:
    half = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"runs"'
    for answer in (b"", b"HTTP", half, b"SSH-2.0-OpenSSH\x1b[2J_9.6\r\n", b"\x15\x03\x01\x00\x02\x02P"):
        with at(cycle([answer])) as url:
            result = cli(url, *words)
        assert is_one_line(result, 3), (answer, result.output, result.exception)
        assert "\x1b" not in result.stderr


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (http('data: {"half\n\n', "text/event-stream"), 1),
        (http("data: [1]\n\n", "text/event-stream"), 1),
        (http('data: {"id": "e", "content": {"parts": [5]}}\n\n', "text/event-stream"), 1),
        (http("{}"), 1),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndat", 3),
    ],
)
def test_a_stream_of_something_else_is_told_in_one_line(stream: bytes, code: int) -> None:
    known = http('{"runId": "run_1", "state": "ended"}')
    with at([known, stream, b""]) as url:
        result = cli(url, "logs", "run_1", "--follow")
    assert is_one_line(result, code), (result.output, result.exception)


def test_a_list_that_goes_on_without_anything_new_is_told_in_one_line() -> None:
    link = 'Link: <?after=1.0,run_1>; rel="next"\r\n'
    for body in ("[]", '[{"runId": "run_1", "state": "live"}]'):
        with at(cycle([http(body, more=link)])) as url:
            assert is_one_line(cli(url, "ps"), 1)


def test_metadata_of_clients_does_not_hide_what_was_said() -> None:
    event = '{"id": "e", "author": "ann", "customMetadata": {"safepointQuestions": 5}, "content": {"parts": [%s]}}'
    known, parts = http('{"runId": "run_1", "state": "ended"}'), '{"text": "hello"}, {"inlineData": {}}'
    with at([known, http(f"data: {event % parts}\n\n", "text/event-stream"), b""]) as url:
        result = cli(url, "logs", "run_1", "--follow")
    assert (result.exit_code, result.stdout[9:]) == (0, "ann: hello <inlineData>\n")


@pytest.mark.parametrize("url", ["http://here:port", "http://[::1", "http://a..b", "http://here:0", "http://here/ü"])
def test_an_address_that_is_none_is_wrong_use(url: str) -> None:
    assert is_one_line(cli(url, "ps"), 2)
