"""Short plays that together take every drawn arrow, so that none depends on what an example happens to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from safepoint import Source
from tests.machines.gates import End, Manner, Wanted
from tests.machines.machine import AT_REST, Opening, StopMachine
from tests.machines.one_run import OneRun
from tests.machines.reference import Push, Wish
from tests.machines.tree import Tree
from tests.machines.world import Plan

AT_P: Final = Wish(Push.SAFE, frozenset({"point:p"}))


def _one(opening: Opening = (), *, hooks: bool = False) -> OneRun:
    machine = OneRun()
    machine.begin(Plan(hooks=hooks), opening)
    return machine


def _with(*names: str, hooks: bool = False) -> OneRun:
    return _one((tuple(Wanted(name) for name in names),), hooks=hooks)


def an_answer() -> StopMachine:
    machine = _one()
    machine.model_says(0, "Well, ", AT_REST)
    machine.model_answers(0, True, AT_REST)
    return machine


def a_tool_that_finishes_and_one_that_fails() -> StopMachine:
    machine = _with("look", "write")
    machine.tool_finishes(0, AT_REST)
    machine.tool_fails(0, "value", AT_REST)
    return machine


def a_tool_that_nobody_knows() -> StopMachine:
    machine = _one()
    machine.models()[0].give(End((Wanted("nobody"),)))  # an opening only asks for what there is
    machine.go(AT_REST)
    return machine


def a_stop_at_a_named_point() -> StopMachine:
    machine = _with("look")
    machine.ask_at_safe_point(AT_P, None, False, Source.USER, 0, AT_REST)
    machine.tool_reaches_point(0, "p", AT_REST)
    return machine


def a_tool_that_asks_a_person() -> StopMachine:
    machine = _with("look")
    machine.tool_asks_somebody(0, AT_REST)
    return machine


def a_check_that_asks_a_person() -> StopMachine:
    return _with("sign", hooks=True)


def a_cut_that_is_undone() -> StopMachine:
    machine = _with("pay")
    machine.ask_now(Source.USER, 0, AT_REST)
    machine.undo_or_hook_ends(0, False, AT_REST)
    return machine


def an_undo_that_answers_to_its_last_cancellation() -> StopMachine:
    """It swallows the end of its time, and returns at the last cancellation, before it would be abandoned."""
    machine = _with("pay")
    machine.ask_now(Source.USER, 0, AT_REST)
    machine.change_manner(0, Manner.SWALLOW)
    machine.let_time_pass(2.0)
    machine.change_manner(0, Manner.ANSWER)
    machine.let_time_pass(1.0)
    assert not machine.world.gates.undos[0].abandoned_when_left
    return machine


def an_undo_that_force_abandons() -> StopMachine:
    machine = _with("pay")
    machine.ask_now(Source.USER, 0, AT_REST)
    machine.change_manner(0, Manner.SWALLOW)
    machine.world.ask(machine.world.nodes()[0], Wish(Push.FORCE), None, False, Source.USER)
    machine.go(AT_REST)
    assert not machine.world.live
    return machine


def a_tool_that_does_not_stop() -> StopMachine:
    machine = _with("look")
    machine.change_manner(0, Manner.SWALLOW)
    machine.ask_now(Source.USER, 0, AT_REST)
    machine.let_time_pass(1.0)
    return machine


def now_before_the_first_step_of_a_model_call() -> StopMachine:
    """The second round is the run's first step, which makes the work; NOW is recorded before it."""
    machine = _one(None)
    machine.start(True, 1)
    machine.world.ask(machine.world.nodes()[0], Wish(Push.NOW), None, False, Source.USER)
    machine.go(AT_REST)
    assert not machine.world.gates.models
    return machine


def a_safe_point_that_is_reached_in_the_round_in_which_the_caller_leaves() -> StopMachine:
    """The calls end in the step that begins them: the ask for that place counts, and the caller's NOW comes later."""
    machine = _one(None)
    machine.start(False, AT_REST)
    for rounds in (AT_REST, 1):
        machine.models()[0].give(End((Wanted("look", "bad"),)))
        machine.go(rounds)
    machine.world.cancel_owner()
    wish = Wish(Push.SAFE, frozenset({"after_tools"}))
    machine.world.ask(machine.world.nodes()[0], wish, None, False, Source.USER)
    machine.go(AT_REST)
    return machine


