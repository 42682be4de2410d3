"""Where the workers of a cluster reach each other: each says it in its own row.

What is asked there is never the truth, which is in the storage: only what is not stored, such as text under way.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from safepoint._values import Value
from safepoint.history.json_codec import Codec


class PeerAddress(Value, frozen=True):
    """`token`: made anew by each process; whoever proves to know it can read the storage, or is that process."""

    host: str
    port: int
    token: str

    def __repr__(self) -> str:
        return f"PeerAddress({self.host!r}, {self.port})"


PEER_ADDRESS: Codec[PeerAddress] = Codec(PeerAddress)


@runtime_checkable
class PeerDirectory(Protocol):
    """What a storage adds that several processes share."""

    def publish_peer(self, address: PeerAddress | None) -> None:
        """Of this worker; written with its row."""
        ...

    async def peer_of(self, worker: str) -> PeerAddress | None:
        """None for a worker that has no row, or none with an address. Cancellation: nothing has changed."""
        ...


def peers_of(storage: object) -> PeerDirectory | None:
    """None for a storage of one process."""
    return storage if isinstance(storage, PeerDirectory) else None
