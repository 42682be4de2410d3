"""The audit trail: who asked for what, when, from where, and what came of it. Rows are only ever added.

An ask is one entry, written before it is answered; what came of it is a second entry, which names the first in `about`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import field

from safepoint._values import Value


class AuditEntry(Value, frozen=True):
    """One line of the trail. `number`: its place, given by the storage.

    `action`: what was asked, as `cancel` or `freeze`; of an entry about another one, the word `answer`. `who`: the
    name of the key, or `local`; `origin`: from where, as an address. `asked`: the request; `outcome`: what came of it.
    """

    at: float
    who: str
    action: str
    origin: str = ""
    run_id: str | None = None
    app: str | None = None
    user: str | None = None
    session: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON values
    outcome: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: JSON values
    about: int | None = None
    number: int = 0


class AuditTrail(Protocol):
    """`storage.audit`. Cancellation of each method: only the waiting ends; what was added stays."""

    async def add(self, entry: AuditEntry) -> int:
        """Its number."""
        ...

    async def read(self, *, after: int = 0, run: str | None = None, limit: int = 1000) -> list[AuditEntry]:
        """Oldest first, above that number: all of them, or those of one run."""
        ...
