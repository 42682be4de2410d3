"""Scenarios grown from seeds, cancelled everywhere, and troubled in other ways too."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from safepoint.testing import check_cancellable
from safepoint.testing.kinds import CALLER, OWN
from tests.injection.wild import Grower


def inject(seed: int) -> tuple[int, int, list[str]]:
    """How many cancels and other faults one seed has seen, and what went wrong."""
    grower = Grower(seed)
    scenario = grower.grow()
    cancels = check_cancellable(scenario, kinds=(OWN, CALLER))
    faults = check_cancellable(scenario, kinds=grower.faults.kinds)
    wrong = [f"seed {seed}: {failure}" for report in (cancels, faults) for failure in report.failures]
    return cancels.injections, faults.injections, wrong


@pytest.mark.parametrize("seed", range(6))
def test_a_scenario_that_grew_from_a_seed_survives_every_injection(seed: int) -> None:
    cancels, faults, wrong = inject(seed)
    assert wrong == [], "\n".join(wrong[:3])
    assert cancels > 0
    assert faults > 0


@pytest.mark.proof
def test_a_hundred_thousand_injections_over_random_scenarios() -> None:
    first = int(os.environ.get("SAFEPOINT_SEED", time.time_ns() % 10**9))
    wanted = int(os.environ.get("SAFEPOINT_INJECTIONS", "100000"))
    print(f"\nSAFEPOINT_SEED={first}")
    cancels = faults = seeds = 0
    wrong: list[str] = []
    began = time.monotonic()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        while cancels < wanted and not wrong:
            for found in pool.map(inject, range(first + seeds, first + seeds + 64)):
                cancels, faults, wrong = cancels + found[0], faults + found[1], wrong + found[2]
            seeds += 64
            rate = (cancels + faults) / (time.monotonic() - began)
            print(f"{seeds} scenarios, {cancels} cancels, {faults} other faults, {rate:.0f} a second", flush=True)
    assert wrong == [], "\n".join(wrong[:3])
    assert cancels >= wanted
