"""Where a run writes its facts while it goes, so that a process that dies leaves the truth behind.

A journal takes facts in order; one `write` is one atomic step. What must be durable before what:

    Opened (with the prompt) before the first model call
    Said(reply)              before any of its tools starts
    Called(running)          before the tool's first line
    Called(finished, …)      as soon as the result exists
    Inside(key, …)           the same, of a run inside this one
    Counted                  with whatever is written next
    Ended                    before anybody hears that the run has ended

So after a crash: a call without an entry never ran, one that is `running` was cut, and a finished one has its result. A
sub-agent, or a child of a composite, goes on inside.
A write that fails ends the run with that error; a write that hangs is cut by NOW like any other work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from safepoint._core.reasons import Reason
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.usage import Usage
from safepoint.errors import SafepointError, StoreError
from safepoint.history.parts import Message
from safepoint.history.rendering import render_error
from safepoint.tools.call_state import CallState


@dataclass(frozen=True, slots=True)
class Opened:
    """A run begins: from `index` on the conversation is `messages`, and nothing else.

    `continues`: the id of the checkpoint it goes on from, with the calls that are settled already. `at`: when, in
    seconds since 1970, as in every fact. `base`: that checkpoint, with the answers and the messages that it brings.
    `known`: with how many messages it begins that the conversation has before `index`, so that a store may leave them
    out.
    """

    run_id: str
    agent: str
    index: int
    messages: tuple[Message, ...]
    continues: str | None = None
    ledger: tuple[LedgerEntry, ...] = ()
    at: float = 0.0
    base: Checkpoint | None = None
    known: int = 0


@dataclass(frozen=True, slots=True)
class Said:
    """The message at this place of the conversation, also if another stood there before."""

    index: int
    message: Message
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Called:
    """A tool call as the ledger has it now, and what it remembers."""

    entry: LedgerEntry
    memory: CallState | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The run is over: from `index` on the conversation is this, and nothing else.

    `known`: with how many messages of the conversation, as it is now, the checkpoint begins. `reason`: why it was
    stopped; `error`: why it failed. Both are for those who record the run beside its conversation.
    """

    run_id: str
    stop_reason: StopReason
    index: int
    messages: tuple[Message, ...]
    ledger: tuple[LedgerEntry, ...]
    usage: Usage
    checkpoint: Checkpoint | None
    at: float = 0.0
    known: int = 0
    reason: Reason | None = field(default=None, compare=False)
    error: BaseException | None = field(default=None, compare=False)

    @staticmethod
    def of(result: RunResult[Any], index: int, at: float) -> Ended:  # Any: of every output type
        """Of a run whose part of the conversation begins at `index`."""
        own, ledger, usage = tuple(result.messages[index:]), result.ledger, result.usage
        reason = result.cancellation.reason if result.cancellation is not None else None
        return Ended(
            result.run_id,
            result.stop_reason,
            index,
            own,
            ledger,
            usage,
            result.checkpoint,
            at,
            reason=reason,
            error=result.error,
        )


@dataclass(frozen=True, slots=True)
class Counted:
    """What the run has used so far, with those that it continues; and what it was given to say and has not said yet."""

    step: int
    spent: Usage
    used: Mapping[str, float] = field(default_factory=dict[str, float])
    pending: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Inside:
    """A fact of a run inside this one. `key`: the id of the call, or the key of the child, that it is."""

    key: str
    fact: Fact


Fact: TypeAlias = Opened | Said | Called | Ended | Counted | Inside


@contextmanager
def as_store_errors() -> Generator[None]:
    """Whatever a store raises inside the block has failed the write, so that nothing builds on what was not kept.

    That includes a CancelledError of a driver. If the task itself was cancelled meanwhile, somebody has cut the write,
    and the CancelledError goes on as it is. A KeyboardInterrupt is meant for the whole process.
    """
    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    try:
        yield
    except (SafepointError, KeyboardInterrupt, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        if task is None or task.cancelling() > cancels:
            raise
        raise StoreError("the session store failed: it raised CancelledError, and nobody had cancelled it") from error
    except BaseException as error:
        raise StoreError(f"the session store failed: {render_error(error)}") from error


class Journal(Protocol):
    """A place for the facts of one run."""

    async def write(self, *facts: Fact) -> None:
        """Make these durable together, or raise and leave nothing of them. Cancellation: either all or none."""
        ...
