"""The bytes that ADK's own clients send: its web page, its conformance client, and the curl lines of our guide.

Shapes are as google-adk 2.13 has them: what its page passes to `fetch`, and what its client passes to httpx.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from safepoint import Agent
from safepoint.server import ServerConfig, create_app
from safepoint.testing import ScriptedModel
from tests.docs.blocks import blocks
from tests.server.server_process import PATIENCE, Answer, ServerProcess, message, texts
from tests.server.test_behaviours import only_run, until_over

GUIDE = Path(__file__).parents[2] / "docs/guides/moving-from-adk.md"
BROWSER = {
    "accept": "application/json, text/plain, */*",
    "accept-language": "en",
    "sec-fetch-site": "same-origin",
    "user-agent": "Mozilla/5.0",
}
HTTPX = {"accept": "*/*", "accept-encoding": "gzip, deflate", "user-agent": "python-httpx/0.28.1"}


def sent(
    server: ServerProcess, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
) -> Answer:
    """With exactly these headers and no others."""
    connection = server.connect()
    try:
        given = {**(headers or BROWSER), **({"content-type": "application/json"} if body is not None else {})}
        connection.request(method, path, body, given)
        response = connection.getresponse()
        text = response.read().decode()
        kind = response.headers.get("content-type", "")
        return Answer(response.status, json.loads(text) if kind.startswith("application/json") else text, {})
    finally:
        connection.close()


def as_the_page_reads(stream: str) -> Iterator[dict[str, Any]]:  # Any: JSON
    """The page's own reader: lines that begin with data:, and nothing else."""
    for line in re.split(r"\r?\n", stream):
        if line.startswith("data:"):
            yield json.loads(re.sub(r"^data:\s*", "", line))


def test_the_web_page_lists_makes_runs_reads_and_deletes(server: ServerProcess) -> None:
    assert "worker" in sent(server, "GET", "/list-apps?relative_path=./").body
    assert sent(server, "GET", "/version").body["language"] == "python"
    made = sent(server, "POST", "/apps/worker/users/user/sessions")  # the page posts null: no body at all
    assert (made.status, made.body["events"], made.body["state"]) == (200, [], {})
    named = sent(
        server,
        "POST",
        "/apps/worker/users/user/sessions",
        '{"state":{"__session_metadata__":{"displayName":"hello"}}}',
    ).body
    assert named["state"]["__session_metadata__"] == {"displayName": "hello"}
    run = {
        "appName": "worker",
        "userId": "user",
        "sessionId": named["id"],
        "newMessage": {"role": "user", "parts": [{"text": "say hello page"}]},
        "streaming": True,
        "stateDelta": None,
    }
    fetched = sent(
        server, "POST", "/run_sse", json.dumps(run, separators=(",", ":")), {**BROWSER, "accept": "text/event-stream"}
    )
    events = list(as_the_page_reads(fetched.body))
    assert texts(events[-1:]) == ["hello page "]
    shown = sent(server, "GET", f"/apps/worker/users/user/sessions/{named['id']}").body
    assert [event["author"] for event in shown["events"]] == ["user", "worker"]
    patched = sent(server, "PATCH", f"/apps/worker/users/user/sessions/{named['id']}", '{"stateDelta":{"a":1}}')
    assert patched.body["state"]["a"] == 1
    listed = sent(server, "GET", "/apps/worker/users/user/sessions").body
    assert {session["id"] for session in listed} == {made.body["id"], named["id"]}
    assert sent(server, "DELETE", f"/apps/worker/users/user/sessions/{made.body['id']}").body is None


def test_the_web_page_answers_a_call_that_waits(server: ServerProcess) -> None:
    made = sent(server, "POST", "/apps/worker/users/user/sessions").body["id"]
    base = {"appName": "worker", "userId": "user", "sessionId": made, "streaming": False, "stateDelta": None}
    first = {**base, "newMessage": {"role": "user", "parts": [{"text": "ask page"}]}}
    events = list(as_the_page_reads(sent(server, "POST", "/run_sse", json.dumps(first)).body))
    waits = next(event for event in events if event.get("longRunningToolIds"))
    call = next(part["functionCall"] for part in waits["content"]["parts"] if "functionCall" in part)
    response = {"id": call["id"], "name": call["name"], "response": {"response": "from the page"}}
    second = {
        **base,
        "newMessage": {"role": "user", "parts": [{"functionResponse": response}]},
        "functionCallEventId": waits["id"],
    }
    events = list(as_the_page_reads(sent(server, "POST", "/run_sse", json.dumps(second)).body))
    assert texts(events[-1:]) == ["done "]
    assert any("from the page" in line for line in server.did())


