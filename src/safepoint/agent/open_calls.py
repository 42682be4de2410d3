"""What a run leaves open beside its conversation, when nothing of it runs any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from safepoint._core.endings import Touched
from safepoint.agent.checkpoint import OpenCall
from safepoint.agent.result import ChildResult
from safepoint.history.closing import ClosedCall, Draft
from safepoint.history.parts import Message


class OpenCalls(NamedTuple):
    """`calls` have no result in the conversation yet; `open` is what they, or children, need to go on.

    `told`: what the notice says of children. `draft`: an unfinished answer of a child that speaks for the run.
    `messages`: the conversation, if a child has carried it on; otherwise it is the run's own.
    """

    open: Mapping[str, OpenCall]
    calls: tuple[ClosedCall, ...] = ()
    touched: tuple[Touched, ...] = ()
    queued: tuple[str, ...] = ()
    children: tuple[ChildResult, ...] = ()
    told: str = ""
    draft: Draft | None = None
    messages: tuple[Message, ...] | None = None
