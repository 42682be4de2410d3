"""Faults other than a cancel, for the same injector: a model, a tool or a store that fails, a reader that goes away.

An injection arms a fault at a point; the next thing of that kind that happens fails. So a fault strikes at every place
in every order that a cancel can, and the same oracles say what must be true afterwards.

    faults = Faults()
    agent = Agent("x", model=faults.model(model), tools=[…])      # a tool calls faults.strike("tool") where it may fail
    check_cancellable(scenario, kinds=faults.kinds)
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, TypeAlias, TypeVar

from safepoint.agent.model import Chunk, Model, ModelRequest
from safepoint.errors import ModelError, RunFailed, StoreError
from safepoint.testing.kinds import Injection, Shot, clock_jump, may_raise

FaultKind: TypeAlias = Literal["model", "tool", "store", "disconnect"]
T = TypeVar("T")

_RAISES: dict[str, type[Exception]] = {"model": ModelError, "tool": RuntimeError, "store": StoreError}


class Faults:
    """One set of faults for one scenario; each run of the scenario starts with none armed if it calls `clear`."""

    def __init__(self) -> None:
        self._armed: set[str] = set()

    def clear(self) -> None:
        self._armed.clear()

    def strikes(self, kind: FaultKind) -> bool:
        """Is this fault due? It is due once."""
        due = kind in self._armed
        self._armed.discard(kind)
        return due

    def strike(self, kind: FaultKind) -> None:
        """Raise if this fault is due: for tools and stores of your own."""
        if self.strikes(kind):
            raise _RAISES.get(kind, RuntimeError)(f"an injected {kind} error")

    def model(self, model: Model) -> Model:
        """The same model, which fails at its next chunk when a model error is due."""
        return _Troubled(model, self)

    async def reading(self, items: AsyncIterator[T]) -> AsyncGenerator[T]:
        """The same items, until the reader goes away."""
        async for item in items:
            yield item
            if self.strikes("disconnect"):
                return

    @property
    def kinds(self) -> tuple[Injection, ...]:
        """What to inject: all four, and a jump of the clock."""
        arming = [self._arming(kind) for kind in ("model", "tool", "store", "disconnect")]
        return (*arming, clock_jump(3600))

    def _arming(self, kind: str) -> Injection:
        def fire(_shot: Shot) -> bool:
            self._armed.add(kind)
            return True

        return Injection(f"{kind}_error" if kind in _RAISES else kind, fire, may_raise(RunFailed, StoreError))


class _Troubled:
    def __init__(self, model: Model, faults: Faults) -> None:
        self._model = model
        self._faults = faults

    @property
    def name(self) -> str:
        return self._model.name

    def stream(self, request: ModelRequest, /) -> AbstractAsyncContextManager[AsyncIterator[Chunk]]:
        return self._playing(request)

    @asynccontextmanager
    async def _playing(self, request: ModelRequest) -> AsyncGenerator[AsyncIterator[Chunk]]:
        async with self._model.stream(request) as chunks:
            yield self._chunks(chunks)

    async def _chunks(self, chunks: AsyncIterator[Chunk]) -> AsyncGenerator[Chunk]:
        async for chunk in chunks:
            self._faults.strike("model")
            yield chunk
