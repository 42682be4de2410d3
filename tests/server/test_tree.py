"""The tree of a run, the preview of a stop, and the list of chats, as a client reads them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.server.server_process import PATIENCE, ServerProcess, session_path

Json = dict[str, Any]  # Any: JSON


def _tree(server: ServerProcess, run: str) -> Json:
    answer = server.get(f"/runs/{run}/tree")
    assert answer.status == 200, answer
    body: Json = answer.body
    return body


def _node(tree: Json, name: str) -> Json:
    return next(node for node in tree["nodes"] if node["name"] == name)


def _live(server: ServerProcess, session: str, text: str, tool: str) -> str:
    server.create(session)
    begun = server.did().count(f"{tool} begins")
    server.run_in_thread(session, text)
    server.until_did(f"{tool} begins", begun + 1)
    return server.run_of(session, "live")


def test_the_tree_tells_what_runs_what_waits_and_what_has_ended(server: ServerProcess) -> None:
    run = _live(server, "tree", "note x; nap 30; block 2", "nap")
    tree = _tree(server, run)
    assert tree["run"]["runId"] == run
    agent, nap, note = _node(tree, "worker"), _node(tree, "nap"), _node(tree, "note")
    assert (agent["kind"], agent["state"], agent["step"]) == ("agent", "running", 1)
    assert (nap["kind"], nap["state"], nap["effect"]) == ("tool", "running", "effectful")
    assert nap["arguments"] == {"seconds": "30.0"}
    assert nap["path"].startswith(f"{agent['path']}/")
    assert _node(tree, "block")["work"] == "thread"
    assert note["state"] == "finished"
    assert note["startedAt"] <= note["endedAt"] <= tree["now"]
    assert server.cancel("tree", reason="enough").body["status"] == "cancelled"
    over = _tree(server, run)
    assert [ask["reason"]["text"] for ask in over["asks"] if ask["path"] == agent["path"]] == ["enough"]
    assert _node(over, "nap")["state"] == "cut"
    assert _node(over, "block")["stillRunning"] is True
    assert _node(over, "worker")["state"] == "cancelled"
    assert over["usage"]["inputTokens"] > 0


def test_a_run_that_is_told_to_stop_says_what_holds_it(server: ServerProcess) -> None:
    run = _live(server, "held", "nap 2", "nap")
    server.cancel("held", at="after_tools", withinSeconds=20, waitSeconds=0)
    tree = _tree(server, run)
    assert tree["asked"] == ["after_tools"]
    (held,) = tree["holding"]
    assert held["path"] == _node(tree, "nap")["path"]
    assert 0 < held["secondsLeft"] <= 20
    server.cancel("held")


def test_a_preview_tells_the_fate_of_each_call_and_changes_nothing(server: ServerProcess) -> None:
    run = _live(server, "preview", "nap 30; block 2", "nap")
    answer = server.post(f"/runs/{run}:preview", {})
    assert answer.status == 200
    fates = {call["name"]: call["fate"] for call in answer.body["calls"]}
    assert fates == {"nap": "in_doubt", "block": "may_not_react"}
    assert answer.body["seconds"] <= 1.0
    later = server.post(f"/runs/{run}:preview", {"at": "after_tools"}).body
    assert {call["fate"] for call in later["calls"]} == {"finishes"}
    assert "seconds" not in later
    path = next(call["path"] for call in answer.body["calls"] if call["name"] == "nap")
    assert [call["name"] for call in server.post(f"/runs/{run}:preview", {"node": path}).body["calls"]] == ["nap"]
    assert server.post(f"/runs/{run}:preview", {"at": "nonsense"}).status == 422
    assert server.get(f"/runs/{run}").body["state"] == "live"
    server.cancel("preview")
    assert server.post(f"/runs/{run}:preview", {}).body["calls"] == []


def test_chats_have_their_first_words_and_their_newest_run(server: ServerProcess) -> None:
    server.create("chat", user="zoe")
    server.create("silent", user="zoe")
    body = {"appName": "worker", "userId": "zoe", "sessionId": "chat"}
    for text in ("say   the first\nwords", "say more"):
        answer = server.post("/run", {**body, "newMessage": {"role": "user", "parts": [{"text": text}]}})
        assert answer.status == 200
    chats: list[Json] = server.get("/apps/worker/users/zoe/chats").body
    assert (chats[0]["sessionId"], chats[0]["title"]) == ("chat", "say the first words")
    assert chats[0]["lastRun"]["outcome"] == "end_turn"
    silent = next(chat for chat in chats if chat["sessionId"] == "silent")
    assert (silent["title"], "lastRun" in silent) == ("", False)


def test_a_resume_may_run_a_call_in_doubt_again(server: ServerProcess) -> None:
    run = _live(server, "doubt", "nap 1", "nap")
    server.cancel("doubt")
    assert server.post(f"/runs/{run}:resume", {"onUnknown": "nonsense"}).status == 422
    begun = server.did().count("nap begins")
    assert server.post(f"/runs/{run}:resume", {"onUnknown": "rerun"}).status == 200
    server.until_did("nap begins", begun + 1)


def test_a_run_of_another_process_is_told_by_its_owner_and_by_the_storage_afterwards(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as first, ServerProcess(tmp_path) as second:
        run = _live(first, "shared", "note x; nap 30", "nap")
        tree = _tree(second, run)
        assert _node(tree, "nap")["state"] == "running"
        assert [call["name"] for call in second.post(f"/runs/{run}:preview", {}).body["calls"]] == ["nap"]
        assert second.post(f"{session_path('shared')}:cancel", {}).status == 200
        first.kill()
        stored = _tree(second, run)
        assert {node["name"]: node["state"] for node in stored["nodes"]} == {
            "worker": "cancelled",
            "note": "finished",
            "nap": "cut",
        }
        assert _node(stored, "worker")["startedAt"] <= _node(stored, "worker")["endedAt"]


def test_another_user_sees_neither_tree_nor_preview(tmp_path: Path) -> None:
    from safepoint.server.keys import KeyFile

    keys = KeyFile(tmp_path / "data" / "keys.json")
    ann, bob = ({"authorization": f"Bearer {keys.add(name, user=name)}"} for name in ("ann", "bob"))
    with ServerProcess(tmp_path) as server:
        assert server.post(session_path("mine"), {}, ann).status == 200
        body = {"appName": "worker", "userId": "ann", "sessionId": "mine"}
        said = {"role": "user", "parts": [{"text": "say hello"}]}
        assert server.post("/run", {**body, "newMessage": said}, ann).status == 200
        (run,) = server.get("/runs", ann).body
        for path in (f"/runs/{run['runId']}/tree", "/apps/worker/users/ann/chats"):
            assert server.get(path, bob).status in (403, 404)
        assert server.post(f"/runs/{run['runId']}:preview", {}, bob).status == 404
        deadline = time.monotonic() + PATIENCE
        while server.get(f"/runs/{run['runId']}/tree", ann).status != 200:
            assert time.monotonic() < deadline
