"""Bytes that no client would send, by seed: the same number always sends the same."""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

HOST = b"Host: 127.0.0.1\r\n"
MESSAGE = {
    "appName": "worker",
    "userId": "ann",
    "sessionId": "fuzz",
    "newMessage": {"role": "user", "parts": [{"text": "say hi"}]},
}
PATHS = (
    "/run",
    "/run_sse",
    "/runs",
    "/runs:cancel",
    "/apps/worker/users/ann/sessions",
    "/list-apps",
    "/health",
    "/docs",
)
SHAKE = (
    b"GET /run_live?app_name=worker&user_id=ann&session_id=fuzz HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@dataclass(frozen=True)
class Case:
    """What is sent, in pieces; `pause` between them; `end`: how the client leaves."""

    kind: str
    pieces: list[bytes]
    pause: float = 0.0
    end: str = "read"

    def send(self, port: int) -> bytes:
        """What came back, as far as the client looked."""
        received = b""
        with socket.create_connection(("127.0.0.1", port), 10) as connection, suppress(OSError):
            for piece in self.pieces:
                connection.sendall(piece)
                time.sleep(self.pause)
            match self.end:
                case "reset":
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return received
                case "leave":
                    return received
                case "half":
                    connection.shutdown(socket.SHUT_WR)
                case _:
                    pass
            connection.settimeout(0.3)
            while len(received) < 1_000_000 and (piece := connection.recv(65536)):
                received += piece
        return received


def kind_of(seed: int) -> str:
    return random.Random(seed).choice(list(KINDS))


def case(seed: int) -> Case:
    kind, rng = kind_of(seed), random.Random(seed + 1)
    pieces = KINDS[kind](rng)
    if rng.random() < 0.3:
        pieces = [part for piece in pieces for part in _cut(rng, piece)]
    end = rng.choice(["read", "read", "read", "leave", "reset", "half"])
    return Case(kind, pieces, pause=rng.choice([0.0, 0.0, 0.0, 0.01]) if len(pieces) < 20 else 0.0, end=end)


def _cut(rng: random.Random, data: bytes) -> list[bytes]:
    places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, 5)))
    edges = [0, *places, len(data)]
    return [data[start:end] for start, end in pairwise(edges) if start != end]


def _noise(rng: random.Random, size: int) -> bytes:
    return rng.randbytes(size)


def _request(rng: random.Random, body: bytes, *more: bytes) -> bytes:
    method = rng.choice([b"POST", b"POST", b"POST", b"GET", b"PATCH", b"DELETE", b"PUT", b"BREW"])
    head = method + b" " + rng.choice(PATHS).encode() + b" HTTP/1.1\r\n" + HOST + b"".join(more)
    length = (
        b"" if any(b"ength" in each or b"ncoding" in each for each in more) else b"Content-Length: %d\r\n" % len(body)
    )
    return head + b"Content-Type: application/json\r\n" + length + b"\r\n" + body


def _garbage(rng: random.Random) -> list[bytes]:
    return [_noise(rng, rng.randrange(1, 3000)) + rng.choice([b"", b"\r\n\r\n"])]


def _mutated(rng: random.Random) -> list[bytes]:
    data = bytearray(_request(rng, json.dumps(MESSAGE).encode()))
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(data))
        match rng.randrange(3):
            case 0:
                data[place] = rng.randrange(256)
            case 1:
                del data[place : place + rng.randrange(8)]
            case _:
                data[place:place] = _noise(rng, rng.randrange(8))
    return [bytes(data)]