def test_the_web_page_stops_a_run_by_leaving(server: ServerProcess) -> None:
    server.create("page-stop", user="user")
    with server.stream("page-stop", "note page-stop; nap 30", userId="user"):
        server.until_did("note page-stop")
    until_over(server, only_run(server, "page-stop")["runId"])
    assert server.events("page-stop", user="user")[-1]["errorCode"] == "INVOCATION_ABORTED"
    assert "nap ends" not in server.did()


def test_a_session_that_the_page_exports_can_be_imported_again(server: ServerProcess) -> None:
    server.create("export")
    server.run("export", "say one; note export")
    caller = server.run_in_thread("export", "note export-cut; nap 30")
    server.until_did("note export-cut")
    server.cancel("export")
    caller.answer()
    exported = server.events("export")
    body = json.dumps({"events": exported, "state": {"a": 1}})
    made = sent(server, "POST", "/apps/worker/users/ann/sessions", body)
    assert made.status == 200, made
    assert texts(made.body["events"]) == texts(exported)
    assert server.run(made.body["id"], "say again").status == 200
    assert server.did().count("note export") == 1


def test_the_conformance_client_of_adk_works(server: ServerProcess) -> None:
    made = sent(server, "POST", "/apps/worker/users/ann/sessions", '{"state":{"a":1}}', HTTPX).body
    path = f"/apps/worker/users/ann/sessions/{made['id']}"
    assert sent(server, "PATCH", path, '{"state_delta":{"b":2}}', HTTPX).body["state"] == {"a": 1, "b": 2}
    body = {
        "appName": "worker",
        "userId": "ann",
        "sessionId": made["id"],
        "newMessage": {"parts": [{"text": "fail httpx"}], "role": "user"},
        "streaming": False,
        "stateDelta": {"_adk_replay_config": {"dir": "x", "user_message_index": 0}},
    }
    stream = sent(server, "POST", "/run_sse", json.dumps(body), HTTPX).body
    *events, error = as_the_page_reads(stream)
    assert (events[-1]["errorCode"], error["error"]) == ("RuntimeError", "RuntimeError: httpx")
    assert sent(server, "DELETE", path, None, HTTPX).status == 200


def test_with_adks_default_app_no_request_needs_to_name_one(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"ADK_DEFAULT_APP_NAME": "worker"}) as server:
        assert server.post("/users/ann/sessions/short").body["appName"] == "worker"
        assert server.get("/app-info").body["name"] == "worker"
        body = message("short", "say hello")
        del body["appName"]
        assert texts(server.post("/run", body).body) == ["hello "]
        address = f"ws://127.0.0.1:{server.port}/run_live?user_id=ann&session_id=short"
        with connect(address, open_timeout=PATIENCE, legacy=True) as socket:
            socket.send('{"content": {"parts": [{"text": "say live"}]}}')
            assert json.loads(socket.recv(timeout=PATIENCE))["author"] == "worker"
        while any(run["state"] == "live" for run in server.get("/runs").body):
            time.sleep(0.01)  # the last message of the live run is stored with its end
        assert len(server.events("short")) == len(server.get("/users/ann/sessions/short").body["events"]) == 4
        assert server.post("/users/ann/sessions/short:cancel").status in (200, 404)
        assert 'route="/apps/{app}/users/{user}/sessions/{session}"' in server.get("/metrics").body


def test_a_default_app_that_is_not_there_is_refused() -> None:
    agent = Agent("worker", model=ScriptedModel())
    with pytest.raises(ValueError, match="write one of worker"):
        create_app({"worker": agent}, config=ServerConfig(default_app="other"))


def test_the_curl_lines_of_the_guide_do_what_it_says(server: ServerProcess, tmp_path: Path) -> None:
    """Each block is run by a shell against this server; what is below `# →` has to be in its output."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    pages = [block for block in blocks(GUIDE.read_text()) if block.info[:1] == ("bash",)]
    assert len(pages) >= 5
    for block in pages:
        script = block.text.replace("localhost:8000", f"127.0.0.1:{server.port}")
        expected = re.findall(r"# → (.*)", script)
        done = subprocess.run(["bash", "-eu", "-c", script], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (block.line, done.stderr)
        for line in expected:
            assert line in done.stdout, (block.line, line, done.stdout)
