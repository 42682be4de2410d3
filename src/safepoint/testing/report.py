"""The findings of `check_cancellable`: how much was tried, and each failure with a line that reproduces it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from safepoint.testing.points import Landing, Moment, Point


class Case(NamedTuple):
    """What distinguishes one injection from another for a reader of the source."""

    entry: str
    file: str
    line: int
    moment: str
    kind: str


@dataclass(frozen=True, slots=True, repr=False)
class Failure:
    """One run that went wrong. `point` is None if it was the scenario without any injection."""

    entry: str
    kind: str
    problems: tuple[str, ...]
    again: str
    point: Point | None = None
    moment: Moment | None = None
    landings: tuple[Landing, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.entry}: {self._when()}"]
        lines += ["  " + problem.replace("\n", "\n    ") for problem in self.problems]
        if self.point is not None:
            lines += [f"  landed at {landing} (task {landing.task})" for landing in self.landings]
            lines += [] if self.landings else ["  landed in no line of the user's"]
        return "\n".join([*lines, f"  again: {self.again}"])

    __repr__ = __str__  # what an `assert` shows

    @property
    def id(self) -> str | None:
        """The value for `only=`; None if it was the scenario without any injection."""
        return None if self.point is None else f"{self.kind}:{self.moment}:{self.point.id}"

    def _when(self) -> str:
        if self.point is None or self.moment is None:
            return self.kind
        what = "the start of" if self.moment in (Moment.UNSTARTED, Moment.STEPPED) else "the wait of"
        return f"{self.kind}, {self.moment}, timed by {self.point.place} ({what} task {self.point.task})"


@dataclass(slots=True, repr=False)
class Report:
    """The result for one scenario. ``assert report.failures == [], report``, or `raise_for_failures`."""

    entry: str
    points: list[Point] = field(default_factory=list[Point])
    failures: list[Failure] = field(default_factory=list[Failure])
    """Runs that broke a promise, in the order in which they were tried."""
    injections: int = 0
    """The number of runs with an injection."""
    idle: int = 0
    """Runs that reached their point and had no target: an own cancel with no run live, a fault that another cancel
    preceded."""
    missed: list[str] = field(default_factory=list[str])
    """Injections whose recorded point was not reached again."""
    placeless: list[str] = field(default_factory=list[str])
    """Kinds that were requested and fit nowhere in this scenario: a store error where no task waits for a store."""
    tried: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """How many injections there were by (kind, moment)."""
    cases: set[Case] = field(default_factory=set[Case])
    sites: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """Each (file, line) that was suspended, in any run, anywhere in a chain of awaits."""

    @property
    def distinct(self) -> int:
        """How many injections differ in entry, source line, moment or kind."""
        return len(self.cases)

    def raise_for_failures(self) -> None:
        """Raise an AssertionError with the whole report; pytest shortens it after a plain `assert`."""
        if self.failures:
            raise AssertionError(str(self))

    def table(self) -> str:
        """Injections and failures by kind and moment."""
        tried = Counter((case.kind, case.moment) for case in self.cases)
        failed = Counter((failure.kind, str(failure.moment)) for failure in self.failures if failure.moment)
        rows = [("kind", "moment", "distinct", "failures")]
        rows += [(kind, moment, str(tried[kind, moment]), str(failed[kind, moment])) for kind, moment in sorted(tried)]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)

    def __str__(self) -> str:
        lines = [
            f"{self.entry}: {self.injections} injections ({self.distinct} distinct) at {len(self.points)} points, "
            f"{len(self.failures)} failures, {len(self.missed)} missed, {self.idle} idle"
        ]
        lines += [str(failure) for failure in self.failures]
        lines += [f"missed: {missed}" for missed in self.missed]
        return "\n".join(lines + [f"no place for {kind}" for kind in self.placeless])

    __repr__ = __str__  # what an `assert` shows