def _bad_text(rng: random.Random) -> list[bytes]:
    bad = rng.choice([b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xaf", b"\x00", b"%ff", b"%00", b"%c0%af", b"%"])
    body = json.dumps(MESSAGE).encode().replace(b"hi", bad)
    escaped = rng.choice([rb"\ud800", rb"\udc00\ud800", rb"\u0000", rb"\uZZZZ", rb"\x"])
    return [
        rng.choice(
            [
                _request(rng, body),
                _request(rng, json.dumps(MESSAGE).encode().replace(b"hi", escaped)),
                b"GET /runs/" + bad + b" HTTP/1.1\r\n" + HOST + b"\r\n",
                b"GET /runs?state=" + bad + b" HTTP/1.1\r\n" + HOST + b"X: " + bad + b"\r\n\r\n",
            ]
        )
    ]


def _huge_head(rng: random.Random) -> list[bytes]:
    size = rng.choice([31_000, 33_000, 70_000, 300_000])
    name = rng.choice([b"X-Large: ", b"Cookie: ", b"Authorization: Bearer ", b"Origin: http://", b"Expect: "])
    many = [b"X-%d: 1\r\n" % number for number in range(size // 10)]
    return [b"GET /runs HTTP/1.1\r\n", HOST, *rng.choice([[name + b"a" * size + b"\r\n"], many]), b"\r\n"]


def _deep(rng: random.Random) -> list[bytes]:
    depth = rng.choice([64, 65, 1000, 200_000])
    opened, closed = rng.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"b":[', b"]}]")])
    whole = opened * depth + b"1" + rng.choice([closed * depth, b""])
    return [_request(rng, rng.choice([whole, b'{"state": ' + whole + b"}"]))]


def _wide(rng: random.Random) -> list[bytes]:
    value = rng.choice([b"1,", b"[],", b'"",', b"{},", b'"a":1,', b"1e999,", b"NaN,", b"null,"])
    count = rng.choice([100, 49_000, 400_000])
    whole = rng.choice([b"[%b0]", b'{"parts": [%b0]}', b'{"newMessage": {"parts": [%b0]}}', b'{"at": [%b0]}'])
    return [_request(rng, whole.replace(b"%b", value * count))]


def _wrong_types(rng: random.Random) -> list[bytes]:
    odd: list[object] = [None, True, -1, 10**18, 1.5, "", "x" * 5000, [], [[]], {}, {"a": None}]
    body = {name: rng.choice([value, rng.choice(odd)]) for name, value in MESSAGE.items() if rng.random() < 0.9}
    for extra in ("ifBusy", "onDisconnect", "idempotencyKey", "streaming", "stateDelta", "at", "waitSeconds", "all"):
        if rng.random() < 0.4:
            body[extra] = rng.choice(odd)
    return [_request(rng, json.dumps(body).encode())]


def _half(rng: random.Random) -> list[bytes]:
    whole = _request(rng, json.dumps(MESSAGE).encode())
    return [whole[: rng.randrange(1, len(whole))]]


def _lying_length(rng: random.Random) -> list[bytes]:
    length = rng.choice([b"0", b"5", b"999", b"-1", b"1e3", b"0x10", b"99999999999999999999", b"", b"7, 7", b"\xb2"])
    return [_request(rng, json.dumps(MESSAGE).encode(), b"Content-Length: " + length + b"\r\n")]


def _lying_chunks(rng: random.Random) -> list[bytes]:
    sizes = [b"5", b"zz", b"-1", b"ffffffffffffffff", b"0", b"5;ext=\xff", b"", b" 5", b"5\n", b"00000000000000005"]
    chunks = [
        rng.choice(sizes) + b"\r\n" + rng.choice([b"{}   ", b"", b"hello", b"x" * 70_000]) + b"\r\n" for _ in range(4)
    ]
    return [
        _request(rng, b"".join(chunks), b"Transfer-Encoding: chunked\r\n"),
        rng.choice([b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b""]),
    ]


def _pipelined(rng: random.Random) -> list[bytes]:
    makers = [_mutated, _wrong_types, _lying_chunks, _garbage, _bad_text]
    good = b"GET /list-apps HTTP/1.1\r\n" + HOST + b"\r\n"
    pieces = [rng.choice([[good], [good], rng.choice(makers)(rng)]) for _ in range(rng.randrange(2, 12))]
    return [b"".join(part for piece in pieces for part in piece)]


def _handshakes(rng: random.Random) -> list[bytes]:
    shake = rng.choice(
        [
            SHAKE.replace(b"Version: 13", b"Version: 99"),
            SHAKE.replace(b"Key: dGhl", b"Key: \xff"),
            SHAKE.replace(b"session_id=fuzz", b"session_id=" + b"a" * rng.choice([10, 9_000, 40_000])),
            SHAKE.replace(b"\r\n\r\n", b"\r\n" + b"X-Many: 1\r\n" * rng.choice([10, 200]) + b"\r\n"),
            SHAKE.replace(b"GET", b"POST"),
            SHAKE[: rng.randrange(20, len(SHAKE))],
            SHAKE.replace(b"/run_live", b"/run"),
            SHAKE.replace(b"Upgrade: websocket", b"Upgrade: h2c"),
        ]
    )
    return [shake]


def _frames(rng: random.Random) -> list[bytes]:
    frames: list[bytes] = [SHAKE]
    for _ in range(rng.randrange(1, 6)):
        payload = rng.choice(
            [
                b"",
                b"{}",
                b"{oops",
                b"\xff\xfe",
                b'{"content": NaN}',
                rb'{"content": "\ud800"}',
                b"[" * 5000,
                json.dumps({"content": {"parts": [{"text": "say hi"}]}}).encode(),
                b'{"close": true}',
                _noise(rng, 300),
            ]
        )
        first = rng.choice([0x81, 0x81, 0x81, 0x82, 0x01, 0x00, 0x88, 0x89, 0x8A, 0x83, 0xF1, 0xC1])
        length = rng.choice([len(payload), len(payload), len(payload), len(payload) + 5, 2**40])
        frames.append(_frame(rng, first, payload, length))
    return frames


def _frame(rng: random.Random, first: int, payload: bytes, length: int) -> bytes:
    masked = rng.random() < 0.9
    bit = 0x80 if masked else 0
    if length < 126:
        head = struct.pack("!BB", first, bit | length)
    elif length < 65536:
        head = struct.pack("!BBH", first, bit | 126, length)
    else:
        head = struct.pack("!BBQ", first, bit | 127, length)
    mask = _noise(rng, 4)
    hidden = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return head + mask + hidden if masked else head + payload


KINDS: dict[str, Callable[[random.Random], list[bytes]]] = {
    "garbage": _garbage,
    "mutated": _mutated,
    "bad text": _bad_text,
    "huge head": _huge_head,
    "deep": _deep,
    "wide": _wide,
    "wrong types": _wrong_types,
    "half": _half,
    "lying length": _lying_length,
    "lying chunks": _lying_chunks,
    "pipelined": _pipelined,
    "handshakes": _handshakes,
    "frames": _frames,
}
