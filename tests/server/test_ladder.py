"""The ladder of a server holds for all of its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from safepoint import Agent, Ladder, tool
from safepoint.server import ServerConfig, create_app
from safepoint.testing import ScriptedModel
from tests.server.server_process import ServerProcess, session_path


def test_a_longer_ladder_waits_for_a_tool_that_the_usual_one_leaves_behind(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, options=("--ladder", "task=25", "--ladder", "cap=30")) as server:
        server.create("s")
        caller = server.run_in_thread("s", "stubborn 2")
        server.until_did("stubborn begins")
        stopped = server.post(f"{session_path('s')}:cancel", {"waitSeconds": 30}).body
        assert (stopped["status"], stopped["runs"][0].get("orphans", [])) == ("cancelled", [])
        assert "stubborn ends" in server.did()
        assert caller.answer().status == 200


def test_a_ladder_that_a_tool_does_not_fit_is_refused_at_once() -> None:
    @tool(grace=5.0)
    async def slow() -> None:
        """Take some time to stop."""

    agent = Agent("slow", model=ScriptedModel(), tools=[slow])
    with pytest.raises(ValueError, match=r"does not suit the app slow: .* above the ladder's cap of 2"):
        create_app({"slow": agent}, config=ServerConfig(ladder=Ladder(cap=2)))


@pytest.mark.parametrize("action", [":cancel", ":steer", ":resume", ":rewind"])
def test_a_misspelt_wish_is_refused_and_nothing_is_done(server: ServerProcess, action: str) -> None:
    session = f"misspelt{action[1:]}"
    server.create(session)
    begun = server.did().count("nap begins")
    with server.stream(session, "nap 600", onDisconnect="detach"):
        server.until_did("nap begins", begun + 1)
    [run] = [run for run in server.get("/runs?state=live").body if run["sessionId"] == session]
    refused = server.post(f"/runs/{run['runId']}{action}", {"att": "after_tools", "newMessage": {"parts": []}})
    assert (refused.status, "att" in str(refused.body)) == (422, True)
    assert server.get(f"/runs/{run['runId']}").body["state"] == "live"
    server.post(f"/runs/{run['runId']}:cancel")
