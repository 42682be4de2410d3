"""A client brings a real MCP server to a session."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from acp import schema

from tests.protocols.editor import PATIENCE, ROOT, in_process
from tests.protocols.editor_app import agent

SERVER = str(ROOT / "tests" / "process" / "programs" / "mcp_server.py")
BETWEEN_LOOKS = 0.02

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("again", [False, True], ids=["new", "loaded"])
def test_its_tools_are_the_sessions_own_and_a_cancel_reaches_them(tmp_path: Path, again: bool) -> None:
    async def main() -> None:
        diary = tmp_path / "diary"
        server = schema.McpServerStdio(
            name="my diary", command=sys.executable, args=[SERVER, str(diary), "stdio"], env=[]
        )
        async with in_process(agent) as (editor, manager):
            other = await editor.open()
            if again:
                session = await editor.open()
                await editor.agent.close_session(session)
                await editor.agent.load_session("/project", session, mcp_servers=[server])
            else:
                session = (await editor.agent.new_session("/project", mcp_servers=[server])).session_id
            turn = editor.begin(session, "use my_diary_waits")
            await editor.until(editor.has_seen("half way"))
            await editor.agent.cancel(session)
            assert (await turn).stop_reason == "cancelled"
            assert editor.statuses()[-1] == "failed"
            async with asyncio.timeout(PATIENCE):
                # The server hears of it in a process of its own.
                while "told" not in diary.read_text():  # noqa: ASYNC110  # a file has no event
                    await asyncio.sleep(BETWEEN_LOOKS)

            await editor.prompt(other, "use my_diary_waits")
            assert "no tool" in editor.text()
            await editor.agent.close_session(session)
            assert manager.session_agents == {}

    asyncio.run(main())
