"""What the scenarios are made of: tools and hooks that wait, a model that answers by step, a store that is late."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, TypeVar

from safepoint import Agent, Hooks, RunResult, ToolContext, tool
from safepoint._core.asks import Ask
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.model import Chunk, ModelRequest
from safepoint.history.parts import Message, ToolCall
from safepoint.sessions import LateResult, Store, Stored
from safepoint.sessions.store import Change
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.operations import Query, Statement
from safepoint.testing.models import Act, CallTool, Player, Reply

# On the virtual clock a number of seconds is an order of events, and takes no time.
T = TypeVar("T")
A_MOMENT = 0.01
A_WHILE = 0.5
LONG = 5.0


class StepModel(Player):
    """The nth reply for the nth step of a conversation, whoever asks: a call that is made again gets the same answer.

    Beyond the last reply it repeats the last one.
    """

    def __init__(self, *replies: Reply, name: str = "steps") -> None:
        super().__init__(name)
        self._replies = [reply if isinstance(reply, Sequence) else (reply,) for reply in replies]

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        self.calls += 1
        self.requests.append(request)
        step = sum(_is_step(message) for message in request.messages)
        acts = self._replies[min(step, len(self._replies) - 1)]
        return self._playing([_named(act, f"step{step}_{number}") for number, act in enumerate(acts)])


def _is_step(message: Message) -> bool:
    return message.role == "assistant" and any(part.kind != "notice" for part in message.parts)


def _named(act: Act, id: str) -> Act:
    return replace(act, id=id) if isinstance(act, CallTool) else act


def agent(*replies: Reply, name: str = "agent", **options: Any) -> Agent:  # Any: as for Agent
    """An agent that plays these replies by step."""
    return Agent(name, model=StepModel(*replies), **options)


# -- tools -----------------------------------------------------------------------------------------------------------


@tool(effect="pure")
async def look(x: int = 0) -> int:
    """Harmless, and waits twice."""
    await asyncio.sleep(A_MOMENT)
    await asyncio.sleep(0)
    return x


class Effects:
    """Which effects have begun, until somebody has looked."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()

    def begin(self, ctx: ToolContext) -> None:
        self._begun[f"{ctx.run.agent.name}/{ctx.call_id}"] += 1

    def began_once(self) -> None:
        """The oracle: no call with an effect was begun a second time."""
        begun, self._begun = self._begun, Counter()
        twice = [name for name, times in begun.items() if times > 1]
        assert not twice, f"effects that began more than once: {', '.join(twice)}"


EFFECTS = Effects()


@tool
async def post(ctx: ToolContext, x: int = 0) -> str:
    """Has an effect, and tidies up after itself."""
    EFFECTS.begin(ctx)
    try:
        await asyncio.sleep(A_WHILE)
    finally:
        await asyncio.sleep(A_MOMENT)
    return f"posted {x}"


@tool(effect="idempotent")
async def pages(ctx: ToolContext, count: int = 3) -> int:
    """Has a safe point after each page, and goes on from there."""
    for page in range(ctx.saved or 0, count):
        await asyncio.sleep(A_MOMENT)
        await ctx.safe_point("page", save=page + 1)
    return count


# -- hooks -----------------------------------------------------------------------------------------------------------


class SlowHooks(Hooks):
    """Every hook waits."""

    async def before_run(self, run: object) -> None:
        await asyncio.sleep(A_MOMENT)

    async def after_run(self, run: object, text: str) -> None:
        await asyncio.sleep(A_MOMENT)

    async def before_model(self, run: object, request: ModelRequest) -> None:
        await asyncio.sleep(A_MOMENT)

    async def after_model(self, run: object, message: Message) -> None:
        await asyncio.sleep(A_MOMENT)

    async def before_tool(self, run: object, call: ToolCall) -> object:
        await asyncio.sleep(A_MOMENT)
        return None

    async def after_tool(self, run: object, entry: LedgerEntry) -> None:
        await asyncio.sleep(A_MOMENT)

    async def on_cancel_requested(self, run: object, ask: Ask) -> None:
        await asyncio.sleep(A_MOMENT)

    async def on_stopped(self, run: object, result: RunResult[Any]) -> None:  # Any: of any output type
        await asyncio.sleep(A_MOMENT)


# -- stores ----------------------------------------------------------------------------------------------------------


class SlowStorage(MemoryStorage):
    """A storage that waits before it acts, and once more before it says so: what is cancelled may have happened."""

    is_slow = True

    async def commit(self, *statements: Statement[Any]) -> tuple[Any, ...]:  # Any: of every result
        await self._wait()
        results = await super().commit(*statements)
        await self._wait()
        return results

    async def read(self, query: Query[T]) -> T:
        await self._wait()
        return await super().read(query)

    async def aclose(self) -> None:
        await self._wait()
        await super().aclose()

    async def _wait(self) -> None:
        if self.is_slow:
            await asyncio.sleep(A_MOMENT)


class SlowStore:
    """A store that waits before it acts, and once more before it says so: what is cancelled may have happened."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def create(self, session_id: str, state: Mapping[str, Any]) -> None:  # Any: JSON values
        await self._slowly(lambda: self._store.create(session_id, state))

    async def load(self, session_id: str) -> Stored:
        found: list[Stored] = []

        async def load() -> None:
            found.append(await self._store.load(session_id))

        await self._slowly(load)
        return found[0]

    async def claim(self, session_id: str, claimant: str) -> int:
        epochs: list[int] = []

        async def claim() -> None:
            epochs.append(await self._store.claim(session_id, claimant))

        await self._slowly(claim)
        return epochs[0]

    async def release(self, session_id: str, claimant: str) -> None:
        await self._slowly(lambda: self._store.release(session_id, claimant))

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        await self._slowly(lambda: self._store.append(session_id, epoch, changes))

    async def add_late(self, session_id: str, late: LateResult) -> None:
        await self._slowly(lambda: self._store.add_late(session_id, late))

    async def delete(self, session_id: str) -> None:
        await self._slowly(lambda: self._store.delete(session_id))

    async def list_ids(self, prefix: str = "") -> list[str]:
        return await self._store.list_ids(prefix)

    async def states(self, prefix: str = "") -> dict[str, Mapping[str, Any]]:  # Any: JSON values
        return await self._store.states(prefix)

    async def aclose(self) -> None:
        await self._store.aclose()

    async def _slowly(self, act: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(A_MOMENT)
        await act()
        await asyncio.sleep(0)
