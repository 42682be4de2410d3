"""A real process with a loop is stopped, or killed, in the middle of a turn, and the next one goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.process.child import Child

pytestmark = pytest.mark.timeout(120)


def effects(folder: Path) -> list[str]:
    return (folder / "effects").read_text().split()


def test_sigterm_saves_the_turn_and_the_next_process_continues_it(tmp_path: Path) -> None:
    with Child("turn_loop.py", str(tmp_path), "slow") as child:
        child.expect("FOUND")
        child.expect("INSIDE")
        child.signal(signal.SIGTERM)
        said = child.expect("EXIT").value
        assert (said["reason"], said["cause"], said["saved"]) == ("cancelled", "SIGTERM", "saved")
        assert (said["interrupted"], said["unhandled"]) == (["first"], ["second", "third"])
        assert child.exit().code == 0, child.stderr
    assert effects(tmp_path) == ["0", "1", "2"]
    with Child("turn_loop.py", str(tmp_path), "quick") as child:
        assert child.expect("FOUND").value["checkpoint"] is True
        said = child.expect("EXIT").value
        assert (said["reason"], said["interrupted"], said["unhandled"]) == ("clean", [], [])
        assert said["said"] == ["first", "second", "third"]
        assert child.exit().code == 0, child.stderr
    assert effects(tmp_path) == ["0", "1", "2", "3"]  # the turn went on behind its third call


def test_after_sigkill_the_accepted_items_are_there_and_the_history_is_sealed(tmp_path: Path) -> None:
    with Child("turn_loop.py", str(tmp_path), "slow") as child:
        child.expect("FOUND")
        child.expect("INSIDE")
        child.signal(signal.SIGKILL)
        assert child.exit().code == -signal.SIGKILL
    with Child("turn_loop.py", str(tmp_path), "quick") as child:
        found = child.expect("FOUND").value  # the conversation passed check_history before this was said
        assert found["checkpoint"] is True
        assert found["messages"] > 0
        said = child.expect("EXIT").value
        assert (said["reason"], said["interrupted"], said["unhandled"]) == ("clean", [], [])
        assert said["said"] == ["first", "second", "third"]  # its turn went on where the session had it
        assert child.exit().code == 0, child.stderr


def test_a_program_that_simply_ends_loses_no_saved_item(tmp_path: Path) -> None:
    with Child("turn_loop_ends.py", str(tmp_path), "60") as child:
        assert child.expect("LEFT").value["items"] == [["item"]] * 60
        assert child.exit().code == 0, child.stderr
