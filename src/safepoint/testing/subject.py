"""What the injector knows about the runtime it tests: how to cancel it, and how to ask whether all is well.

The injector itself knows tasks and loops. A `Subject` stands for everything above: it collects the runs that a
scenario starts, cancels them, and checks what they leave behind.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, final

from safepoint.testing.frames import Place


class Seam(StrEnum):
    """A part of the world outside that can fail where it is waited for."""

    MODEL = "model"
    TOOL = "tool"
    STORE = "store"
    READER = "reader"


class Subject(Protocol):
    """The runs of one scenario. All methods are called from the thread that runs the scenario's loop."""

    def begin(self) -> None:
        """A new run of the scenario: forget what was collected, collect the runs created from now on."""
        ...

    def disturbed(self, *, cancels: bool) -> None:
        """Something is about to be injected: runs that begin from now on may begin from another state.

        Unless it only `cancels`, runs that are live may go another way from here, too.
        """
        ...

    def seams_of(self, task: str, places: list[Place]) -> frozenset[str]:
        """Which parts of the world outside can fail where this task waits. Places are given outermost first."""
        ...

    def cancel_all(self) -> int:
        """``cancel(NOW)`` every root run that is live, and say how many there were. Called inside the loop."""
        ...

    def held(self) -> list[str]:
        """Right after the scenario: what the runs still hold and should have given back. The loop is still open."""
        ...

    def check(self) -> list[str]:
        """After the scenario: what is wrong with the runs it left, each in one line. The loop is closed by then."""
        ...

    def remember(self) -> None:
        """The runs collected now are those of the uncancelled scenario; later checks compare with them."""
        ...


@final
class NullSubject:
    """Nothing but asyncio is under test."""

    def begin(self) -> None: ...

    def disturbed(self, *, cancels: bool) -> None: ...

    def seams_of(self, task: str, places: list[Place]) -> frozenset[str]:
        return frozenset()

    def cancel_all(self) -> int:
        return 0

    def held(self) -> list[str]:
        return []

    def check(self) -> list[str]:
        return []

    def remember(self) -> None: ...


def default_subject() -> Subject:
    """Safepoint's own runs. Imported late, because the runtime must not be needed to test plain asyncio."""
    from safepoint.testing import runs

    return runs.default_subject()
