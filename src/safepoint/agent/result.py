"""The result of a run."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Generic, cast

from typing_extensions import TypeVar  # TypeVar defaults; pydantic brings it along

from safepoint._core.endings import Cancellation
from safepoint._core.orphans import Orphan
from safepoint._values import Value
from safepoint.agent.checkpoint import Checkpoint, Question
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.stop_reason import StopReason as StopReason
from safepoint.agent.usage import Usage
from safepoint.errors import NoOutput
from safepoint.history.parts import Message

OutT = TypeVar("OutT", default=str, covariant=True)


class _NoValue(Enum):
    """No value, as distinct from an output of None. An enum member keeps its identity in copies and other processes."""

    NO_VALUE = "no value"


NO_VALUE: Final = _NoValue.NO_VALUE


class ChildResult(Value, frozen=True):
    """The result of one child of a composite. `path` is the path of its node in the tree."""

    name: str
    path: str
    result: RunResult[Any]  # Any: children have outputs of every type


class RunResult(Value, Generic[OutT], frozen=True):
    """The outcome of one run. `messages` is a valid conversation on every path: hand it to the next run as history.

    `text` is the model's last text, even if it was cut short; notices are not part of it. `children`: the results of
    the children that a composite has run, in the order of their start.
    """

    run_id: str
    stop_reason: StopReason
    text: str
    messages: list[Message]
    ledger: tuple[LedgerEntry, ...]
    usage: Usage
    cancellation: Cancellation | None = None
    checkpoint: Checkpoint | None = None
    orphans: tuple[Orphan, ...] = ()
    error: BaseException | None = None
    save_error: BaseException | None = None
    value: object = NO_VALUE
    children: tuple[ChildResult, ...] = ()
    # How many steps are complete, with those of the runs that it continues; and the name of its agent.
    steps: int = 0
    agent: str = ""
    # The calls that a run which goes back to an earlier step was to undo, each with its state now.
    taken_back: tuple[LedgerEntry, ...] = ()

    def at(self, step: int) -> Checkpoint:
        """The run at the end of an earlier step, to continue from; see `Checkpoint.at`. Also for a run with an answer.

        0 is before its first model call.
        """
        whole = self.checkpoint
        if whole is None:
            messages = tuple(self.messages)
            made = (self.agent, self.run_id, self.stop_reason, messages, messages, self.ledger)
            whole = Checkpoint("", *made, step=self.steps, spent=self.usage)
        return whole.at(step)

    def __repr__(self) -> str:
        """Omit `value`, which may be long and equals `output`."""
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "value")
        return f"RunResult({', '.join(shown)})"

    @property
    def output(self) -> OutT:
        """The typed answer. Raises `NoOutput` unless the run ended with `end_turn`."""
        if self.stop_reason is not StopReason.END_TURN:
            raise NoOutput(f"the run has no output, it ended with {str(self.stop_reason)!r}: look at stop_reason first")
        return cast("OutT", self.text if self.value is NO_VALUE else self.value)

    @property
    def questions(self) -> tuple[Question, ...]:
        """The questions to a person, if the run ended `interrupted`."""
        return self.checkpoint.questions if self.checkpoint is not None else ()
