"""What the models of the scenarios say. No framework and no network: the same words everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from bench.compare.contract import Call, Chunk, Say, Script, Throttled, Used

PARTIAL = "one moment"
WORD = "word "
ANSWER = "done"
FLOWS = 20
BACK_OFF = 60.0
_SETTLE = 0.02  # seconds from a failed call until its framework is surely in its back-off


class Answering(Script):
    """Calls each of these tools once in a turn, if there are any, then answers with a word. It never waits.

    `once`: it calls them in its first turn only.
    """

    def __init__(self, *tools: str, arguments: dict[str, str] | None = None, once: bool = False) -> None:
        super().__init__()
        self._tools = tools
        self._arguments = arguments or {}
        self._once = once

    async def chunks(self, *, answered: bool) -> AsyncGenerator[Chunk]:
        yield Used(10, 0)
        if self._tools and not answered and not (self._once and self.calls > 1):
            for place, name in enumerate(self._tools):
                yield Call(f"call_{self.calls}_{place}", name, self._arguments)
        else:
            yield Say(ANSWER)
        yield Used(0, 5)


class Stalling(Script):
    """Says two words and then nothing; from the second call on it answers."""

    async def chunks(self, *, answered: bool) -> AsyncGenerator[Chunk]:
        yield Used(10, 0)
        if self.calls == 1:
            yield Say(PARTIAL)
            self.ready.set()
            await self.hung_up.wait()
            return
        yield Say(ANSWER)
        yield Used(0, 5)


class Flowing(Script):
    """A word in each turn of the loop, for ever; from the second call on it answers."""

    async def chunks(self, *, answered: bool) -> AsyncGenerator[Chunk]:
        yield Used(10, 0)
        said = 0
        while self.calls == 1:
            yield Say(WORD)
            said += 1
            if said == FLOWS:
                self.ready.set()
            await asyncio.sleep(0)
        yield Say(ANSWER)
        yield Used(0, 5)


class Failing(Script):
    """Fails in a way that is worth another try, until `mended`; then answers.

    `itself`: the framework has no back-off; the provider's client waits inside the model call, as those clients do.
    """

    def __init__(self, *, itself: bool) -> None:
        super().__init__()
        self.mended = False
        self._itself = itself

    async def chunks(self, *, answered: bool) -> AsyncGenerator[Chunk]:
        if not self.mended:
            asyncio.get_running_loop().call_later(_SETTLE, self.ready.set)
            if not self._itself:
                raise Throttled("come back later")
            await asyncio.sleep(BACK_OFF)
        yield Used(10, 0)
        yield Say(ANSWER)
        yield Used(0, 5)
