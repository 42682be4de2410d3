"""The claim of one session, from the wish for it until it was given back.

    FREE ── take ──▶ OURS ── released ──▶ FREE

Its claimant is named before the store is asked and forgotten after a release, so in between we may hold it even if an
answer never came. Each claim has a name of its own: a release that comes late can't give away the next one.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

from safepoint._core.caller_cancellation import outlast
from safepoint._core.supervisor import Supervisor
from safepoint.errors import SessionBusy, SessionNotFound
from safepoint.storage.protocol import SessionCalls
from safepoint.storage.session_data import SessionChanging

T = TypeVar("T")

_PATIENCE = 10.0  # seconds for a release
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # before it is tried again
_A_MOMENT = 2.0  # for which others may have a session to change it
_LOOK = 0.01


class SessionLease:
    """`claimant`: the name of the claim that is ours, or may be; None if there is none. `number`: of its last write."""

    def __init__(self, store: SessionCalls, session_id: str) -> None:
        self._store = store
        self._id = session_id
        self.claimant: str | None = None
        # Is it known to be ours? Then writes need not claim it.
        self.is_certain = False
        self.number = 0
        # Tries a release that has failed again, as others would find the session busy for ever.
        self._retry: asyncio.Task[None] | None = None

    def name(self, kind: str) -> str:
        """The name of the next claim, or of a claim that the store may have granted already."""
        self.claimant = self.claimant or f"{kind}{uuid.uuid4().hex}"
        return self.claimant

    def won(self, *, number: int = 0) -> None:
        self.is_certain, self.number = True, number

    def lost(self) -> None:
        """It is certainly not ours."""
        self.claimant, self.is_certain = None, False

    def next_write(self) -> int:
        self.number += 1
        return self.number

    async def take(self, kind: str) -> int:
        """The epoch of the claim. `kind`: how its name begins. Raises `SessionBusy`, `SessionNotFound`, `StoreError`.

        Cancellation: it may be ours, and is to be given back.
        """
        await self.give_back()
        await self._stop_retrying()
        # What could not be given back is still ours, under the name it was claimed with.
        claimant = self.name(kind)
        try:
            epoch = await self.after_changes(lambda: self._store.claim(self._id, claimant))
        except (SessionBusy, SessionNotFound):
            self.lost()  # after any other error it may be ours
            raise
        self.won()
        return epoch

    async def after_changes(self, claim: Callable[[], Awaitable[T]]) -> T:
        """Claim again for as long as a change, which is over in a moment, has the session. Cancellation: as of it."""
        until = asyncio.get_running_loop().time() + _A_MOMENT
        while True:
            try:
                return await claim()
            except SessionChanging:
                if asyncio.get_running_loop().time() >= until:
                    raise
            await asyncio.sleep(_LOOK)

    async def give_back(self) -> None:
        """Release what a claim has taken, or may have. Cancellation: put off until that is done, within limits."""
        if (release := self.begin_release()) is not None:
            await outlast(release)

    def begin_release(self) -> asyncio.Task[None] | None:
        """In a task of its own: it has to happen even if the caller is cancelled in the middle of a change."""
        if self.claimant is None:
            return None
        body = self._release(self.claimant)
        return Supervisor.current().spawn(body, f"release of {self._id}", copy_context())

    async def _release(self, claimant: str) -> None:
        """Bounded. If it fails, this process keeps the session, may use it, and tries again.

        Cancellation: this process keeps the session, and may use it.
        """
        await self._try_to_release(claimant)
        if self.claimant == claimant and (self._retry is None or self._retry.done()):
            body = self._keep_trying(claimant)
            self._retry = Supervisor.current().spawn(body, f"release of {self._id}", copy_context())

    async def _try_to_release(self, claimant: str) -> None:
        """Cancellation: it is released or it is not."""
        with suppress(Exception):  # a store of the user's own may raise anything
            async with asyncio.timeout(_PATIENCE):
                with suppress(SessionNotFound):
                    await self._store.release(self._id, claimant)
            self.released(claimant)

    async def _keep_trying(self, claimant: str) -> None:
        """Until it is released. Cancellation: the session is claimed again, or the loop ends."""
        pause = _FIRST_PAUSE
        while self.claimant == claimant:
            await asyncio.sleep(pause)
            await self._try_to_release(claimant)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _stop_retrying(self) -> None:
        """A release that comes later would give away the next claim. Cancellation: it may come."""
        retry, self._retry = self._retry, None
        if retry is None or retry.done():
            return
        with suppress(RuntimeError):  # of a loop that was closed
            retry.cancel()
            if retry.get_loop() is asyncio.get_running_loop():
                await asyncio.wait({retry}, timeout=1.0)

    def released(self, claimant: str) -> None:
        """That claim is over; perhaps it was claimed again meanwhile."""
        if self.claimant == claimant:
            self.lost()
