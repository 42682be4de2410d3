"""Frames of the protocols with random damage: none is a failure of the server, and others are served meanwhile."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import pytest

from tests.server.attempts import MCP, mcp_call
from tests.server.front_end_attempts import AG_UI, CHAT, answer, chat, run
from tests.server.server_process import ServerProcess
from tests.server.test_fuzz import PATIENCE, OtherClient

CASES = 600
SEED = 4_711

# What stands in a place where something else should be.
ODD: list[Any] = [  # Any: JSON
    *(None, True, False, 0, -1, 1.5, 10**18, "", "x", "é", "../x", "say hi", "a" * 3000, "\u202e", "__proto__"),
    *([], {}, [None], [[]], {"": None}, {"type": "text"}, [{"role": "user"}], {"role": "user", "content": "say hi"}),
]
ENTRIES = [{"interruptId": "c:1", "status": "resolved", "payload": {"a": 1}}]
TOOLS: list[dict[str, Any]] = [
    {"name": "paint", "description": "Paint.", "parameters": {"type": "object", "properties": {}}}
]
PICTURE = {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}}
FRAMES: list[tuple[str, Any]] = [  # Any: JSON
    (AG_UI, run("say hi", state={"a": 1}, context=[{"description": "d", "value": "v"}], tools=TOOLS, resume=ENTRIES)),
    (AG_UI, run("say hi", protocolVersion="1.0", messages=[{"id": "m", "role": "user", "content": [PICTURE]}])),
    (AG_UI, run("say hi", messages=[{"id": "t", "role": "tool", "toolCallId": "c", "content": "x", "error": "y"}])),
    (f"{AG_UI}/stop", {"threadId": "t1", "runId": "r1", "reason": "enough", "waitSeconds": 0.0}),
    (CHAT, chat("say hi", trigger="submit-message", messageId="m")),
    (CHAT, chat(messages=[answer("c:1")])),
    (
        CHAT,
        {
            "id": "c1",
            "message": {
                "id": "m",
                "role": "user",
                "parts": [{"type": "file", "mediaType": "a/b", "url": "data:a/b;base64,aGk="}],
            },
        },
    ),
    (f"{CHAT}/c1/stop", {"messageId": "m", "reason": "enough", "waitSeconds": 0.0}),
    ("/mcp", mcp_call(arguments={"task": "say hi", "session": "s"})),
    ("/mcp", mcp_call(arguments={"answers": {"c:1": 1}, "session": "s"}, requestState="run_1")),
]


def damaged(rng: random.Random, value: Any) -> Any:  # Any: JSON
    """The value with one place changed, dropped or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        found: dict[str, Any] = dict(value)  # Any: JSON  # pyright: ignore[reportUnknownArgumentType]  # as above
        name = rng.choice(sorted(found))
        match rng.randrange(4):
            case 0:
                del found[name]
            case 1:
                found[rng.choice(["x", "", "type", "role", "id"])] = rng.choice(ODD)
            case _:
                found[name] = damaged(rng, found[name])
        return found
    if isinstance(value, list) and value and rng.random() < 0.85:
        listed: list[Any] = list(value)  # Any: JSON  # pyright: ignore[reportUnknownArgumentType]  # as above
        place = rng.randrange(len(listed))
        if rng.random() < 0.3:
            return listed * rng.choice([0, 2, 50])
        listed[place] = damaged(rng, listed[place])
        return listed
    return rng.choice(ODD)


def case(seed: int) -> tuple[str, bytes]:
    """The path and the body of one request."""
    rng = random.Random(seed)
    path, frame = rng.choice(FRAMES)
    body = {
        **deepcopy(frame),
        **{name: f"{name}{rng.randrange(40)}" for name in ("threadId", "runId") if name in frame},
    }
    for _ in range(rng.randrange(4)):
        body = damaged(rng, body)
    data = json.dumps(body).encode()
    if rng.random() < 0.1:
        data = data[: rng.randrange(len(data) + 1)]
    return path, data


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("fuzz")) as running:
        running.create("other", user="bob")
        yield running


@pytest.mark.timeout(300)
def test_damaged_frames_are_refused_in_each_protocols_own_way_and_stall_no_other_client(server: ServerProcess) -> None:
    def send(seed: int) -> tuple[int, str, str]:
        path, data = case(seed)
        headers = MCP if path == "/mcp" else {}
        found = server.http("POST", path, data, headers)
        return found.status, path, str(found.body)

    seeds = range(SEED, SEED + CASES)
    answers: Counter[tuple[str, int]] = Counter()
    with OtherClient(server) as other, ThreadPoolExecutor(4) as pool:
        for seed, (status, path, text) in zip(seeds, pool.map(send, seeds), strict=True):
            answers[path, status] += 1
            assert status < 500, f"case({seed}) of {path}: {status} {text[:300]}"
            assert "Traceback" not in text, f"case({seed}) of {path}"
    log = server.log.read_text(errors="replace")
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
    assert other.wrong == []
    assert other.served > 0
    assert other.slowest < PATIENCE, f"a client waited {other.slowest:.1f} s"
    # Of each route some were taken and some were refused.
    for path, _ in FRAMES:
        statuses = {status for (each, status) in answers if each == path}
        assert 200 in statuses or path.endswith("stop"), (path, answers)
        assert statuses & {400, 404, 409, 422}, (path, answers)
    deadline = time.monotonic() + 20
    while any(each["state"] in ("live", "queued") for each in server.http("GET", "/runs").body):
        assert time.monotonic() < deadline, "runs are left behind"
        time.sleep(0.05)
