"""A worker with a loop on a SQLite file: SIGTERM stops it at a safe point, and the next one goes on.

Arguments: the folder, and `slow` or `quick`. `slow` waits in the third call of its first turn until it is stopped.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from safepoint import Agent, SafePoint, TurnLoop, check_history, tool
from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, TextDelta
from safepoint.errors import SessionExists
from safepoint.sessions import Session, SqliteStore
from safepoint.turns import Plan, PlanContext, ResumePlan, SqliteTurnStore
from tests.process.programs.telling import tell

CALLS = 4


class Counting:
    """Asks for one effect in each step, four in each turn; which one depends on the conversation alone."""

    name = "counting"

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        return self._stream(sum(len(message.tool_calls) for message in request.messages))

    @asynccontextmanager
    async def _stream(self, asked: int) -> AsyncGenerator[AsyncIterator[Chunk]]:
        yield self._chunks(asked)

    async def _chunks(self, asked: int) -> AsyncGenerator[Chunk]:
        if asked < CALLS:
            yield CallDelta(0, f"call_{asked}", "act", f'{{"x": {asked}}}')
            yield Finish("tool_calls", 1, 1)
        else:
            yield TextDelta("done")
            yield Finish("end_turn", 1, 1)


async def main(folder: Path, pace: str) -> None:
    reached = asyncio.Event()

    @tool
    async def act(x: int) -> str:
        """Change the world."""
        with (folder / "effects").open("a") as file:
            file.write(f"{x}\n")
        if pace == "slow" and x == 2:
            reached.set()
            await asyncio.sleep(0.5)
        return f"did {x}"

    store, sessions = SqliteTurnStore(folder / "loop.db"), SqliteStore(folder / "loop.db")
    try:
        session = await Session.create(sessions, "s")
    except SessionExists:
        session = await Session.load(sessions, "s")
    check_history(session.messages)
    tell("FOUND", messages=len(session.messages), checkpoint=session.checkpoint is not None)

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        return Plan(items[0], items[:1], items[1:], session=session)

    def plan_resume(
        ctx: PlanContext[str], interrupted: list[str], unhandled: list[str], new: list[str]
    ) -> ResumePlan[str]:
        return ResumePlan(interrupted, [*unhandled, *new], session=session)

    agent = Agent("worker", model=Counting(), tools=[act])
    loop: TurnLoop[str] = TurnLoop(agent, plan=plan, plan_resume=plan_resume, store=store, checkpoint_id="worker")
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGTERM, lambda: loop.stop(SafePoint.ANY, within=5, cause="SIGTERM")
    )
    async with loop:
        if pace == "slow":
            receipts = [loop.push(word) for word in ("first", "second", "third")]
            for receipt in receipts:
                await receipt.saved()
            await reached.wait()
            tell("INSIDE")
        else:
            loop.stop(idle_for=0.2)
        await loop.wait()
    exit = await loop.wait()
    tell(
        "EXIT",
        reason=exit.reason,
        cause=exit.cause,
        interrupted=exit.interrupted,
        unhandled=exit.unhandled,
        saved=exit.checkpoint.state,
        said=[message.text for message in session.messages if message.role == "user"],
    )
    await store.aclose()
    await sessions.aclose()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
