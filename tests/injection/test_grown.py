"""A hundred thousand injections into scenarios grown from seeds; `make test` does a handful."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time

import psutil
import pytest

from safepoint.errors import UsageError
from safepoint.testing import Failure
from safepoint.testing.report import Case
from tests.injection.grown import BLUNT, SHARP, inject, plan

INJECTIONS = 100_000
FIRST_SEED = int(os.environ.get("SAFEPOINT_SEED", "0"))
PROCESSES = 2


@dataclass
class Tally:
    """What came of some seeds."""

    seeds: int = 0
    injected: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    failed: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    cases: set[Case] = field(default_factory=set[Case])
    idle: int = 0
    missed: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list[str])

    @property
    def injections(self) -> int:
        return self.injected.total()

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.injected += other.injected
        self.failed += other.failed
        self.cases |= other.cases
        self.idle += other.idle
        self.missed += other.missed
        self.seconds += other.seconds
        self.failures += other.failures

    def table(self) -> str:
        kinds = [kind.name for kind in (*SHARP, *BLUNT)]
        moments = ("blocked", "woken", "unstarted")
        lines = [f"{'kind':48}" + "".join(f"{moment:>11}" for moment in moments) + f"{'failures':>10}"]
        for kind in kinds:
            failed = sum(self.failed[kind, moment] for moment in moments)
            counts = "".join(f"{self.injected[kind, moment]:11}" for moment in moments)
            lines.append(f"{kind:48}{counts}{failed:10}")
        lines.append(
            f"{self.injections} injections ({len(self.cases)} distinct by entry, line, moment and kind) into "
            f"{self.seeds} scenarios, {len(self.failures)} failures, {self.idle} idle, {self.missed} missed, "
            f"{self.seconds:.0f} s of CPU"
        )
        return "\n".join([*lines, *self.failures[:20]])


def tally(seed: int) -> Tally:
    """Inject everything into the scenario of this seed. Runs in a process of its own."""
    begun = process_time()
    found = Tally(seeds=1)
    try:
        reports = inject(seed)
    except UsageError as error:  # it does not even work without an injection
        return Tally(seeds=1, failures=[f"{error} — again: python -m tests.injection.grown {seed}"])
    for report in reports:
        found.injected.update(report.tried)
        found.failed.update((failure.kind, str(failure.moment)) for failure in report.failures)
        found.cases |= report.cases
        found.idle += report.idle
        found.missed += len(report.missed)
        found.failures += [described(seed, failure) for failure in report.failures]
    found.seconds = process_time() - begun
    return found


def described(seed: int, failure: Failure) -> str:
    """One line, which ends with what to type to see it again."""
    what = failure.problems[0].splitlines()[0]
    id = f" {failure.id!r}" if failure.id is not None else ""
    return f"{what} — again: python -m tests.injection.grown {seed}{id}"


def leave_with_the_parent() -> None:
    """Whoever started this process may be killed, and can tell nobody then: this process ends too."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="leave with the parent", daemon=True).start()


def grow(injections: int, processes: int) -> Tally:
    """Seed after seed, until that many injections were made."""
    total = Tally()
    seeds: Iterator[int] = itertools.count(FIRST_SEED)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=leave_with_the_parent) as pool:
        pending: set[Future[Tally]] = {pool.submit(tally, next(seeds)) for _ in range(2 * processes)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                found = future.result()
                if (total.injections + found.injections) // 5_000 > total.injections // 5_000 or found.failures:
                    print(total.injections + found.injections, "injections", *found.failures, sep="\n", flush=True)
                total.add(found)
                if total.injections < injections:
                    pending.add(pool.submit(tally, next(seeds)))
    return total


@pytest.mark.proof
@pytest.mark.timeout(7200)
def test_a_hundred_thousand_injections_into_random_scenarios_break_nothing(
    record_property: Callable[[str, object], None],
) -> None:
    total = grow(INJECTIONS, PROCESSES)
    record_property("table", total.table())
    assert total.failures == []
    assert total.injections >= INJECTIONS
    assert total.missed == 0, "a point that was recorded was not reached again"


@pytest.mark.parametrize("seed", [2, 4, 10, 525])
def test_a_scenario_grown_from_a_seed_survives_whatever_is_injected(seed: int) -> None:
    found = tally(seed)
    assert found.failures == []
    assert found.missed == 0
    assert found.injections > 20


def test_a_seed_grows_the_same_scenario_each_time() -> None:
    assert [plan(seed) for seed in range(50)] == [plan(seed) for seed in range(50)]
    assert len({repr(plan(seed)) for seed in range(50)}) == 50


ANCESTOR = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from tests.injection.test_grown import leave_with_the_parent

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, context, initializer=leave_with_the_parent)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 600)
"""


def test_a_worker_goes_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "ancestor.py"
    script.write_text(ANCESTOR)
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}
    ) as ancestor:
        assert ancestor.stdout is not None
        worker = psutil.Process(int(ancestor.stdout.readline()))
        ancestor.kill()
        worker.wait(30)
