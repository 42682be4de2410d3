"""What freezes a loop is named: by the logger, and by the run itself. What does not freeze it is not.

The tool freezes the loop until it was named. How soon that is follows from two constants, which `tests/core/` checks;
it is not timed here, where other processes want the processor too.
"""

from __future__ import annotations

from tests.process.child import Child


def test_a_tool_that_never_yields_is_named_in_the_log_and_by_the_run() -> None:
    with Child("busy.py", "logging") as child:
        child.expect("READY")
        told = {line.word: line.value for line in (child.expect_any(), child.expect_any())}
        assert told.keys() == {"LOGGED", "WHY"}
        assert told["LOGGED"]["name"] == "safepoint"
        assert "never_yields" in told["LOGGED"]["text"]
        assert "event loop" in told["WHY"]["names"]
        assert child.expect("BACK").value["stop_reason"] == "cancelled"
        end = child.exit()
        assert (end.code, end.stderr) == (0, "")


def test_the_logger_is_silent_unless_the_program_wants_it() -> None:
    with Child("busy.py", "silence") as child:
        child.expect("READY")
        child.expect("WHY")
        child.expect("BACK")
        end = child.exit()
        assert (end.code, end.stderr) == (0, "")


def test_a_loop_that_nobody_runs_is_not_called_frozen() -> None:
    with Child("idle_loop.py") as child:
        assert child.expect("BACK").value["stop_reason"] == "cancelled"
        child.expect("BYE")
        end = child.exit()
        assert (end.code, end.stderr) == (0, "")
