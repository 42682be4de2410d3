"""Where a run writes its facts while it runs, so that the truth survives a process that dies.

A journal takes facts in order; one `write` is one atomic step. The order in which facts become durable:

    Opened (with the prompt) before the first model call
    Said(reply)              before any of its tools starts
    Called(running)          before the tool's first line
    Called(finished, …)      as soon as the result exists
    Inside(key, …)           the same, for a run inside this one
    Counted                  with the next write
    Ended                    before any waiter learns that the run has ended

So after a crash, a call without an entry never ran, a `running` call was cut, and a finished call has its result. A
sub-agent, or a child of a composite, continues inside.
A write that fails ends the run with that error; NOW cuts a write that hangs, like any other work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from msgspec.structs import astuple

from safepoint._core.reasons import Reason
from safepoint._values import Value
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.checkpoint import Counted as Counted
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import RunResult, StopReason
from safepoint.agent.usage import Usage
from safepoint.errors import SafepointError, StoreError
from safepoint.history.parts import Message
from safepoint.history.rendering import render_error
from safepoint.tools.call_state import CallState


class Opened(Value, frozen=True, tag_field="kind", tag="opened"):
    """A run begins: from `index` on the conversation is `messages`, and nothing else.

    `continues`: the id of the checkpoint it continues, with the calls that are settled already. `at`: the time in
    seconds since 1970, as in every fact. `base`: that checkpoint, with the new answers and messages.
    `known`: how many messages at its start the conversation already has before `index`, so that a store may leave them
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


class Said(Value, frozen=True, tag_field="kind", tag="said"):
    """The message at this index of the conversation; it replaces the message that stood there before."""

    index: int
    message: Message
    at: float = 0.0


class Called(Value, frozen=True, tag_field="kind", tag="called"):
    """A tool call as the ledger has it now, and the state it has saved."""

    entry: LedgerEntry
    memory: CallState | None = None


class Ended(Value, frozen=True, eq=False, tag_field="kind", tag="ended"):
    """The run is over: from `index` on the conversation is this, and nothing else.

    `known`: how many messages at the start of the checkpoint the conversation has. `reason`: why the run was stopped;
    `error`: why it failed. Both are for the record of the run beside its conversation.
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
    reason: Reason | None = None
    error: BaseException | None = None

    def __eq__(self, other: object) -> bool:
        """Compare the stored fields: a storage returns `reason` and `error` as None."""
        return isinstance(other, Ended) and self._stored == other._stored

    def __hash__(self) -> int:
        return hash(self._stored)

    @property
    def _stored(self) -> tuple[object, ...]:
        return astuple(self)[:-2]

    @staticmethod
    def of(result: RunResult[Any], index: int, at: float) -> Ended:  # Any: of every output type
        """The end of a run whose part of the conversation begins at `index`."""
        messages, ledger, usage = tuple(result.messages[index:]), result.ledger, result.usage
        reason = result.cancellation.reason if result.cancellation is not None else None
        return Ended(
            result.run_id,
            result.stop_reason,
            index,
            messages,
            ledger,
            usage,
            result.checkpoint,
            at,
            reason=reason,
            error=result.error,
        )


class Inside(Value, frozen=True, tag_field="kind", tag="inside"):
    """A fact of a run inside this one. `key`: the id of the call, or the key of the child, that runs it."""

    key: str
    fact: Fact


Fact: TypeAlias = Opened | Said | Called | Ended | Counted | Inside


@contextmanager
def as_store_errors() -> Generator[None]:
    """Turn every exception of a store inside the block into a failed write, so that nothing builds on it.

    That includes a CancelledError that a database driver raises. If the task itself was cancelled, the write was cut,
    and the CancelledError passes. A KeyboardInterrupt is for the whole process.
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
        raise StoreError("the session store failed: it raised CancelledError although it was not cancelled") from error
    except BaseException as error:
        raise StoreError(f"the session store failed: {render_error(error)}") from error


class Journal(Protocol):
    """A place for the facts of one run."""

    async def write(self, *facts: Fact) -> None:
        """Make these durable together, or raise and write none of them. Cancellation: either all or none."""
        ...
