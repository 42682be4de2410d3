"""Whatever is done to a run, in whatever order, every promise of the contract is kept and every drawn arrow is taken.

`make test` plays a modest number of examples, always the same ones; `make proof` plays ten thousand of each machine
from a seed that it prints. Both end with the table of arrows.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.machines.arrows import BY_HOLDS, INSIDE_A_STEP, Arrow, drawn_arrows, never_taken, table, way
from tests.machines.machine import StopMachine
from tests.machines.one_run import OneRun
from tests.machines.scenarios import SCENARIOS
from tests.machines.tree import Tree

STEPS = 40
ORDINARY = settings(
    max_examples=80,
    stateful_step_count=STEPS,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
PROOF = settings(ORDINARY, max_examples=10_000, derandomize=False)

machines = pytest.mark.parametrize("machine", [OneRun, Tree], ids=["one run", "a tree of runs"])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_each_scenario_agrees_with_the_reference(scenario: Callable[[], StopMachine]) -> None:
    scenario().teardown()


@machines
def test_every_promise_is_kept_in_any_order(machine: type[StopMachine]) -> None:
    run_state_machine_as_test(machine, settings=ORDINARY)


def test_every_drawn_arrow_is_taken(record_property: Callable[[str, object], None]) -> None:
    for scenario in SCENARIOS:
        scenario().teardown()
    record_property("table", table(StopMachine.counts))
    assert set(never_taken(StopMachine.counts)) <= INSIDE_A_STEP | BY_HOLDS


def test_an_arrow_that_nobody_takes_is_named() -> None:
    arrows = drawn_arrows()
    counts = Counter[Arrow](arrows[1:])
    assert never_taken(counts) == arrows[:1]
    assert way("node", "ended", "live") is None


@pytest.mark.proof
@pytest.mark.timeout(5400)
@machines
def test_ten_thousand_examples_keep_every_promise_and_take_every_arrow(machine: type[StopMachine]) -> None:
    number, begun, before = random.SystemRandom().randrange(2**32), time.monotonic(), StopMachine.counts.copy()
    print(f"\n{machine.__name__}: {PROOF.max_examples:,} examples of {STEPS} steps, seed {number}", flush=True)
    run_state_machine_as_test(seed(number)(machine), settings=PROOF)
    taken = StopMachine.counts - before  # by the examples alone: no scenario helps here
    print(f"{machine.__name__}: {time.monotonic() - begun:.0f} s\n{table(taken)}", flush=True)
    assert set(never_taken(taken)) <= INSIDE_A_STEP | BY_HOLDS
