"""What a run leaves behind, held against what the example really did: H1 to H6 of the contract, and the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from safepoint import HistoryError, Message, Run, RunResult, check_history
from safepoint.history.parts import ToolResult
from safepoint.history.states import LedgerState
from tests.machines.course import Course, plain

TRUTH: Final = {
    LedgerState.NOT_STARTED: "was not started",
    LedgerState.CUT: "was cut while running, outcome unknown",
    LedgerState.COMPENSATED: "was cut and undone",
}
LIES: Final = ("rejected", "aborted")


class Leftovers:
    """Checks the result of each run the moment it exists."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self._complain = complain

    def check(self, run: Run[Any, Any], course: Course) -> None:  # Any: a run of any agent
        result = run.result
        try:
            check_history(result.messages)
        except HistoryError as error:
            self._complain(f"H4: {error}")
        self._check_conversation(result, course)
        self._check_notice(result, course)
        self._check_results(result, course)
        if list(result.ledger) != course.entries:
            self._complain(f"the ledger is {result.ledger} and was {course.entries}")

    def _check_conversation(self, result: RunResult[Any], course: Course) -> None:  # Any: as above
        """H1, H3 and H6: whole steps as they were, and the last one in its closed form."""
        left = [plain(message) for message in result.messages]
        if left and left[-1] == ("assistant", "", False, ()):
            left.pop()  # nothing but a notice
        expected = [*course.base, *course.said]
        if left != expected:
            self._complain(f"H6: what is left is {left} and should be {expected}")
        asked = max(place for place, (role, *_) in enumerate(course.base) if role == "user")
        spoken = [each.text for each in result.messages[asked:] if each.role == "assistant" and each.text.strip()]
        text = spoken[-1] if spoken else ""
        if result.text != text:
            self._complain(f"the text is {result.text!r} and the last words are {text!r}")

    def _check_notice(self, result: RunResult[Any], course: Course) -> None:  # Any: as above
        """H5: who comes next can see that it was stopped, and why."""
        fresh = result.messages[len(course.base) :]
        notices = [_notices(message) for message in fresh]
        expected = course.party.stopped is not None or course.failed or course.waits
        if sum(map(len, notices)) != int(expected) or (expected and not notices[-1]):
            self._complain(f"H5: the notices are {notices}, expected one at the end: {expected}")
        if expected and course.party.stopped is not None and "stopped" not in notices[-1][0]:
            self._complain(f"H5: {notices[-1][0]} does not say that it was stopped")

    def _check_results(self, result: RunResult[Any], course: Course) -> None:  # Any: as above
        """H2: each result says what is known of its call."""
        entries = {entry.call_id: entry for entry in course.entries}
        for message in result.messages[len(course.base) :]:
            for part in message.parts:
                if isinstance(part, ToolResult):
                    self._check_result(part, entries[part.call_id].content)

    def _check_result(self, part: ToolResult, content: str | None) -> None:
        state = LedgerState(part.state)
        if state is LedgerState.FINISHED and part.content != content:
            self._complain(f"H2: {part} and the call returned {content!r}")
        if TRUTH.get(state, "") not in part.content or any(lie in part.content for lie in LIES):
            self._complain(f"H2: {part} does not tell the truth")


def _notices(message: Message) -> list[str]:
    return [part.text for part in message.parts if part.kind == "notice"]
