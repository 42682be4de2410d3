"""Let time pass in a test, on a virtual clock only."""

from __future__ import annotations

import asyncio

from safepoint.errors import UsageError
from safepoint.testing.clock import VirtualLoop


async def pass_time(seconds: float) -> None:
    """Move the virtual clock on by this much. Refused on a real loop, where a test would be slow and unreliable.

    Cancellation: as for `asyncio.sleep`.
    """
    if not isinstance(asyncio.get_running_loop(), VirtualLoop):
        raise UsageError("pass_time() needs a virtual clock: run the test with run_virtual(…), or wait for a state")
    await asyncio.sleep(seconds)
