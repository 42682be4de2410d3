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

from tests.turns.machine import TurnMachine, drawn_arrows, table

STEPS = 50
ORDINARY = settings(
    max_examples=150,
    stateful_step_count=STEPS,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
PROOF = settings(ORDINARY, max_examples=10_000, derandomize=False)


def test_no_item_is_lost_and_every_receipt_is_true_in_any_order() -> None:
    run_state_machine_as_test(TurnMachine, settings=ORDINARY)


@pytest.mark.proof
@pytest.mark.timeout(5400)
def test_no_item_is_lost_in_ten_thousand_examples() -> None:
    number, begun = random.SystemRandom().randrange(2**32), time.monotonic()
    print(f"\n{PROOF.max_examples:,} examples of {STEPS} steps, seed {number}", flush=True)
    TurnMachine.counts.clear()
    run_state_machine_as_test(seed(number)(TurnMachine), settings=PROOF)
    print(f"{time.monotonic() - begun:.0f} s\n{table(TurnMachine.counts)}")
    assert [arrow for arrow in drawn_arrows() if not TurnMachine.counts[arrow]] == []
