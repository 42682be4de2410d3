"""The tour in a real terminal: by itself, and with a person who presses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.terminal.terminal import CTRL_C, CTRL_D, ENTER, Terminal

pytestmark = [pytest.mark.terminal, pytest.mark.timeout(180)]


def test_auto_plays_all_six_stops_and_ends_with_two_commands(tmp_path: Path) -> None:
    with Terminal(["tour", "--auto"], cwd=tmp_path) as terminal:
        assert terminal.exit_code() == 0
        for text in (
            "text kept",
            "↶ book_room      undone",
            "! parse_logs     in doubt, still running",
            "Two of three answered.",
            "it says: Both shelves hold 42.",
            "Write the weekly report.  gave way",
            "URGENT: the server is down!  answered",
            "safepoint chat",
            "safepoint serve",
        ):
            assert text in terminal.all_text, terminal.all_text


def test_a_person_presses_ctrl_c_and_goes_on_with_enter(tmp_path: Path) -> None:
    with Terminal(["tour"], cwd=tmp_path) as terminal:
        terminal.wait_for("▶ Press Ctrl-C now.")
        terminal.send(CTRL_C)
        terminal.wait_for("■ Stopped by you in", "Enter next")
        terminal.send(ENTER)
        terminal.wait_for("2 of 6   Stop inside an effect", "book_room")
        terminal.send(CTRL_C)
        terminal.wait_for("Stopping when these have ended.")


def test_ctrl_d_leaves_the_tour_between_two_stops(tmp_path: Path) -> None:
    with Terminal(["tour", "--only", "1"], cwd=tmp_path) as terminal:
        terminal.wait_for("▶ Press Ctrl-C now.")
        terminal.send(CTRL_C)
        assert terminal.exit_code() == 0
    with Terminal(["tour"], cwd=tmp_path) as terminal:
        terminal.wait_for("▶ Press Ctrl-C now.")
        terminal.send(CTRL_C)
        terminal.wait_for("Enter next")
        terminal.send(CTRL_D)
        assert terminal.exit_code() == 0
