"""Cancel a scenario at every place where it waits, and check what is left.

The scenario runs once to record its points, then once for each point, moment and kind, with one injection there and
nowhere else. After each it runs once more without any, because the stopped objects have to be usable again. A run is
deterministic up to its injection: the clock is virtual, timers have an order, and the garbage collector is off. A
remaining difference between two recordings (random numbers, threads that race) is a failure of its own, because no
injection after that place can be trusted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from safepoint.errors import UsageError
from safepoint.testing.injections import CALLER, OWN, Injection
from safepoint.testing.points import Moment, Point
from safepoint.testing.report import Case, Failure, Report
from safepoint.testing.subject import NullSubject, Subject, default_subject
from safepoint.testing.trial import Scenario, Target, Trial, name_of, quiet_collector

WITHIN = 60.0
_RECORDINGS = 3


def check_cancellable(
    scenario: Callable[[], Coroutine[Any, Any, object]],  # Any: what it yields is asyncio's business
    *,
    oracles: Sequence[Callable[[], object]] = (),
    kinds: Sequence[Injection] | None = None,
    moments: Sequence[Moment] = tuple(Moment),
    only: str | None = None,
    within: float = WITHIN,
    subject: Subject | None = None,
) -> Report:
    """Cancel `scenario` at each of its await points, in each moment, and report what went wrong.

    `scenario` is an async function without arguments that makes everything it needs, each time. It must not assert
    what only an uncancelled run can give. `oracles` are plain functions that raise AssertionError; they are called
    after each run. `kinds` are the injections, by default `OWN` and `CALLER`; a fault is injected only where a task
    waits for the part that is to fail. `only` is the id of one injection, from a failure's last line. `within` is how
    many virtual seconds an injected run may take longer than the recorded one.
    """
    _check_arguments(scenario, within)
    subject = default_subject() if subject is None else subject
    if kinds is None:
        # With plain asyncio under test there is no cancel of Safepoint's own to inject.
        kinds = (CALLER,) if isinstance(subject, NullSubject) else (OWN, CALLER)
    moments = [Moment(moment) for moment in moments]
    if not kinds or not moments:
        raise ValueError("kinds and moments must not be empty: there would be nothing to inject")
    check = _Check(Scenario(scenario, subject, tuple(oracles)), custom_kinds=bool(set(kinds) - {OWN, CALLER}))
    with quiet_collector():
        recorded = check.record()
        if recorded is None:
            return check.report
        targets = [
            Target(point, moment, kind)
            for point in recorded
            for moment in point.moments
            for kind in kinds
            if moment in moments and kind.fits(point)
        ]
        check.report.placeless = sorted({kind.name for kind in kinds} - {target.kind.name for target in targets})
        for target in _choose(targets, only):
            check.inject(target, within)
    return check.report


def _check_arguments(scenario: object, within: float) -> None:
    if asyncio._get_running_loop() is not None:
        raise UsageError(
            "check_cancellable() runs the scenario on loops of its own and one is already running here: "
            "call it from a plain function (`def test_…():`, without async)"
        )
    if not callable(scenario):
        raise UsageError(f"check_cancellable() takes an async function without arguments, not {scenario!r}")
    if within <= 0:
        raise ValueError(f"within={within}: pass a number of virtual seconds > 0")


def _choose(targets: list[Target], only: str | None) -> Iterator[Target]:
    if only is None:
        yield from targets
        return
    chosen = [target for target in targets if target.id == only]
    if not chosen:
        known = "\n  ".join(target.id for target in targets)
        raise ValueError(f"only={only!r} is none of this scenario's injections:\n  {known}")
    yield from chosen


class _Check:
    """One call of `check_cancellable`: the scenario, and the report as it grows."""

    def __init__(self, scenario: Scenario, *, custom_kinds: bool) -> None:
        self.report = Report(scenario.name)
        self._scenario = scenario
        self._custom_kinds = custom_kinds
        self._seconds = 0.0

    def record(self) -> list[Point] | None:
        """The scenario's points; None if it fails even without an injection."""
        # The first run may load modules and fill caches; it is compared with, but not judged.
        previous, trial = self._run_uncancelled(), self._run_uncancelled()
        for _ in range(_RECORDINGS - 2):
            if trial.watch.points == previous.watch.points:
                break
            previous, trial = trial, self._run_uncancelled()
        self._scenario.subject.remember()
        self.report.points = trial.watch.points
        self._seconds = trial.seconds
        if trial.problems:
            self._fail(None, "without any injection", trial.problems)
            return None
        if trial.watch.points != previous.watch.points:
            self._fail(None, "without any injection", [_difference(previous.watch.points, trial.watch.points)])
        return trial.watch.points

    def inject(self, target: Target, within: float) -> None:
        trial = self._run(target, limit=self._seconds + within)
        if not trial.watch.fired:
            self.report.missed.append(target.id)
        elif not trial.took:
            self.report.idle += 1
        else:
            self.report.injections += 1
            self.report.tried[target.kind.name, target.moment] += 1
            place = target.point.place
            self.report.cases.add(Case(self.report.entry, place.file, place.line, target.moment, target.kind.name))
        afterwards = self._scenario.run(watched=False)  # its points are known; it only has to work again
        problems = trial.problems + [f"afterwards, uncancelled: {problem}" for problem in afterwards.problems]
        if problems:
            self._fail(target, target.kind.name, problems, trial)

    def _run(self, target: Target | None = None, *, limit: float = float("inf")) -> Trial:
        trial = self._scenario.run(target, limit=limit)
        self.report.sites.update((place.file, place.line) for place in trial.watch.sites)
        return trial

    def _run_uncancelled(self) -> Trial:
        trial = self._run()
        if trial.ending is not None:
            raise UsageError(
                f"{self.report.entry}() raised {trial.ending!r} without any injection; it has to pass before it can "
                "be cancelled everywhere"
            ) from trial.ending
        return trial

    def _fail(self, target: Target | None, kind: str, problems: list[str], trial: Trial | None = None) -> None:
        self.report.failures.append(
            Failure(
                self.report.entry,
                kind,
                tuple(problems),
                self._again(target),
                target.point if target else None,
                target.moment if target else None,
                tuple(trial.watch.landings) if trial else (),
            )
        )

    def _again(self, target: Target | None) -> str:
        arguments = [self.report.entry]
        if self._scenario.oracles:
            arguments.append(f"oracles=[{', '.join(map(name_of, self._scenario.oracles))}]")
        if target and self._custom_kinds:
            arguments.append(f"kinds=[{target.kind.name}]")
        if target:
            arguments.append(f'only="{target.id}"' if '"' not in target.id else f"only={target.id!r}")
        return f"check_cancellable({', '.join(arguments)})"


def _difference(first: list[Point], second: list[Point]) -> str:
    for number, (one, other) in enumerate(zip_longest(first, second)):
        if one != other:
            was, then = (point.id if point else "the end" for point in (one, other))
            return (
                f"two recordings differ at point {number}: {was}, then {then}. Put what is random (numbers, ids, "
                "threads that race, module state that changes) behind something the scenario makes anew"
            )
    raise AssertionError("the recordings are equal")
