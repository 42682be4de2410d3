"""What another part of Safepoint writes with the beginning and the end of a run, in the same units of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from safepoint.agent.journal import Ended
from safepoint.storage.operations import Statement


class RunWrites(Protocol):
    """What else is written with the beginning and with the end of a run, in the same units of work."""

    def opening(self) -> Sequence[Statement[Any]]:  # Any: of every result
        """May still change the state of the session."""
        ...

    def not_opened(self) -> None:
        """The beginning was refused, or it is not known whether it is stored."""
        ...

    def opened(self, results: Sequence[Any] | None) -> None:  # Any: a result for each
        """The beginning is stored. None: it is, but its results were lost with the wait for them."""
        ...

    def ending(self, ended: Ended, state: Mapping[str, Any]) -> Sequence[Statement[Any]]:  # Any: JSON values
        """`state`: of the session, as it is stored with the end."""
        ...

    def ended(self) -> None:
        """The end is stored."""
        ...
