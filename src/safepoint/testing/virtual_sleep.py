"""Letting time pass in a test: on a virtual clock, and nowhere else."""

from __future__ import annotations

import asyncio

from safepoint.errors import UsageError
from safepoint.testing.clock import VirtualLoop


async def pass_time(seconds: float) -> None:
    """Let the virtual clock go on by so much. Refused on a real loop, where a test would only be slow and hopeful.

    Cancellation: as of `asyncio.sleep`.
    """
    if not isinstance(asyncio.get_running_loop(), VirtualLoop):
        raise UsageError("pass_time() needs a virtual clock: run the test with run_virtual(…), or wait for a state")
    await asyncio.sleep(seconds)
