"""What a plan says: which items make the next turn, and how its run is started.

A plan sees everything that waits, in order, and divides it up: `consumed` by the turn, `remaining` for a later one, and
the rest, which is dropped on purpose. A plan without input makes no turn: its items wait until something new comes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from safepoint._core.groups import CancelToken
from safepoint.agent.budget import Budget
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.conversation import Conversation
from safepoint.agent.result import RunResult
from safepoint.agent.resume import OnUnknown, Resume
from safepoint.agent.stream import Reader
from safepoint.history.parts import Message, Prompt
from safepoint.turns.turn import AnyRun, Turn, TurnOutcome

if TYPE_CHECKING:
    from safepoint.agent.base import BaseAgent
    from safepoint.turns.loop import TurnLoop

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Previous(Generic[T]):
    """The turn before. `messages` is its closed history; `preempted` are the items it lost to a push.

    After a restart `outcome` and `result` are those of a turn that nobody remembers: ENDED, and None.
    """

    outcome: TurnOutcome
    messages: tuple[Message, ...]
    preempted: tuple[T, ...] = ()
    result: RunResult[Any] | None = None  # Any: of any output type


@dataclass(frozen=True, slots=True)
class PlanContext(Generic[T]):
    """What the planning callbacks know. `checkpoint`: of the turn that `plan_resume` may continue."""

    loop: TurnLoop[T]
    previous: Previous[T] | None = None
    checkpoint: Checkpoint | None = None

    @property
    def history(self) -> tuple[Message, ...]:
        """The conversation so far: the closed history of the turn before."""
        return self.previous.messages if self.previous is not None else ()


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """A new turn, or with `input=None` none yet. Items in neither list are dropped and reported in an event."""

    input: Prompt | None
    consumed: Sequence[T]
    remaining: Sequence[T] = ()
    history: Sequence[Message] = ()
    session: Conversation | None = None
    deps: Any = None  # Any: whatever the agent depends on
    budget: Budget | None = None
    token: CancelToken | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: the plan's own

    def __post_init__(self) -> None:
        if self.input is None and self.consumed:
            raise ValueError("a plan without input makes no turn, so it can't consume: write consumed=[]")

    def start(self, agent: BaseAgent[Any, Any]) -> AnyRun:  # Any: any agent
        assert self.input is not None
        return agent.start(
            self.input,
            history=self.history,
            session=self.session,
            deps=self.deps,
            budget=self.budget,
            token=self.token,
        )

    def continued(self) -> ResumePlan[T]:
        """How the same turn goes on once a person has answered."""
        return ResumePlan(self.consumed, session=self.session, deps=self.deps, budget=self.budget, token=self.token)


@dataclass(frozen=True, slots=True)
class ResumePlan(Generic[T]):
    """The stopped turn goes on. `message`, `answers` and `on_unknown` are those of `Resume`.

    Questions without an answer wait for `loop.answer(…)`.
    """

    consumed: Sequence[T]
    remaining: Sequence[T] = ()
    message: Prompt | None = None
    answers: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: whatever people answered
    on_unknown: OnUnknown = "tell"
    session: Conversation | None = None
    deps: Any = None  # Any: as above
    budget: Budget | None = None
    token: CancelToken | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: as above

    def start(
        self, agent: BaseAgent[Any, Any], checkpoint: Checkpoint, answers: Mapping[str, Any]
    ) -> AnyRun:  # Any: any agent, any answers
        # The loop's record is what may be continued once: it is replaced as soon as this turn is over.
        resume = Resume(checkpoint, self.message, answers, on_unknown=self.on_unknown, fork=True)
        return agent.start(
            checkpoint=resume, session=self.session, deps=self.deps, budget=self.budget, token=self.token
        )


PlanTurn: TypeAlias = Callable[[PlanContext[T], list[T]], "Plan[T] | Awaitable[Plan[T]]"]
PrepareAgent: TypeAlias = Callable[
    [PlanContext[T], list[T]],
    "BaseAgent[Any, Any] | Awaitable[BaseAgent[Any, Any]]",  # Any: any agent
]
OnEvents: TypeAlias = Callable[[Turn[T], Reader], object]
PlanResume: TypeAlias = Callable[
    [PlanContext[T], list[T], list[T], list[T]], "Plan[T] | ResumePlan[T] | Awaitable[Plan[T] | ResumePlan[T]]"
]


def one_message(ctx: PlanContext[T], items: list[T]) -> Plan[T]:
    """The plan of `TurnLoop(agent)`: all text that waits becomes one message of one conversation."""
    strangers = [item for item in items if not isinstance(item, str)]
    if strangers:
        raise TypeError(f"{strangers[0]!r} is no text: write TurnLoop(agent, plan=…) for items of other types")
    words = [str(item) for item in items if str(item).strip()]
    if not words:
        return Plan(None, [])  # nothing was said
    return Plan("\n".join(words), [item for item in items if str(item).strip()], history=ctx.history)


def resume_as_it_was(
    _ctx: PlanContext[T], interrupted: list[T], unhandled: list[T], new: list[T]
) -> Plan[T] | ResumePlan[T]:
    """The plan for a stopped turn if there is no other: it goes on, and everything else waits."""
    return ResumePlan(interrupted, [*unhandled, *new])
