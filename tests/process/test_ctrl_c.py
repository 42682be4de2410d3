"""Ctrl-C in run_sync: a real signal, a real process, and the wall clock."""

from __future__ import annotations

import pytest

from tests.process.child import Child

SOON = 1.0


@pytest.mark.parametrize(
    ("what", "states", "orphans"),
    [("task", ["cut"], []), ("thread", ["cut"], ["thread"]), ("model", [], [])],
)
def test_ctrl_c_gives_the_program_back_within_a_second(what: str, states: list[str], orphans: list[str]) -> None:
    with Child("ctrl_c.py", what) as child:
        child.expect("READY")
        pressed = child.signal()
        child.expect("ASKED", within=SOON)
        back = child.expect("BACK", within=SOON)
        assert back.at - pressed < SOON
        assert (back.value["stop_reason"], back.value["source"]) == ("cancelled", "caller")
        assert back.value["restored"], "the handler is still ours"
        assert (back.value["states"], back.value["orphans"]) == (states, orphans)
        assert child.expect("AGAIN").value["text"] == "fine"
        end = child.exit(within=SOON)
        assert (end.code, end.stderr) == (0, "")


def test_text_that_was_streamed_before_ctrl_c_is_kept() -> None:
    with Child("ctrl_c.py", "model") as child:
        child.expect("READY")
        child.signal()
        child.expect("ASKED")
        assert child.expect("BACK", within=SOON).value["text"] == "Once"


def test_a_second_ctrl_c_forces_what_wants_to_finish() -> None:
    with Child("ctrl_c.py", "finish") as child:
        child.expect("READY")
        child.signal()
        child.expect("ASKED", within=SOON)
        child.stays_silent(0.5)
        pressed = child.signal()
        child.expect("ASKED", within=SOON)
        back = child.expect("BACK", within=SOON)
        assert back.at - pressed < SOON
        assert (back.value["level"], back.value["states"]) == ("FORCE", ["cut"])
        child.expect("AGAIN")
        end = child.exit(within=SOON)
        assert (end.code, end.stderr) == (0, "")


def test_a_third_ctrl_c_gets_through_to_a_tool_that_never_yields() -> None:
    with Child("ctrl_c.py", "busy") as child:
        child.expect("READY")
        child.signal()
        child.stays_silent(0.2)
        child.signal()
        child.stays_silent(0.2)
        pressed = child.signal()
        for _ in range(3):  # all are told once the tool lets go of the loop
            child.expect("ASKED", within=SOON)
        back = child.expect("BACK", within=SOON)
        assert back.at - pressed < SOON
        assert (back.value["stop_reason"], back.value["states"]) == ("cancelled", ["cut"])
        child.expect("AGAIN")
        end = child.exit(within=SOON)
        assert (end.code, end.stderr) == (0, "")


def test_a_tool_that_waits_for_an_executor_does_not_hold_run_sync() -> None:
    with Child("ctrl_c.py", "in_executor") as child:
        child.expect("READY")
        pressed = child.signal()
        child.expect("ASKED", within=SOON)
        back = child.expect("BACK", within=SOON)
        assert back.at - pressed < SOON
        assert back.value["states"] == ["cut"]


def test_a_task_that_a_tool_left_behind_does_not_hold_run_sync() -> None:
    with Child("ctrl_c.py", "leaves_a_stubborn_task") as child:
        child.expect("READY")
        child.signal()
        child.expect("ASKED", within=SOON)
        back = child.expect("BACK", within=2 * SOON)
        assert back.value["states"] == ["cut"]
        child.expect("AGAIN")
        end = child.exit(within=SOON)
        assert (end.code, end.stderr) == (0, "")


@pytest.mark.parametrize(("what", "states"), [("task", ["cut"]), ("thread", ["cut"]), ("model", [])])
def test_ctrl_c_while_a_stream_waits_stops_the_run_and_tells_its_last_events(what: str, states: list[str]) -> None:
    with Child("ctrl_c.py", what, "stream_sync") as child:
        child.expect("READY")
        pressed = child.signal()
        child.expect("ASKED", within=SOON)
        child.expect("LAST", within=SOON)
        back = child.expect("BACK", within=SOON)
        assert back.at - pressed < SOON
        assert (back.value["stop_reason"], back.value["source"]) == ("cancelled", "caller")
        assert back.value["restored"], "the handler is still ours"
        assert back.value["states"] == states
        assert child.expect("AGAIN").value["text"] == "fine"
        end = child.exit(within=SOON)
        assert (end.code, end.stderr) == (0, "")


def test_a_second_ctrl_c_forces_a_stream_too() -> None:
    with Child("ctrl_c.py", "finish", "stream_sync") as child:
        child.expect("READY")
        child.signal()
        child.expect("ASKED", within=SOON)
        child.stays_silent(0.5)
        child.signal()
        child.expect("ASKED", within=SOON)
        child.expect("LAST", within=SOON)
        assert child.expect("BACK", within=SOON).value["level"] == "FORCE"


def test_a_third_ctrl_c_gets_out_of_a_stream_whose_tool_never_yields() -> None:
    with Child("ctrl_c.py", "busy", "stream_sync") as child:
        child.expect("READY")
        child.signal()
        child.stays_silent(0.2)
        child.signal()
        child.stays_silent(0.2)
        child.signal()
        child.expect("INTERRUPTED", within=SOON)
        assert child.exit(within=SOON).code != 0
