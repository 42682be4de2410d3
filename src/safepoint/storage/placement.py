"""Free runs and who starts them: a storage that many machines share hands them to an engine.

A run is placed in the transaction that makes it free: accepted for others, handed over, or left by a dead worker. Of
one session only the run that comes first is placed; the transaction that ends it places the next one. The engine starts
runs; whether a worker has one is decided by `take`, so an engine that starts a run twice does no harm.

`placement_of` finds the part; a storage of one machine has none.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, runtime_checkable

from safepoint._values import Value


class Engine(StrEnum):
    """What starts free runs. `NONE`: workers look for them, and are told by a push.

    `EXTERNAL`: a program of your own, which calls `work_on` in a process with a worker; nothing else starts them.
    """

    NONE = "none"
    PROCRASTINATE = "procrastinate"
    EXTERNAL = "external"


class Waiting(Value, frozen=True):
    """Placed runs of one app that no worker has taken yet. `seconds`: how long the oldest of them has waited."""

    app: str
    runs: int
    seconds: float
    workers: int


@runtime_checkable
class Placement(Protocol):
    """Every method is atomic. Cancellation of any of them: it happened whole, or not at all."""

    async def engine(self) -> Engine: ...

    async def free_the_dead(self) -> int:
        """Free the runs of dead workers, and place them; how many there were."""
        ...

    async def is_draining(self) -> bool:
        """Has anybody marked this worker as one that is to hand its runs over? Known from the last `free_the_dead`."""
        ...

    async def place_the_forgotten(self, patience: float) -> int:
        """Place free runs again whose job was lost so many seconds ago; in how many sessions there were any."""
        ...

    async def waiting(self) -> list[Waiting]:
        """By app. `workers`: how many live ones have it and take runs."""
        ...

    async def aim(self, run_id: str, target: str) -> None:
        """When the run is free the next time, that worker is to take it."""
        ...


def placement_of(storage: object) -> Placement | None:
    """None for a storage of one machine."""
    found = getattr(storage, "placement", None)
    return found if isinstance(found, Placement) else None
