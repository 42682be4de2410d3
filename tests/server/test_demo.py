"""The demo that is served without an app: it can be stopped in every way, and can do no harm."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from safepoint.cli.demo import demo_agent, reply_to
from tests.server.server_process import ServerProcess, message, parts, texts


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("demo"), apps=None) as server:
        yield server


def path(session: str) -> str:
    return f"/apps/demo/users/ann/sessions/{session}"


def begin(demo: ServerProcess, session: str) -> None:
    assert demo.post(path(session)).status == 200


def test_counting_streams_and_a_stop_keeps_what_was_counted(demo: ServerProcess) -> None:
    begin(demo, "count")
    with demo.open_stream("POST", "/run_sse", message("count", "count 100", appName="demo", streaming=True)) as frames:
        seen = iter(frames)
        assert texts([next(seen)[1]]) == ["1 "]
        assert demo.post(f"{path('count')}:cancel", {"reason": "enough"}).body["status"] == "cancelled"
        *_, (_, last) = seen
    assert last["errorCode"] == "INVOCATION_ABORTED"
    stored = demo.get(path("count")).body["events"]
    assert any(text.startswith("1 ") and not text.endswith("100 ") for text in texts(stored))
    again = demo.post("/run", message("count", "count 1", appName="demo")).body
    assert texts(again)[0].startswith("You stopped me")


def test_a_nap_and_a_blocked_thread_end_with_a_stop(demo: ServerProcess) -> None:
    for verb in ("nap 60", "block 8"):
        session = verb.split()[0]
        begin(demo, session)
        with demo.open_stream("POST", "/run_sse", message(session, verb, appName="demo")) as frames:
            seen = iter(frames)
            assert parts([next(seen)[1]])[-1]["functionCall"]["name"] == session
            assert demo.post(f"{path(session)}:cancel").body["status"] == "cancelled"
            *_, (_, last) = seen
        assert last["errorCode"] == "INVOCATION_ABORTED", verb


def test_a_question_waits_and_an_answer_goes_on(demo: ServerProcess) -> None:
    begin(demo, "ask")
    demo.post("/run", message("ask", "ask me", appName="demo"))
    stored = demo.get(path("ask")).body["events"]
    (call,) = [id for event in stored for id in event.get("longRunningToolIds", ())]
    reply = {"functionResponse": {"id": call, "name": "ask", "response": {"result": "yes"}}}
    more = message("ask", "", appName="demo", newMessage={"role": "user", "parts": [reply]})
    assert "they said yes" in json.dumps(demo.post("/run", more).body)


def test_it_has_no_tool_that_reaches_out() -> None:
    """Whoever adds one must think of those who serve the demo on a network."""
    assert sorted(demo_agent().tools) == ["ask", "block", "climb", "nap"]


def test_any_words_are_understood_within_bounds() -> None:
    assert reply_to("please count to 3").words == "1 2 3"
    assert json.loads(reply_to("nap 999999").arguments) == {"seconds": 3600}
    assert json.loads(reply_to("block for 0 s").arguments) == {"seconds": 1}
    assert json.loads(reply_to("climb!").arguments) == {"stairs": 50}
    assert reply_to("what is a nappy?").tool is None
