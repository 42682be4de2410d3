"""The workers of a cluster: which there are, what each can run, and which worker is offered a run without an owner.

Only a storage that many machines share keeps them, as its part `workers`; `workers_of` finds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from safepoint._values import Value
from safepoint.storage.changes import Subscription
from safepoint.storage.peers import PeerAddress


class WorkerInfo(Value, frozen=True):
    """What a worker says of itself. `apps`: those that it has. `room`: how many placed runs it takes at a time.

    `peer`: for other workers, and never shown.
    """

    host: str = ""
    pid: int = 0
    version: str = ""
    apps: tuple[str, ...] = ()
    peer: PeerAddress | None = None
    room: int = 0


class WorkerRow(Value, frozen=True):
    """A worker as the storage has it. `lease_left`: seconds, by the clock of the storage; below 0 it is dead.

    `live`, `queued`: how many of its runs are.
    """

    id: str
    info: WorkerInfo
    draining: bool
    lease_left: float
    live: int
    queued: int


@runtime_checkable
class WorkerRegistry(Protocol):
    """Every method is atomic. Cancellation of any of them: it happened whole, or not at all."""

    async def announce(self, info: WorkerInfo, *, draining: bool = False) -> None:
        """Write the row of this worker, and renew its lease. One that drains is offered nothing more."""
        ...

    async def all(self) -> list[WorkerRow]:
        """Those that live, and those that are dead and still own something; the oldest first."""
        ...

    async def drain(self, worker: str) -> bool:
        """Mark a live worker: it takes nothing new, and hands over what it has. False if there is none of that id."""
        ...

    def offers(self, apps: Iterable[str]) -> Subscription:
        """As `changes`: yields when a run of one of these apps may be free for this worker to take."""
        ...


def workers_of(storage: object) -> WorkerRegistry | None:
    """None for a storage of one machine."""
    found = getattr(storage, "workers", None)
    return found if isinstance(found, WorkerRegistry) else None
