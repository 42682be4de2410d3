"""What must be true of every run that has ended, however it ended (H1 to H5 and H8 of the contract)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from safepoint import Run, check_history
from safepoint.agent.events import (
    Event,
    ModelCallEnded,
    ModelCallStarted,
    RunEnded,
    RunStarted,
    ToolCallEnded,
    ToolCallStarted,
)
from safepoint.agent.result import StopReason
from safepoint.history.parts import Message, Notice, ToolResult
from safepoint.history.states import LedgerState

WORDS = {
    LedgerState.NOT_STARTED: "This call was not started.",
    LedgerState.CUT: "This call was cut while running, outcome unknown.",
    LedgerState.COMPENSATED: "This call was cut and undone.",
}


def check_left_behind(run: Run[Any, Any]) -> None:  # Any: a run of any agent
    """Raise unless the ended run has left a true and usable state behind."""
    check_history(run.result.messages)
    _check_results(run)
    _check_notice(run)
    _check_events(run)


def results(messages: Sequence[Message]) -> list[ToolResult]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolResult)]


def notices(messages: Sequence[Message]) -> list[str]:
    return [part.text for message in messages for part in message.parts if isinstance(part, Notice)]


def states(run: Run[Any, Any]) -> dict[str, str]:  # Any: as above
    """The ledger's last word on each tool, by name."""
    return {entry.name: str(entry.state) for entry in run.result.ledger}


def _check_results(run: Run[Any, Any]) -> None:  # Any: as above
    told = {result.call_id: result for result in results(run.result.messages)}
    for entry in run.result.ledger:
        assert entry.state is not LedgerState.RUNNING
        result = told[entry.call_id]
        assert (result.name, result.state) == (entry.name, entry.state)
        if entry.state is LedgerState.FINISHED:
            assert result.content == entry.content
        if entry.state in WORDS:
            assert result.content.startswith(WORDS[entry.state])
        ran = entry.started_at is not None
        assert ran or entry.state in (LedgerState.NOT_STARTED, LedgerState.FAILED, LedgerState.FINISHED)


def _check_notice(run: Run[Any, Any]) -> None:  # Any: as above
    result = run.result
    stopped = result.stop_reason in (StopReason.CANCELLED, StopReason.BUDGET)
    assert stopped is (result.cancellation is not None), "whatever was stopped says by what"
    if result.cancellation is None:
        return
    last = result.messages[-1]
    assert last.role == "assistant"
    assert isinstance(last.parts[-1], Notice)
    assert "This run was stopped before it was done." in last.parts[-1].text
    assert "Safepoint" not in result.text
    assert result.cancellation.stopped_at >= result.cancellation.asked_at


def _check_events(run: Run[Any, Any]) -> None:  # Any: as above
    events = run.kept_events(nested=True)
    assert [event.seq for event in events] == sorted({event.seq for event in events}), "rising, and each once"
    own = [event for event in events if event.run_id == run.id]
    assert isinstance(own[0], RunStarted)
    assert [event for event in own if isinstance(event, RunStarted | RunEnded)] == [own[0], own[-1]]
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert ended is own[-1]
    assert (ended.stop_reason, ended.usage) == (run.result.stop_reason, run.result.usage)
    for run_id in {event.run_id for event in events}:
        _check_pairs([event for event in events if event.run_id == run_id])


def _check_pairs(events: Sequence[Event]) -> None:
    calls = [type(event) for event in events if isinstance(event, ModelCallStarted | ModelCallEnded)]
    assert calls == [ModelCallStarted, ModelCallEnded] * (len(calls) // 2), "a model call starts, then ends"
    started = Counter(event.call.id for event in events if isinstance(event, ToolCallStarted))
    ended = Counter(event.entry.call_id for event in events if isinstance(event, ToolCallEnded))
    assert set(started.values()) <= {1}
    assert set(ended.values()) <= {1}
    assert started.keys() <= ended.keys(), "what started has ended"
    assert sum(isinstance(event, RunStarted) for event in events) == 1
    assert sum(isinstance(event, RunEnded) for event in events) == 1
