"""A loop whose own task is cancelled wherever anything waits loses nothing.

That its caller and its runs can be cancelled anywhere is shown with all other entries, in `tests/injection`.
"""

from __future__ import annotations

import asyncio

import pytest

from safepoint.testing import check_cancellable
from safepoint.testing.injections import Injection, Shot, must_return
from tests.injection.entries import Scenario
from tests.injection.sampling import sample
from tests.injection.turned import (
    BOOKS,
    a_failed_turn_that_is_tried_again_and_then_kept,
    a_loop_on_a_store_of_bytes_with_a_codec_of_its_own,
    a_loop_that_is_forced_to_end_before_its_record_was_read,
    a_loop_that_others_watch_and_wait_for,
    a_loop_whose_record_is_deleted,
    a_loop_whose_record_is_saved_at_the_second_try,
    a_preempted_turn_of_a_session_that_is_taken_back,
    a_stopped_turn_whose_plan_makes_its_resumption,
    a_turn_of_a_session_that_waits_for_a_person,
    a_turn_that_goes_on_in_the_next_loop,
    a_turn_that_waits_for_a_person,
    items_that_join_are_withdrawn_and_waited_for,
    three_turns_a_preempt_and_a_graceful_stop,
)


def cancel_the_loop(shot: Shot) -> bool:
    tasks = [task for task in asyncio.all_tasks(shot.loop) if task.get_name() == "safepoint:turns" and not task.done()]
    return sum(task.cancel() for task in tasks) > 0


LOOP = Injection("loop", cancel_the_loop, must_return)
"""Somebody cancels the task of the loop itself. Its users see a loop that has ended."""


EACH_SCENARIO = pytest.mark.parametrize(
    "scenario",
    [
        three_turns_a_preempt_and_a_graceful_stop,
        a_turn_that_goes_on_in_the_next_loop,
        a_turn_that_waits_for_a_person,
        a_turn_of_a_session_that_waits_for_a_person,
        a_loop_that_others_watch_and_wait_for,
        a_loop_whose_record_is_deleted,
        a_loop_whose_record_is_saved_at_the_second_try,
        a_loop_that_is_forced_to_end_before_its_record_was_read,
        a_preempted_turn_of_a_session_that_is_taken_back,
        a_failed_turn_that_is_tried_again_and_then_kept,
        items_that_join_are_withdrawn_and_waited_for,
        a_loop_on_a_store_of_bytes_with_a_codec_of_its_own,
        a_stopped_turn_whose_plan_makes_its_resumption,
    ],
    ids=lambda scenario: scenario.__name__,
)


@EACH_SCENARIO
def test_a_loop_survives_the_cancellation_of_its_own_task_where_it_waits_today(scenario: Scenario) -> None:
    report = check_cancellable(scenario, oracles=[BOOKS.balance], kinds=sample([LOOP], scenario.__name__))
    assert report.failures == [], "\n".join(map(str, report.failures[:3]))


@pytest.mark.everywhere
@pytest.mark.timeout(300)
@EACH_SCENARIO
def test_a_loop_survives_the_cancellation_of_its_own_task_anywhere(
    scenario: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    report = check_cancellable(scenario, oracles=[BOOKS.balance], kinds=[LOOP])
    with capsys.disabled():
        print(f"\n{report.entry}: {len(report.points)} points, {report.injections} injections")
    assert report.failures == [], "\n".join(map(str, report.failures[:3]))
    assert report.injections > 15
