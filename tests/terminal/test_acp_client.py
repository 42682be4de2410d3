"""The ACP client of the recording, in a real terminal: it prompts, cancels, and goes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.terminal.record import ROOT, acp_client
from tests.terminal.terminal import Terminal

pytestmark = [pytest.mark.terminal, pytest.mark.timeout(180)]


def test_a_stream_and_a_command_are_cancelled_and_the_session_goes_on(tmp_path: Path) -> None:
    with Terminal([], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, command=acp_client(), rows=40) as terminal:
        assert terminal.exit_code() == 0
        shown = terminal.all_text
    ends = re.findall(r"stopReason: (\w+)(?: after (\d+) ms)?", shown)
    assert [reason for reason, _ in ends] == ["cancelled", "cancelled", "end_turn"], shown
    assert all(int(after) < 10_000 for _, after in ends[:2]), shown  # editors kill an agent that does not answer
    assert "call is failed: This call was cut while running, outcome unknown." in " ".join(shown.split())
    assert "in many languages" not in shown
