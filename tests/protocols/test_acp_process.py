"""`safepoint acp` as an editor starts it: a process of its own, over stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from safepoint.storage.run_records import RunState
from safepoint.storage.sqlite.storage import SqliteStorage
from tests.protocols.editor import APP, PATIENCE, ROOT, spawned

pytestmark = pytest.mark.timeout(120)


async def stored(folder: Path) -> list[tuple[RunState, str | None, object]]:
    storage = SqliteStorage(folder / "editor.db")
    try:
        records = await storage.runs.find()
        return [(each.state, each.outcome, (each.reason or {}).get("source")) for each in records]
    finally:
        await storage.aclose()


def test_a_cancel_is_answered_soon_and_the_session_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with spawned(tmp_path) as (editor, _):
            session = await editor.open()
            for prompt, seen in (("silence", "I begin"), ("nap", "napping"), ("block", "blocking")):
                turn = editor.begin(session, prompt)
                await editor.until(editor.has_seen(seen))
                asked = time.monotonic()
                await editor.agent.cancel(session)
                answer = await turn
                assert answer.stop_reason == "cancelled"
                assert time.monotonic() - asked < 10  # editors kill an agent that does not answer
                assert editor.nothing_follows_the_answer()
            assert (await editor.prompt(session, "say hi")).stop_reason == "end_turn"

    asyncio.run(main())


def test_stdout_has_frames_only_whatever_the_app_and_its_tools_print(tmp_path: Path) -> None:
    frames: list[dict[str, Any]] = [  # Any: JSON
        {"id": 1, "method": "session/new", "params": {"cwd": "/", "mcpServers": []}},
        {"id": 2, "method": "session/prompt", "params": {"prompt": [{"type": "text", "text": "nap"}]}},
    ]

    async def main() -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "safepoint", "acp", APP, "--store", f"sqlite:{tmp_path / 'editor.db'}"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        session: str | None = None
        for frame in frames:
            if session is not None:
                frame["params"] |= {"sessionId": session}
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **frame}).encode() + b"\n")
            while True:
                told = json.loads(await process.stdout.readline())
                session = told.get("result", {}).get("sessionId", session)
                if told.get("id") == 1 or "napping" in str(told):
                    break
        process.stdin.close()
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
        assert [json.loads(line)["jsonrpc"] for line in out.splitlines()]
        assert b"an import that prints" in err
        assert b"a tool that prints" in err

    asyncio.run(main())


@pytest.mark.parametrize("how", ["stdin", "sigterm"])
def test_a_client_that_closes_stdin_stops_the_runs_which_are_saved_and_can_be_loaded(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        async with spawned(tmp_path) as (editor, process):
            session = await editor.open()
            turn = editor.begin(session, "block")
            await editor.until(editor.has_seen("blocking"))
            if how == "stdin":
                assert process.stdin is not None
                process.stdin.close()
            else:
                process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE):
                assert await process.wait() == 0
            await asyncio.wait({turn})
            turn.exception()
        assert await stored(tmp_path) == [(RunState.ENDED, "cancelled", "disconnect")]
        async with spawned(tmp_path) as (editor, _):
            await editor.agent.initialize(1)
            assert [each.session_id for each in (await editor.agent.list_sessions()).sessions] == [session]
            await editor.agent.load_session("/project", session, mcp_servers=[])
            assert editor.text() == "As you wish. "
            assert editor.statuses() == ["pending", "failed"]
            assert (await editor.prompt(session, "say hi")).stop_reason == "end_turn"

    asyncio.run(main())
