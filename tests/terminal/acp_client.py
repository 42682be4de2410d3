"""A small ACP client for a terminal, on the official SDK: it prompts, cancels, and goes on. `record.py` films it.

python -m tests.terminal.acp_client safepoint acp …
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any, cast

import acp
from acp.schema import AgentMessageChunk, TextContentBlock, ToolCallProgress, ToolCallStart

KEY, REST = 0.03, 1.2  # seconds for a letter, and to read an answer
BOLD, DIM, GREEN, YELLOW, OFF = "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[0m"
LONGEST = 40.0  # seconds that the script waits for anything


def show(text: str) -> None:
    print(text, end="", flush=True)


class Editor:
    """Shows what it is sent. `enough` is set when so many pieces of text were shown, or a call has begun."""

    def __init__(self) -> None:
        self.enough = asyncio.Event()
        self._pieces = 0

    def on_connect(self, conn: object) -> None: ...

    def begin(self) -> None:
        self.enough.clear()
        self._pieces = 0

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:  # Any: the SDK's union
        match update:
            case AgentMessageChunk(content=TextContentBlock(text=text)):
                show(text)
                self._pieces += 1
                if self._pieces == 12:
                    self.enough.set()
            case ToolCallStart(title=title):
                show(f"{DIM}  call{OFF} {title}\n")
            case ToolCallProgress(status=status) if status is not None:
                show(f"{DIM}  call is{OFF} {status}{_words(update)}\n")
                if status == "in_progress":
                    self.enough.set()
            case _:
                pass


def _words(update: ToolCallProgress) -> str:
    texts = [getattr(getattr(each, "content", None), "text", None) for each in update.content or ()]
    return "".join(f": {text}" for text in texts if text)


async def typed(prompt: str) -> None:
    show(f"\n{BOLD}> ")
    for letter in prompt:
        show(letter)
        await asyncio.sleep(KEY)
    show(f"{OFF}\n")


async def turn(agent: Any, editor: Editor, session: str, prompt: str, *, cancel: bool) -> None:  # Any: the SDK's side
    await typed(prompt)
    editor.begin()
    answer = asyncio.ensure_future(agent.prompt(session_id=session, prompt=[acp.text_block(prompt)]))
    took = ""
    if cancel:
        await asyncio.wait_for(editor.enough.wait(), LONGEST)
        show(f"\n{YELLOW}  ■ session/cancel{OFF}\n")
        asked = time.monotonic()
        await agent.cancel(session_id=session)
        await asyncio.wait((answer,), timeout=LONGEST)
        took = f" after {(time.monotonic() - asked) * 1000:.0f} ms"
    ended = await asyncio.wait_for(answer, LONGEST)
    colour = YELLOW if ended.stop_reason == "cancelled" else GREEN
    show("" if cancel else "\n")
    show(f"{colour}  stopReason: {ended.stop_reason}{took}{OFF}\n")
    await asyncio.sleep(REST)


async def main(command: list[str]) -> None:
    editor = Editor()
    async with acp.spawn_agent_process(cast("Any", editor), command[0], *command[1:], env=dict(os.environ)) as (
        agent,
        _,
    ):
        await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
        session = (await agent.new_session(cwd="/", mcp_servers=[])).session_id
        await turn(agent, editor, session, "Tell me all about lighthouses.", cancel=True)
        await turn(agent, editor, session, "Then run the tests.", cancel=True)
        await turn(agent, editor, session, "What happened?", cancel=False)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
