"""What a run leaves open beside its conversation once no work of it runs any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from safepoint._core.endings import Touched
from safepoint.agent.checkpoint import OpenCall
from safepoint.agent.result import ChildResult
from safepoint.history.closing import ClosedCall, Draft
from safepoint.history.parts import Message


class OpenCalls(NamedTuple):
    """`calls` have no result in the conversation yet; `open` is the state that they, or children, need to continue.

    `report`: the notice's report on children. `draft`: an unfinished answer of a child that speaks for the run.
    `messages`: the conversation, if a child has continued it; otherwise the run's own counts.
    """

    open: Mapping[str, OpenCall]
    calls: tuple[ClosedCall, ...] = ()
    touched: tuple[Touched, ...] = ()
    queued: tuple[str, ...] = ()
    children: tuple[ChildResult, ...] = ()
    report: str = ""
    draft: Draft | None = None
    messages: tuple[Message, ...] | None = None
