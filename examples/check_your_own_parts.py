"""Check a tool and a session store of your own against the rules, and read which ones they break."""

import asyncio
from collections.abc import Sequence

from safepoint import tool
from safepoint.sessions import MemoryStore
from safepoint.sessions.store import Change
from safepoint.testing import check_store, check_tool


@tool
async def stubborn(name: str) -> str:
    """Look a name up, and raise another error when cancelled."""
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        raise ConnectionError("the clean-up failed") from None
    return f"{name} is known"


class HastyStore(MemoryStore):
    """A store that writes the changes of one append one by one."""

    async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
        for change in changes:
            await super().append(session_id, epoch, [change])


try:
    check_tool(lambda: stubborn, {"name": "Zoe"})
except AssertionError as error:
    print(error)

try:
    check_store(HastyStore)
except AssertionError as error:
    print(error)

check_store(MemoryStore)
print("MemoryStore keeps every rule.")
