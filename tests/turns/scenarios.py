"""Short plays of the machine in which, together, every arrow of the two controllers is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from safepoint import SafePoint
from tests.turns.machine import AT_REST, TurnMachine

ANY: Final = {"preempt": SafePoint.ANY}


def begun(*, waits: bool = False) -> TurnMachine:
    """One item is being planned."""
    machine = TurnMachine()
    machine.begin("drop", "stop", waits, True, 0)
    return machine


def in_a_turn() -> TurnMachine:
    """Its turn stands at the model."""
    machine = begun()
    machine.plan(1, 0, AT_REST)
    machine.prepare(AT_REST)
    machine.watch(AT_REST)
    return machine


def in_a_tool() -> TurnMachine:
    machine = in_a_turn()
    machine.model("work", AT_REST)
    return machine


def preempted_while_active() -> TurnMachine:
    machine = in_a_tool()
    machine.push(ANY, "thread", False, AT_REST)
    machine.push({**ANY, "within": 8.0}, "loop", True, AT_REST)
    machine.tool("go", AT_REST)
    return machine


def preempted_after_a_delay() -> TurnMachine:
    machine = in_a_tool()
    machine.push({**ANY, "delay": 1.0}, "thread", False, AT_REST)
    machine.time_passes(1.0)
    machine.tool("go", AT_REST)
    return machine


def over_before_the_delay() -> TurnMachine:
    machine = in_a_turn()
    machine.push({**ANY, "delay": 8.0}, "outside", False, AT_REST)
    machine.model("say", AT_REST)
    return machine


def held_and_asked() -> TurnMachine:
    machine = begun()
    machine.push(ANY, "thread", False, AT_REST)
    machine.push({**ANY, "delay": 0.5}, "thread", False, AT_REST)
    machine.time_passes(0.5)
    machine.plan(1, 0, AT_REST)
    machine.prepare(AT_REST)
    machine.watch(AT_REST)
    machine.model("work", AT_REST)
    return machine


def held_for_a_plan_that_fails() -> TurnMachine:
    machine = begun()
    machine.push(ANY, "loop", False, AT_REST)
    machine.trouble("plan", 0.5, "outside", AT_REST)
    return machine


def seen_by_a_push_and_over_before_it_is_heard() -> TurnMachine:
    """The turn ends in some round after the model's last word; a push in each of them meets it."""
    for rounds in range(20):
        machine = in_a_turn()
        machine.model("say", rounds)
        machine.push(ANY, "outside", False, AT_REST)
        machine.teardown()
    return in_a_turn()


def stopped_ever_harder() -> TurnMachine:
    machine = in_a_tool()
    machine.stop((None, {}), "thread", 0)
    machine.stop((SafePoint.ANY, {"within": 3.0}), "thread", 0)
    machine.stop((SafePoint.NOW, {}), "thread", 0)
    machine.go(AT_REST)
    return machine


def stopped_when_idle() -> TurnMachine:
    machine = in_a_turn()
    machine.trouble("until idle", 1.0, "loop", AT_REST)
    machine.model("say", AT_REST)
    machine.time_passes(3.0)
    return machine


def ended_while_waiting_for_idleness() -> TurnMachine:
    machine = begun()
    machine.trouble("until idle", 8.0, "thread", AT_REST)
    machine.trouble("plan", 0.5, "outside", AT_REST)
    return machine


SCENARIOS: Final[list[Callable[[], TurnMachine]]] = [
    preempted_while_active,
    preempted_after_a_delay,
    over_before_the_delay,
    held_and_asked,
    held_for_a_plan_that_fails,
    seen_by_a_push_and_over_before_it_is_heard,
    stopped_ever_harder,
    stopped_when_idle,
    ended_while_waiting_for_idleness,
]
