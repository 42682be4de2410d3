"""The one declared escalation. A plan is computed once from the kind of work; stopping only climbs it.

    safe point → let it finish → cancel async work / flag a thread / ask a child → abandon and report
                               → (processes) TERM → KILL ──────────────────────↗

Each piece of work climbs only the rungs that apply to it, all pieces in parallel, and no plan is longer than the cap:
no work holds a run, its session or its caller longer than that. FORCE has a plan of its own, without waiting. This
module knows nothing of processes, their descendants or signals: it sends TERM and KILL to a `Killable`, and the work
ends once everything that belongs to it has ended.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from typing import Protocol, TypeAlias

from msgspec.structs import force_setattr

from safepoint._core.asks import is_seconds
from safepoint._values import Value


class Rung(StrEnum):
    """Where on the ladder a piece of work stands."""

    SHIELDED = "shielded"
    FINISH = "finish"
    UNDO = "undo"  # the undo of a cut call: it may run until its time is up, then it is stopped
    CANCEL = "cancel"
    FLAG = "flag"
    RAISE = "raise"  # an exception in the thread, for a tool that has agreed to it
    ASK = "ask"
    TERM = "term"
    KILL = "kill"
    ABANDON = "abandon"


class _Unwritten(float):
    """The default of a rung: it shrinks to fit a lower cap, where a value that the user wrote would be refused."""


class Ladder(Value, frozen=True):
    """How long each rung may take, in seconds. `cap` bounds every grace, `finish` and shield, and every default.

    `kill`: how long killed work may take to be gone. It is also the time that FORCE leaves a sub-agent, or a run with
    a session, to record its own end. Its default is at most half of the cap, so that TERM has the other half.
    """

    task: float = _Unwritten(1.0)
    thread: float = _Unwritten(0.25)
    term: float = _Unwritten(2.0)
    kill: float = _Unwritten(1.0)
    undo: float = _Unwritten(2.0)
    cap: float = 10.0

    def __post_init__(self) -> None:
        for rung in self.__struct_fields__:
            seconds: object = getattr(self, rung)
            if not is_seconds(seconds):
                raise ValueError(f"Ladder({rung}={seconds!r}): write a number of seconds above 0")
        for rung in self.__struct_fields__:
            written: float = getattr(self, rung)
            if isinstance(written, _Unwritten):
                most = self.cap / 2 if rung == "kill" else self.cap
                force_setattr(self, rung, _Unwritten(min(written, most)))
            else:
                self.bound(written, f"Ladder({rung}=…)")

    def bound(self, seconds: float, what: str) -> float:
        """Return the seconds; refuse them if they exceed the cap."""
        if not is_seconds(seconds):
            raise ValueError(f"{what} is {seconds!r}: write a number of seconds above 0")
        if seconds > self.cap:
            raise ValueError(
                f"{what} is {seconds} s, above the ladder's cap of {self.cap} s: shorten it or raise Ladder(cap=…)"
            )
        return seconds


class WorkKind(StrEnum):
    """What kind of work this is, as far as stopping it goes."""

    TASK = "task"
    THREAD = "thread"
    CHILD = "child"
    PROCESS = "process"


class Killable(Protocol):
    """The processes of work of the kind PROCESS. Well-behaved ones end soon after `terminate`; `kill` ends the rest.

    Both are called in the loop's thread, never wait, and ignore processes that have ended. `pid`: the id of the first
    process, once it is known.
    """

    @property
    def pid(self) -> int | None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


class StopPolicy(Value, frozen=True):
    """How one piece of work is to be stopped."""

    kind: WorkKind = WorkKind.TASK
    finish: bool = False
    grace: float | None = None
    raises: bool = False


CUT_AT_ONCE = StopPolicy()


class Climb(Value, frozen=True):
    """One rung of a plan, and how long to stay on it before the next."""

    rung: Rung
    seconds: float


Plan: TypeAlias = tuple[Climb, ...]

_PUSH = {WorkKind.TASK: Rung.CANCEL, WorkKind.THREAD: Rung.FLAG, WorkKind.CHILD: Rung.ASK, WorkKind.PROCESS: Rung.TERM}


@lru_cache
def plan(stop_policy: StopPolicy, ladder: Ladder, *, force: bool) -> Plan:
    """The rungs for this work, ending in ABANDON; the sum of the waits is at most the cap."""
    push = _PUSH[stop_policy.kind]
    patience = {
        WorkKind.TASK: ladder.task,
        WorkKind.THREAD: ladder.thread,
        WorkKind.CHILD: ladder.cap,
        WorkKind.PROCESS: ladder.term,
    }[stop_policy.kind]
    kill = [Climb(Rung.KILL, ladder.kill)] if stop_policy.kind is WorkKind.PROCESS else []
    if stop_policy.raises:  # a thread that is deaf to its flag
        kill = [Climb(Rung.RAISE, 0.0 if force else ladder.thread)]
    if force:
        # A child that is forced abandons its own work at once, but needs a moment to record what it abandoned.
        hard = (
            kill
            if stop_policy.kind is WorkKind.PROCESS
            else [Climb(push, ladder.kill if stop_policy.kind is WorkKind.CHILD else 0.0), *kill]
        )
        rungs = hard
    elif stop_policy.finish:
        rungs = [
            Climb(Rung.FINISH, patience if stop_policy.grace is None else stop_policy.grace),
            Climb(push, patience),
            *kill,
        ]
    else:
        rungs = [Climb(push, patience if stop_policy.grace is None else stop_policy.grace), *kill]
    # The last rung that waits keeps its time: without it, a process that is dying would be reported as an orphan.
    left = ladder.cap - sum(climb.seconds for climb in kill)
    climbed: list[Climb] = []
    for climb in rungs[: len(rungs) - len(kill)]:
        seconds = min(climb.seconds, left)
        left -= seconds
        climbed.append(Climb(climb.rung, seconds))
    return (*climbed, *kill, Climb(Rung.ABANDON, 0.0))