def a_safe_point_that_is_asked_for_before_the_run_has_left_it() -> StopMachine:
    """The batch is over and the loop turns once before the next model call: until then the run stands there."""
    machine = _one()
    machine.models()[0].give(End((Wanted("look", "bad"),)))
    machine.go(2)
    machine.cancel_caller(0)
    wish = Wish(Push.SAFE, frozenset({"after_tools"}))
    machine.ask_at_safe_point(wish, None, False, Source.USER, 0, AT_REST)
    assert machine.world.held[-1].receipt.contributed
    return machine


def a_deadline_that_passes_while_a_call_is_stopping_already() -> StopMachine:
    """NOW was handed down before; from its deadline on, the milder ask pushes the call too."""
    machine = _with("pay")
    machine.cancel_caller(AT_REST)
    wish = Wish(Push.SAFE, frozenset({"after_tools"}))
    machine.ask_at_safe_point(wish, 0.5, False, Source.USER, 0, AT_REST)
    machine.let_time_pass(0.5)
    return machine


def now_between_two_chunks_that_came_at_once() -> StopMachine:
    """The last chunk before them is old, so the reader lets the loop turn after the first: NOW cuts the reply there."""
    machine = _one()
    machine.model_says(0, "Well, ", AT_REST)
    machine.let_time_pass(0.1)
    machine.models()[0].give(End((Wanted("look"),), counted=False))
    machine.ask_now(Source.USER, 0, AT_REST)
    assert not machine.world.live
    return machine


def a_tool_that_leaves_an_agent_behind() -> StopMachine:
    machine = Tree()
    machine.begin(Plan(tree=True), ((Wanted("kick_off"),),))
    machine.change_manner(0, Manner.SWALLOW)
    machine.tool_finishes(0, AT_REST)
    machine.let_time_pass(1.0)
    return machine


def now_found_in_the_log_by_a_run_that_is_stopping_already() -> StopMachine:
    """The run inside the tool stops for its own ask, then hears of NOW from above before its own caller says it."""
    machine = Tree()
    machine.begin(Plan(tree=True), ((Wanted("delegate"),),))
    before_effect = Wish(Push.SAFE, frozenset({"before_effect"}))
    machine.ask_at_safe_point(before_effect, None, False, Source.POLICY, 2, AT_REST)
    machine.models()[0].give(End((Wanted("nobody"), Wanted("look"))))
    machine.go(2)
    machine.cancel_caller(0)
    machine.ask_at_safe_point(AT_P, None, False, Source.USER, 0, AT_REST)
    assert not machine.world.live
    return machine


def a_stop_in_the_round_in_which_the_caller_is_cancelled() -> StopMachine:
    """The run stops for an ask before its caller's cancellation has become one: it is told as it was."""
    machine = OneRun()
    machine.begin(Plan(hooks=True), None)
    machine.start(False, AT_REST)
    machine.undo_or_hook_ends(0, False, 2)
    machine.cancel_caller(0)
    machine.ask_now(Source.POLICY, 0, AT_REST)
    assert not machine.world.live
    return machine


def a_second_now_that_is_taken_back_from_a_run_that_is_stopping() -> StopMachine:
    """The caller leaves while a milder ask wakes the run, which therefore hears of NOW in the round in which it came.

    A later NOW changes nothing for a run that was pushed that hard, so nothing was done for it.
    """
    machine = _with("save")
    machine.cancel_caller(0)
    wish = Wish(Push.SAFE, frozenset({"after_tools"}))
    machine.ask_at_safe_point(wish, None, False, Source.USER, 0, AT_REST)
    machine.ask_now(Source.USER, 0, AT_REST)
    machine.withdraw(0, AT_REST)
    assert machine.world.held[-1].asked.withdrawn
    return machine


SCENARIOS: Final[tuple[Callable[[], StopMachine], ...]] = (
    an_answer,
    a_tool_that_finishes_and_one_that_fails,
    a_tool_that_nobody_knows,
    a_stop_at_a_named_point,
    a_tool_that_asks_a_person,
    a_check_that_asks_a_person,
    a_cut_that_is_undone,
    an_undo_that_answers_to_its_last_cancellation,
    an_undo_that_force_abandons,
    a_tool_that_does_not_stop,
    now_before_the_first_step_of_a_model_call,
    a_safe_point_that_is_reached_in_the_round_in_which_the_caller_leaves,
    a_safe_point_that_is_asked_for_before_the_run_has_left_it,
    a_deadline_that_passes_while_a_call_is_stopping_already,
    now_found_in_the_log_by_a_run_that_is_stopping_already,
    a_stop_in_the_round_in_which_the_caller_is_cancelled,
    a_second_now_that_is_taken_back_from_a_run_that_is_stopping,
    now_between_two_chunks_that_came_at_once,
    a_tool_that_leaves_an_agent_behind,
)
