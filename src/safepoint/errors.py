"""Every error Safepoint raises, in one tree. A class says whose fault it was; its message says what to write instead.

SafepointError
├─ UsageError(RuntimeError)      you called it wrongly
│  ├─ NoOutput                   `result.output` was read of a run without an answer
│  ├─ NotEnded                   a result was read before the run ended
│  ├─ WaitInsideRun              a run was asked to wait for itself
│  ├─ AskNotTaken                no run has taken this ask yet, so it has no outcome
│  └─ TokenCancelled             a new run was started with a token that is already cancelled
├─ HistoryError(ValueError)      a conversation no provider would accept
├─ ToolDefinitionError(TypeError) a function that cannot be a tool as it is written
├─ ModelError                    the model or its provider failed
│  ├─ ModelUnavailable           worth trying again (a refused connection, 429, 5xx)
│  ├─ ModelNotReady              a package or a key is missing; the message says what to type
│  └─ ModelMisbehaved            the reply cannot be understood
├─ CheckpointError(ValueError)   the bytes are not a checkpoint, or this agent cannot continue it
├─ StoreError                    a conversation could not be stored or loaded
│  ├─ SessionNotFound            no session has that id, or it was deleted
│  ├─ SessionExists              a session with that id exists already
│  ├─ SessionBusy                a run of that session is live, here or in another process
│  ├─ Superseded                 another run has taken over the session; this write was refused
│  └─ StoreCorrupt               the stored data cannot be read; it was left unchanged
├─ ProcessFailed                 a process tool raised, or its process ended before it had returned
├─ McpFailed                     an MCP server failed a call, or cannot be reached
├─ CutShort                      raise it in a tool that is being stopped, with the output so far
├─ Retry                         raise it in a tool: the model is asked to try again
├─ RecordedError                 an error as JSON tells it: the name of its type, and its message
├─ RunFailed                     ``agent.run()`` ended with ``stop_reason == "error"``; has ``.result``
└─ InternalError                 a bug in Safepoint; please report it

Outside the tree, because they must not be caught by ``except Exception``:
StopTool(BaseException)          in flight only: a tool leaves at its own safe point
AskPerson(BaseException)         in flight only: a tool waits for a person
CtrlC(KeyboardInterrupt)         Ctrl-C in ``run_sync``; has ``.result``
"""

from __future__ import annotations

from typing import Any


class SafepointError(Exception):
    """Base of everything that Safepoint raises on purpose."""


class UsageError(SafepointError, RuntimeError):
    """The call cannot work as written; the message says what to write instead."""


class NoOutput(UsageError):
    """`result.output` was read, but the run did not end with an answer."""


class NotEnded(UsageError):
    """A run's result was read while the run was still going."""


class WaitInsideRun(UsageError):
    """Code inside a run waited for that run's own end, which would never come."""


class AskNotTaken(UsageError):
    """The ask is kept for a run that has not started; waiting for its outcome would hang."""


class TokenCancelled(UsageError):
    """The token was cancelled before this run started; use a new token."""


class HistoryError(SafepointError, ValueError):
    """The conversation breaks a rule that every provider shares."""


class ToolDefinitionError(SafepointError, TypeError):
    """The function cannot become a tool; the message names the parameter or the option."""


class ModelError(SafepointError):
    """The model call failed."""


class ModelUnavailable(ModelError):
    """The provider could not be reached, or asked for a later retry. Retried before the first token only.

    ``retry_after``: the seconds that the provider asked for, if it did.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ModelNotReady(ModelError):
    """The model cannot be used on this machine: a package or a key is missing, or the key was refused."""


class ModelMisbehaved(ModelError):
    """The model's answer cannot be understood: an empty reply, a stream without an end."""


class CheckpointError(SafepointError, ValueError):
    """The checkpoint cannot be read, or cannot be continued in this way. Nothing was changed."""


class StoreError(SafepointError):
    """The store failed; the data it had before is unchanged."""


class SessionNotFound(StoreError):
    """No session has that id, or it was deleted."""


class SessionExists(StoreError):
    """A session with that id exists already; load it instead."""


class SessionBusy(StoreError):
    """A run of that session is live, here or in another process; wait for it, or use `SessionDispatcher(session)`."""


class Superseded(StoreError):
    """Another run has taken over the session since this run claimed it; this run's write was refused."""


class StoreCorrupt(StoreError):
    """The stored data cannot be read. Nothing was changed."""


class ProcessFailed(SafepointError):
    """A tool in a process of its own raised an error, given here as text; or its process ended before it returned."""


class McpFailed(SafepointError):
    """The MCP server reported that the call failed, cannot be reached, or ended during the call."""


class CutShort(SafepointError):
    """Raise it in a tool that is being stopped: the call is cut, and the model is told the output so far."""

    def __init__(self, output: str) -> None:
        super().__init__(output)
        self.output = output


class Retry(SafepointError):
    """Raise it in a tool to have the model try again: `raise Retry("the date must be in the future")`."""


class RecordedError(SafepointError):
    """The error of an event that was read from JSON: the name of the type that was raised, and its message."""

    def __init__(self, type: str, message: str) -> None:
        super().__init__(type, message)
        self.type = type
        self.message = message

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordedError) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


class RunFailed(SafepointError):
    """The run ended with ``stop_reason == "error"``. ``result`` has the messages, the usage and the ledger."""

    def __init__(self, message: str, result: Any) -> None:  # Any: errors sit below the result's type
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:  # Any: as above
        return type(self), (str(self), self.result)  # a pool of processes hands errors over as pickles


class InternalError(SafepointError):
    """Safepoint broke one of its own rules. Please report it."""


class StopTool(BaseException):
    """Raised inside a tool to leave it: at a named safe point, or at `ctx.check()`. Never catch it."""

    def __init__(self, point: str | None = None, saved: object = None) -> None:
        super().__init__(point)
        self.point = point
        self.saved = saved


class AskPerson(BaseException):
    """Raised inside a tool by `ctx.interrupt(…)` while there is no answer. Never catch it."""

    def __init__(self, payload: object) -> None:
        super().__init__(payload)
        self.payload = payload


class CtrlC(KeyboardInterrupt):
    """Ctrl-C while ``run_sync`` was waiting. The run has stopped; ``result`` is its result."""

    def __init__(self, result: Any) -> None:  # Any: as above
        super().__init__("stopped by Ctrl-C")
        self.result = result
