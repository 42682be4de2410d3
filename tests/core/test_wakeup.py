"""A ring is never lost: it wakes whoever waits, or the next one who does."""

from __future__ import annotations

import asyncio

import pytest

from safepoint._core.wakeup import Wakeup
from tests.virtual import rounds, virtual


@virtual
async def test_a_ring_wakes_the_waiter() -> None:
    wakeup = Wakeup()
    waiting = asyncio.create_task(wakeup.wait())
    await rounds(2)
    assert not waiting.done()
    wakeup.ring()
    await waiting


@virtual
async def test_a_ring_while_nobody_waits_is_kept_for_the_next_wait_and_counts_once() -> None:
    wakeup = Wakeup()
    wakeup.ring()
    wakeup.ring()
    await wakeup.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await wakeup.wait()


@virtual
async def test_two_rings_wake_a_waiter_once() -> None:
    wakeup = Wakeup()
    waiting = asyncio.create_task(wakeup.wait())
    await rounds(2)
    wakeup.ring()
    wakeup.ring()
    await waiting
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await wakeup.wait()


@virtual
async def test_a_ring_that_meets_a_cancelled_waiter_is_kept() -> None:
    wakeup = Wakeup()
    waiting = asyncio.create_task(wakeup.wait())
    await rounds(2)
    wakeup.ring()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    await wakeup.wait()
