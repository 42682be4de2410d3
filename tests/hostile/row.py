"""One row of the table: a hostile tool, and what is to become of it."""

from __future__ import annotations

from dataclasses import dataclass

from safepoint.tools.base import BaseTool


@dataclass(frozen=True, slots=True)
class Fate:
    """How a call ends when it is pushed: its ledger state, after how many seconds, and who is left running."""

    state: str
    seconds: float = 0.0
    orphans: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hostile:
    """`now` is its fate after NOW and after the caller's own cancellation, `force` after FORCE, if it is another.

    `ends`: it ends by itself and is pushed only then. `says`: words that the model is told about the call.
    `stops`: it stops its run itself, so that the caller is free before anybody pushes; `interrupts`: and gets the
    KeyboardInterrupt that came up inside. `cancels_caller`: it cancels the task that waits for the run.
    """

    tool: BaseTool
    now: Fate
    force: Fate | None = None
    ends: bool = False
    says: str = ""
    stops: bool = False
    interrupts: bool = False
    cancels_caller: bool = False

    @property
    def name(self) -> str:
        return self.tool.name


def ends(tool: BaseTool, state: str, says: str = "") -> Hostile:
    """It ends by itself, before anybody asks."""
    return Hostile(tool, Fate(state), ends=True, says=says)


def stops(tool: BaseTool, state: str, says: str = "", *, interrupts: bool = False) -> Hostile:
    """It ends by itself, and its run with it."""
    return Hostile(tool, Fate(state), ends=True, says=says, stops=True, interrupts=interrupts)


def ends_by_the_last_cancel(tool: BaseTool, seconds: float) -> Hostile:
    """It does not stop within its grace, but does when it is cancelled for the last time: nothing of it runs on."""
    return Hostile(tool, Fate("cut", seconds), Fate("cut"))


def abandoned(tool: BaseTool, seconds: float) -> Hostile:
    """It does not stop: it is left after that many seconds, or at once by FORCE, and named."""
    orphans = (tool.name,)
    return Hostile(tool, Fate("cut", seconds, orphans), Fate("cut", 0.0, orphans), says="may still be running")
