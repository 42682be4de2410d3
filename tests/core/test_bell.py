"""A ring is never lost: it wakes whoever waits, or the next one who does."""

from __future__ import annotations

import asyncio

import pytest

from safepoint._core.bell import Bell
from tests.virtual import rounds, virtual


@virtual
async def test_a_ring_wakes_the_waiter() -> None:
    bell = Bell()
    waiting = asyncio.create_task(bell.wait())
    await rounds(2)
    assert not waiting.done()
    bell.ring()
    await waiting


@virtual
async def test_a_ring_while_nobody_waits_is_kept_for_the_next_wait_and_counts_once() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    await bell.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await bell.wait()


@virtual
async def test_two_rings_wake_a_waiter_once() -> None:
    bell = Bell()
    waiting = asyncio.create_task(bell.wait())
    await rounds(2)
    bell.ring()
    bell.ring()
    await waiting
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await bell.wait()


@virtual
async def test_a_ring_that_meets_a_cancelled_waiter_is_kept() -> None:
    bell = Bell()
    waiting = asyncio.create_task(bell.wait())
    await rounds(2)
    bell.ring()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    await bell.wait()
