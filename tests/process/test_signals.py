"""Who else may ask: a signal handler, any number of threads, a program with its own plans for Ctrl-C."""

from __future__ import annotations

import signal

from tests.process.child import Child

SOON = 1.0


def ends_cleanly(child: Child) -> None:
    end = child.exit(within=2 * SOON)
    assert (end.code, end.stderr) == (0, "")


def test_a_handler_of_the_programs_own_is_left_alone() -> None:
    with Child("signals.py", "own_handler") as child:
        child.expect("READY")
        child.signal()
        child.expect("HANDLED", within=SOON)
        back = child.expect("BACK", within=SOON)
        assert (back.value["stop_reason"], back.value["text"]) == ("end_turn", "fine")
        assert back.value["kept"]
        ends_cleanly(child)


def test_an_ignored_sigint_stays_ignored_in_run_sync_and_sigterm_stops_the_run() -> None:
    with Child("signals.py", "in_background", in_background=True) as child:
        child.expect("READY")
        child.signal()
        child.stays_silent(0.3)
        child.signal(signal.SIGTERM)
        back = child.expect("BACK", within=SOON).value
        assert (back["stop_reason"], back["states"], back["ignored"]) == ("cancelled", ["cut"], True)
        ends_cleanly(child)


def test_a_handler_that_raises_ends_run_sync_and_the_run_is_closed_first() -> None:
    with Child("signals.py", "raising_handler") as child:
        child.expect("READY")
        child.stays_silent(0.3)  # so that the signal finds the loop waiting, and not a line of the tool
        pressed = child.signal()
        stopped = child.expect("STOPPED", within=SOON)
        assert (stopped.value["source"], stopped.value["states"]) == ("caller", ["cut"])
        back = child.expect("BACK", within=SOON)
        assert back.value == {"error": "from the handler"}
        assert back.at - pressed < SOON
        ends_cleanly(child)


def test_a_signal_handler_may_ask_before_while_and_after() -> None:
    with Child("signals.py", "cancel_in_handler") as child:
        assert child.expect("BEFORE").value["stop_reason"] == "cancelled"
        child.expect("READY")
        child.signal(signal.SIGUSR1)
        assert child.expect("WHILE", within=SOON).value["states"] == ["cut"]
        after = child.expect("AFTER")
        assert (after.value["stop_reason"], after.value["text"]) == ("end_turn", "fine")
        assert after.value["outcomes"] == ["stopped", "stopped", "finished_first"]
        ends_cleanly(child)


def test_eight_threads_may_ask_at_once_before_while_and_after() -> None:
    with Child("signals.py", "many_threads") as child:
        before = child.expect("BEFORE").value
        assert (before["stop_reason"], before["outcomes"]) == ("cancelled", ["stopped"] * 8)
        child.expect("READY")
        during = child.expect("WHILE", within=2 * SOON).value
        assert (during["stop_reason"], during["states"]) == ("cancelled", ["cut"])
        assert set(during["outcomes"]) <= {"stopped", "finished_first"}
        assert "stopped" in during["outcomes"]
        after = child.expect("AFTER").value
        assert (after["stop_reason"], after["outcomes"]) == ("end_turn", ["finished_first"] * 8)
        ends_cleanly(child)


def test_run_sync_in_another_thread_leaves_the_signals_alone_and_can_be_stopped() -> None:
    with Child("signals.py", "other_thread") as child:
        child.expect("READY")
        back = child.expect("BACK", within=2 * SOON).value
        assert (back["stop_reason"], back["outcome"], back["states"]) == ("cancelled", "stopped", ["cut"])
        assert back["default"]
        assert back["seconds"] < SOON
        ends_cleanly(child)


def test_ctrl_c_under_asyncio_run_closes_the_run_first() -> None:
    with Child("signals.py", "plain_asyncio") as child:
        child.expect("READY")
        child.signal()
        stopped = child.expect("STOPPED", within=SOON)
        assert (stopped.value["source"], stopped.value["states"]) == ("caller", ["cut"])
        child.expect("BACK", within=SOON)
        ends_cleanly(child)


def test_run_sync_inside_a_running_loop_says_what_to_write_instead() -> None:
    with Child("signals.py", "inside_a_loop") as child:
        assert "await agent.run(" in child.expect("BACK").value["error"]
        ends_cleanly(child)
