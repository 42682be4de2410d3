"""What is left when a run has ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, cast

from typing_extensions import TypeVar  # TypeVar defaults; pydantic brings it along

from safepoint._core.endings import Cancellation
from safepoint._core.orphans import Orphan
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.usage import Usage
from safepoint.errors import NoOutput
from safepoint.history.parts import Message

if TYPE_CHECKING:
    from safepoint.agent.checkpoint import Checkpoint, Question

OutT = TypeVar("OutT", default=str, covariant=True)


class _NoValue(Enum):
    """An output may well be None. The member of an enum stays the same one in copies, also in another process."""

    NO_VALUE = "no value"


NO_VALUE: Final = _NoValue.NO_VALUE


class StopReason(StrEnum):
    """Why a run ended."""

    END_TURN = "end_turn"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"
    BUDGET = "budget"
    REFUSED = "refused"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class ChildResult:
    """What became of one child of a composite. `path` is that of its node in the tree."""

    name: str
    path: str
    result: RunResult[Any]  # Any: children have outputs of every type


@dataclass(frozen=True, slots=True)
class RunResult(Generic[OutT]):
    """The outcome of one run. `messages` is a valid conversation on every path: hand it to the next run as history.

    `text` is what the model said last, also if it was cut short; notices are not part of it. `children`: what became
    of the children that a composite has run, in the order of their start.
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
    value: object = field(default=NO_VALUE, repr=False)
    children: tuple[ChildResult, ...] = ()

    @property
    def output(self) -> OutT:
        """The typed answer. Raises `NoOutput` unless the run ended with `end_turn`."""
        if self.stop_reason is not StopReason.END_TURN:
            raise NoOutput(f"the run has no output, it ended with {str(self.stop_reason)!r}: look at stop_reason first")
        return cast("OutT", self.text if self.value is NO_VALUE else self.value)

    @property
    def questions(self) -> tuple[Question, ...]:
        """What a person is asked, if the run ended `interrupted`."""
        return self.checkpoint.questions if self.checkpoint is not None else ()
