"""What the injector needs of the runtime under test: a way to cancel it, and a check of its state afterwards.

The injector itself knows tasks and loops. A `Subject` stands for everything above: it collects the runs that a
scenario starts, cancels them, and checks what they leave behind.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, final

from safepoint.testing.frames import Place


class Seam(StrEnum):
    """An outside part of the system that can fail while a task waits for it."""

    MODEL = "model"
    TOOL = "tool"
    STORE = "store"
    READER = "reader"


class Subject(Protocol):
    """The runs of one scenario. All methods are called from the thread that runs the scenario's loop."""

    def begin(self) -> None:
        """Begin a new run of the scenario: drop the collected runs, and collect the runs created from now on."""
        ...

    def disturbed(self, *, cancels: bool) -> None:
        """An injection is about to fire: runs that begin from now on may begin from another state.

        Unless it only `cancels`, live runs may take another course from here, too.
        """
        ...

    def seams_of(self, task: str, places: list[Place]) -> frozenset[str]:
        """The seams that can fail where this task waits. Places are given outermost first."""
        ...

    def cancel_all(self) -> int:
        """``cancel(NOW)`` every live root run, and return how many there were. Called inside the loop."""
        ...

    def held(self) -> list[str]:
        """Right after the scenario: resources that the runs still hold and should have released. The loop is open."""
        ...

    def check(self) -> list[str]:
        """After the scenario: each fault of its runs in one line. The loop is closed by then."""
        ...

    def remember(self) -> None:
        """Keep the collected runs as those of the uncancelled scenario; later checks compare with them."""
        ...


@final
class NullSubject:
    """For tests of plain asyncio code."""

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
    """Safepoint's own runs. Imported late, because tests of plain asyncio must not need the runtime."""
    from safepoint.testing import runs

    return runs.default_subject()
