"""Whatever is done to a loop, in whatever order and from wherever, no item is lost and every receipt tells the truth.

`make test` plays a modest number of examples, always the same ones; `make proof` plays ten thousand from a seed that it
prints. Both end with the table of arrows; `pytest -s` shows it.
"""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from safepoint import Ask, SafePoint, TurnLoop
from safepoint._core.clock import Clock
from safepoint.errors import InternalError
from safepoint.turns.preempt import Preempt, PreemptController, PreemptState
from safepoint.turns.receipts import PushReceipt
from safepoint.turns.stop import StopController
from safepoint.turns.turn import Turn
from tests.turns.machine import TurnMachine, drawn_arrows, table
from tests.turns.parts import talker
from tests.turns.scenarios import SCENARIOS

STEPS = 50
ORDINARY = settings(
    max_examples=80,
    stateful_step_count=STEPS,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
PROOF = settings(ORDINARY, max_examples=10_000, derandomize=False)


@pytest.mark.timeout(300)
def test_no_item_is_lost_and_every_receipt_is_true_in_any_order() -> None:
    run_state_machine_as_test(TurnMachine, settings=ORDINARY)


def test_every_arrow_of_both_machines_is_taken() -> None:
    for scenario in SCENARIOS:
        scenario().teardown()
    print(f"\n{table(TurnMachine.counts)}")
    assert never_taken() == []


def test_an_arrow_that_is_not_drawn_is_refused() -> None:
    stops = StopController()
    stops.end(cut=False, timed_out=False, failed=False)
    with pytest.raises(InternalError, match="ended → committed is not a move"):
        stops.commit()
    preempt = machine_with(PreemptState.RESOLVED)
    with pytest.raises(InternalError, match="resolved → resolved is not a move"):
        PreemptController[str](lambda: None).take(preempt, None, Clock())


def machine_with(state: PreemptState) -> Preempt[str]:
    receipt, turn = PushReceipt(None, stored=False), Turn(TurnLoop(talker()), 1, lambda: None, 0.0)
    return Preempt(Ask(SafePoint.ANY), None, turn, receipt, state)


def never_taken() -> list[tuple[str, str, str]]:
    return [arrow for arrow in drawn_arrows() if not TurnMachine.counts[arrow]]


@pytest.mark.proof
@pytest.mark.timeout(5400)
def test_no_item_is_lost_in_ten_thousand_examples() -> None:
    number, begun = random.SystemRandom().randrange(2**32), time.monotonic()
    print(f"\n{PROOF.max_examples:,} examples of {STEPS} steps, seed {number}", flush=True)
    TurnMachine.counts.clear()
    run_state_machine_as_test(seed(number)(TurnMachine), settings=PROOF)
    print(f"{time.monotonic() - begun:.0f} s\n{table(TurnMachine.counts)}")
    assert never_taken() == []
