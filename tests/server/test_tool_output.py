"""What a tool tells while it runs reaches whoever watches, in its order, and is stored nowhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from safepoint.serving.events import MessageEvent, ToolOutput, Turn
from safepoint.serving.feed import Feed, Frame, Viewer
from tests.server.server_process import ServerProcess, message, parts, session_path
from tests.server.test_live import Live

Json = dict[str, Any]  # Any: JSON


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("output")) as running:
        yield running


def outputs(events: Iterable[Json]) -> list[Json]:
    return [event for event in events if event.get("partial") and "functionResponse" in parts([event])[0]]


def told(events: Iterable[Json]) -> str:
    return "".join(part["functionResponse"]["response"]["output"] for part in parts(outputs(events)))


def streamed(server: ServerProcess, session: str, text: str, app: str = "worker") -> list[Json]:
    assert server.post(session_path(session, app=app)).status == 200
    with server.stream(session, text, appName=app) as frames:
        return [event for _, event in frames]


@pytest.mark.parametrize("nap", ["0", "0.2"])
def test_a_stream_has_it_before_the_result_and_under_its_id(server: ServerProcess, nap: str) -> None:
    seen = streamed(server, f"stream{nap}", f"tell one two {nap}")
    found = outputs(seen)
    assert told(seen) == "one two "
    call = next(part["functionCall"] for part in parts(seen) if "functionCall" in part)
    (result,) = [each for each in seen if not each.get("partial") and "functionResponse" in str(each)]
    response = found[0]["content"]["parts"][0]["functionResponse"]
    assert response == {**response, "id": call["id"], "name": "tell", "willContinue": True}
    assert {event["id"] for event in found} == {result["id"]}
    assert {event["author"] for event in found} == {"worker"}
    assert seen.index(found[-1]) < seen.index(result)
    assert outputs(server.events(f"stream{nap}")) == []


def test_a_socket_has_it(server: ServerProcess) -> None:
    with Live(server, "socket") as live:
        live.say("tell one two 0")
        assert told(live.turn()) == "one two "


def test_every_viewer_has_it_also_one_who_comes_while_the_tool_runs(server: ServerProcess) -> None:
    server.create("viewers")
    tells = server.did().count("tell")
    with server.stream("viewers", "tell one two 1") as first:
        run = first.headers["safepoint-run"]
        server.until_did("tell", tells + 1)
        with server.open_stream("GET", f"/runs/{run}/events") as second:
            late = [event for _, event in second]
        assert told(late) == told(event for _, event in first) == "one two "


def test_whoever_wants_whole_events_only_gets_none(server: ServerProcess) -> None:
    server.create("whole")
    with server.open_stream("POST", "/run_sse", message("whole", "tell one two 0")) as frames:
        assert not any(event.get("partial") for _, event in frames)
    assert outputs(server.run("whole", "tell one two 0").body) == []


def test_a_tool_of_an_agent_inside_is_heard_with_its_path(server: ServerProcess) -> None:
    seen = streamed(server, "inside", "tell one two 0.1", "boss")
    assert told(seen) == "one two "
    path = outputs(seen)[0]["nodeInfo"]["path"]
    assert (path.split("/")[0], path.endswith("helper")) == ("boss", True)


def test_agents_that_hand_over_tell_under_their_own_name(server: ServerProcess) -> None:
    seen = streamed(server, "handed", "tell one two 0.1", "desk")
    (result,) = [each for each in seen if not each.get("partial") and "functionResponse" in str(each)]
    assert told(seen) == "one two "
    assert {(event["author"], event["id"]) for event in outputs(seen)} == {("triage", result["id"])}


def test_the_tools_of_a_sequence_are_heard(server: ServerProcess) -> None:
    assert told(streamed(server, "sequence", "tell one two 0.1", "pipeline")) == "one two "


TURN = Turn("run_1", "agent")
CALL, OTHER = "call_1", "call_2"


def output(call: str, text: str) -> ToolOutput:
    return ToolOutput(TURN, 1, 0.0, call, "shell", text)


def everything(viewer: Viewer) -> list[Frame]:
    return list(iter(viewer.take, None))


def text_of(frames: Iterable[Frame]) -> str:
    return "".join(each.event.text for each in frames if isinstance(each.event, ToolOutput))


def test_pieces_of_one_call_are_melted_and_those_of_two_are_not_mixed() -> None:
    feed = Feed(TURN)
    with feed.view() as viewer:
        for call, text in ((CALL, "a"), (CALL, "b"), (OTHER, "c"), (CALL, "d")):
            feed.append_output(output(call, text))
        assert [text_of([frame]) for frame in everything(viewer)] == ["ab", "c", "d"]
        assert everything(viewer) == []


def test_each_piece_comes_before_the_event_that_it_was_told_before_and_again_for_whoever_comes_back() -> None:
    feed = Feed(TURN)
    with feed.view() as viewer:
        feed.append_output(output(CALL, "a"))
        feed.append(MessageEvent(TURN, 0, 0.0))
        feed.append_output(output(CALL, "b"))
        feed.append(MessageEvent(TURN, 1, 0.0))
        seen = everything(viewer)
    assert [frame.seq for frame in seen] == [0, 1, 1, 2]
    assert [frame.event.position for frame in seen][1::2] == [0, 1]
    with feed.view(1) as back:
        assert [frame.event for frame in everything(back)] == [frame.event for frame in seen[2:]]


def test_a_viewer_that_is_far_behind_gets_the_end_and_nobody_pays_for_the_rest() -> None:
    feed = Feed(TURN)
    with feed.view() as viewer:
        for number in range(100_000):
            feed.append_output(output(CALL, f"{number:010}"))
        seen = text_of(everything(viewer))
        assert seen.endswith("0000099999")
        assert 10_000 < len(seen) < 262_144
        feed.append_output(output(CALL, "x" * 1_000_000))
        assert len(text_of(everything(viewer))) == 1_000_000
        feed.close()
    assert feed.output.take(0, 10) is None
