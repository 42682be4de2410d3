"""Orphans do not hold their process: the program ends at once, with exit code 0 and nothing on stderr."""

from __future__ import annotations

import pytest

from tests.process.child import Child

SOON = 1.0
ORPHANS = [
    "blocked_thread",
    "spinning_thread",
    "swallows_cancellation",
    "swallows_everything",
    "swallows_in_a_generator",
]


@pytest.mark.parametrize("how", ["asyncio.run", "run_sync"])
def test_a_program_that_ends_with_orphans_of_every_kind_exits_at_once_and_cleanly(how: str) -> None:
    with Child("orphans.py", how) as child:
        assert sorted(child.expect("BACK").value["orphans"]) == ORPHANS
        assert child.expect("BACK").value["orphans"] == ["stubborn_model"]
        bye = child.expect("BYE")
        end = child.exit(within=SOON)
        assert end.at - bye.at < SOON
        assert (end.code, end.stderr) == (0, "")
