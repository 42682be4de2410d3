"""A tool returns pictures and files: they reach the model, and outlive a stop, a crash and the process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from safepoint import (
    Agent,
    Checkpoint,
    File,
    Hooks,
    Image,
    Replace,
    Run,
    SafePoint,
    Text,
    ToolCall,
    ToolResult,
    check_history,
    tool,
)
from safepoint.history.parts import Attachment, Message
from safepoint.sessions import MemoryStore, Session, SqliteStore
from safepoint.sessions.store import Store
from safepoint.testing import ScriptedModel, call, say
from tests.virtual import virtual

PNG = Image(data=b"\x89PNG", media_type="image/png")
PDF = File(data=b"%PDF", media_type="application/pdf", name="bill.pdf")


@tool(effect="pure")
async def look() -> list[str | Image | File]:
    """Look."""
    return ["A bill:", PNG, PDF]


inside = asyncio.Event()


@tool
async def hang() -> None:
    """Hang."""
    inside.set()
    await asyncio.get_running_loop().create_future()


@tool(effect="pure", run_in="process")
def photo() -> Image:
    """Take a photo, in a process of its own."""
    return Image(data=b"\x89PNG", media_type="image/png")


def parts_in(messages: list[Message] | tuple[Message, ...]) -> list[tuple[Attachment, ...]]:
    return [part.parts for message in messages for part in message.parts if isinstance(part, ToolResult)]


@virtual
async def test_the_model_gets_the_pictures_and_files_that_a_tool_returned() -> None:
    model = ScriptedModel(call("look"), say("I see."))
    result = await Agent("a", model=model, tools=[look]).run("go")
    [sent] = [part for part in model.requests[1].messages[-1].parts if isinstance(part, ToolResult)]
    assert sent.content == "A bill:\n[image 1: image/png, 4 bytes]\n[file 2: bill.pdf, application/pdf, 4 bytes]"
    assert sent.parts == result.ledger[0].parts == (PNG, PDF)
    check_history(result.messages)


def test_a_picture_comes_back_from_a_process_too() -> None:
    result = Agent("a", model=ScriptedModel(call("photo"), say("I see.")), tools=[photo]).run_sync("go")
    assert parts_in(result.messages) == [(PNG,)]


@virtual
async def test_a_hook_may_replace_a_call_by_a_picture() -> None:
    class Double(Hooks):
        async def before_tool(self, run: Run[Any, Any], call: ToolCall) -> Replace:  # Any: a run of any agent
            return Replace(result=[Text("from the cache:"), PNG])

    result = await Agent("a", model=ScriptedModel(call("look"), say("ok")), tools=[look], hooks=[Double()]).run("go")
    assert parts_in(result.messages) == [(PNG,)]


@virtual
async def test_a_stopped_run_keeps_the_pictures_and_goes_on_with_them_from_bytes() -> None:
    model = ScriptedModel([call("look"), call("hang")], say("done"))
    agent = Agent("a", model=model, tools=[look, hang], max_parallel_tools=1)
    async with agent.start("go") as run:
        await inside.wait()
        run.cancel(SafePoint.NOW)
    checkpoint = run.result.checkpoint
    assert checkpoint is not None
    assert parts_in(run.result.messages) == [(PNG, PDF), ()]
    again = await agent.resume(Checkpoint.from_bytes(checkpoint.to_bytes()))
    assert parts_in(again.messages) == [(PNG, PDF), ()]
    assert parts_in(model.requests[-1].messages) == [(PNG, PDF), ()]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_session_keeps_them_in_its_store(kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "chat.db")
        agent = Agent("a", model=ScriptedModel(call("look"), say("one"), say("two")), tools=[look])
        session = await Session.create(store, "chat")
        await agent.run("go", session=session)
        again = await Session.load(store, "chat")
        assert parts_in(again.messages) == [(PNG, PDF)]
        assert again.runs[-1].ledger[0].parts == (PNG, PDF)
        result = await agent.run("and now?", session=again)
        assert parts_in(result.messages) == [(PNG, PDF)]
        await store.aclose()

    asyncio.run(scenario())
