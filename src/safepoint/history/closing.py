"""How a conversation ends when a run is stopped, so that the next request is valid and tells the truth.

`close_history` takes the state at the stop and returns the closed conversation:

    messages   every whole step, untouched; perhaps an assistant message whose calls are still open
    batch      what became of these open calls       ─▶ one tool message, one result per call, in call order
    draft      the reply that was cut while it came  ─▶ an assistant message, its text marked incomplete
    notice     that it was stopped, and why          ─▶ the last part of the last assistant message

For every input the result passes `check_history`. A result never claims more than is known: a call that ran is never
called rejected or undone unless its undo completed. Text from outside (reasons, errors, partial answers) is quoted on
one line, without control characters and cut to a length, so that it stays data and cannot pose as Safepoint's remark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, assert_never

from msgspec.structs import replace

from safepoint._values import Value
from safepoint.errors import HistoryError
from safepoint.history.check import part_rank
from safepoint.history.parts import Attachment, Message, Notice, Part, Reasoning, Text, ToolCall, ToolResult
from safepoint.history.states import LedgerState
from safepoint.history.wellformed import is_well_formed, well_formed

_as_json: Final = json.JSONEncoder(ensure_ascii=False).encode

WAITS: Final = "This run waits for the answer of a person."
"""The notice while a person is asked."""
QUOTE_LIMIT: Final = 500
"""How many characters of a reason or an error are quoted."""
PARTIAL_LIMIT: Final = 4000
"""How many characters of an unfinished answer or output are quoted."""


class Draft(Value, frozen=True):
    """A reply that was cut while it arrived. Half-received calls are no part of it: they never ran and never will."""

    text: str = ""
    reasoning: tuple[Reasoning, ...] = ()

    @property
    def incomplete(self) -> bool:
        """Whether words of an answer are left to see."""
        return bool(self.text.strip())


class ClosedCall(Value, frozen=True, kw_only=True):
    """The final state of one call, as the ledger has it.

    ``content`` is the real result if it finished, with its images and files as ``parts``, and the output so far if it
    was stopped or cut. ``point`` names the tool's own safe point; without one, a `stopped` call is a sub-agent's.
    ``reason`` says why it was stopped.
    """

    call: ToolCall
    state: LedgerState
    content: str = ""
    parts: tuple[Attachment, ...] = ()
    error: str | None = None
    reason: str | None = None
    point: str | None = None
    still_running: bool = False
    remote: bool = False


def close_history(
    messages: Sequence[Message],
    *,
    batch: Sequence[ClosedCall] = (),
    draft: Draft | None = None,
    notice: str | None = None,
) -> tuple[Message, ...]:
    """The closed form of a stopped conversation. See the module for what goes where. Closing twice changes nothing.

    An open call that the batch leaves out was not started: the ledger records `running` before a tool's first line.
    Calls and entries meet by id. An entry for a call that is not open raises `HistoryError`; so does a draft or a
    notice for an empty history, because the input comes first. A blank notice is none.
    """
    if not messages and (batch or draft is not None or notice is not None):
        raise HistoryError("an empty history has nothing to close; put the user's message in first")
    closed = list(messages)
    results = _results(closed[-1].tool_calls if closed else (), batch)
    if results:
        closed.append(Message("tool", results))
    spoken = (*_words(draft), *_notice_parts(notice))
    if spoken:  # sealed thoughts alone are no message
        last = closed.pop() if closed[-1].role == "assistant" else Message("assistant", ())
        fresh = [part for part in (*_thoughts(draft), *spoken) if part not in last.parts]
        closed.append(replace(last, parts=tuple(sorted([*last.parts, *fresh], key=part_rank))))
    return tuple(closed)


def tool_result(entry: ClosedCall) -> ToolResult:
    """The result that answers the call. A call that still runs when its run has ended was cut."""
    state = LedgerState.CUT if entry.state == LedgerState.RUNNING else entry.state
    parts = entry.parts if state in (LedgerState.FINISHED, LedgerState.FINISHED_LATE) else ()
    return ToolResult(entry.call.id, entry.call.name, result_text(entry), state, parts)


def result_text(entry: ClosedCall) -> str:
    """The text for the model about the call: only what is known. Never blank."""
    match entry.state:
        case LedgerState.FINISHED | LedgerState.FINISHED_LATE:
            return _or_else(entry.content, "(finished without output)")
        case LedgerState.FAILED:
            return _or_else(entry.error, "(failed without a message)")
        case LedgerState.NOT_STARTED:
            return _not_started_text(entry)
        case LedgerState.CUT | LedgerState.RUNNING:
            return _cut_text(entry)
        case LedgerState.COMPENSATED:
            return _compensated_text(entry)
        case LedgerState.STOPPED:
            return _stopped_text(entry)
        case LedgerState.WAITING:
            return _waiting_text(entry)
        case _:
            assert_never(entry.state)


def notice_text(
    *,
    reason: str | None = None,
    source: str | None = None,
    by: str | None = None,
    incomplete: bool = False,
    report: str = "",
) -> str:
    """The remark that a later model call sees: that it was stopped, by whom, why, and whether the answer is whole.

    `report`: more sentences of Safepoint's, about what was done and what was not.
    """
    sentences = _sentences(
        "This run was stopped before it was done.",
        _source(source),
        _labelled("Asked by:", by),
        _labelled("Reason:", reason),
        "The answer above is incomplete." if incomplete else "",
        report,
    )
    return remark(sentences)


@lru_cache
def _source(source: str | None) -> str:
    return _labelled("Source:", source)


def remark(text: str) -> str:
    """A sentence of Safepoint's own, marked so that it is not mistaken for the model's."""
    return f"[Safepoint: {text}]"


def unmarked(text: str) -> str:
    """The sentence inside such a remark."""
    return text.removeprefix("[Safepoint: ").removesuffix("]")


def quoted(text: str, limit: int = QUOTE_LIMIT) -> str:
    """The text as one line of quoted data: a JSON string without control or invisible characters, capped."""
    # Twice the limit is read, so that a text which begins with rubbish keeps something and a huge one costs nothing.
    head = text[: 2 * limit]
    shown = head if head.isprintable() else "".join(char if char.isprintable() else " " for char in head)
    line = " ".join(shown.split())
    if len(line) > limit or len(head) < len(text):
        line = line[: limit - 1] + "…"
    return _as_json(line)


def _not_started_text(entry: ClosedCall) -> str:
    return _sentences("This call was not started.", _labelled("Reason:", entry.reason))


def _cut_text(entry: ClosedCall) -> str:
    return _sentences(
        "This call was cut while running, outcome unknown.",
        "It is remote, outcome unknown: the server may have gone on." if entry.remote else "",
        "It may still be running." if entry.still_running else "",
        _labelled("Its output so far:", entry.content, limit=PARTIAL_LIMIT),
        _labelled("When cut, it raised:", entry.error),
        _labelled("Reason:", entry.reason),
    )


def _compensated_text(entry: ClosedCall) -> str:
    return _sentences("This call was cut and undone.", _labelled("Reason:", entry.reason))


def _stopped_text(entry: ClosedCall) -> str:
    return _sentences(
        "This sub-agent was stopped before it was done; some of its work may be done."
        if entry.point is None
        else f"This call stopped at its own safe point {quoted(entry.point)}, before it was done.",
        _labelled("Its answer so far:", entry.content, limit=PARTIAL_LIMIT),
        _labelled("Reason:", entry.reason),
    )


def _waiting_text(entry: ClosedCall) -> str:
    return _sentences(
        "This call asked a person, has no answer yet and is not done.", _labelled("Reason:", entry.reason)
    )


def _labelled(label: str, text: str | None, *, limit: int = QUOTE_LIMIT) -> str:
    line = quoted(text, limit) if text else '""'
    return "" if line == '""' else f"{label} {line}."


def _sentences(*sentences: str) -> str:
    return " ".join([sentence for sentence in sentences if sentence])


def _or_else(text: str | None, otherwise: str) -> str:
    return well_formed(text) if text and text.strip() else otherwise


def _results(open_calls: Sequence[ToolCall], batch: Sequence[ClosedCall]) -> tuple[ToolResult, ...]:
    if not open_calls and not batch:
        return ()
    entries = {entry.call.id: entry for entry in batch}
    open_ids = [call.id for call in open_calls]
    if len(entries) < len(batch) or not entries.keys() <= set(open_ids):
        raise HistoryError(
            f"the batch has entries for {[entry.call.id for entry in batch]}, but the calls that the last message "
            f"leaves open are {open_ids}; give each of these at most one entry"
        )
    return tuple(tool_result(_entry_of(call, entries.get(call.id))) for call in open_calls)


def _entry_of(call: ToolCall, entry: ClosedCall | None) -> ClosedCall:
    """The result must match the call as the model wrote it; a hook may have run it with other arguments."""
    if entry is None:
        return ClosedCall(call=call, state=LedgerState.NOT_STARTED)
    return entry if entry.call is call else replace(entry, call=call)


def _words(draft: Draft | None) -> tuple[Part, ...]:
    return (Text(well_formed(draft.text), incomplete=True),) if draft is not None and draft.incomplete else ()


def _thoughts(draft: Draft | None) -> list[Part]:
    return [block for block in draft.reasoning if _is_sealed(block)] if draft is not None else []


def _is_sealed(block: Reasoning) -> bool:
    # Without its seal a thought was cut in the middle. A sealed one cannot be mended: the seal is over its exact text.
    seal = block.signature or ""
    return bool(seal.strip()) and is_well_formed(block.text + seal)


def _notice_parts(notice: str | None) -> tuple[Part, ...]:
    return (Notice(well_formed(notice)),) if notice and notice.strip() else ()
