"""What a plan decides: which items make the next turn, and how its run is started.

A plan sees all waiting items, in order, and divides them: `consumed` by the turn, `remaining` for a later one, and the
rest, which is dropped on purpose, or kept with `keep_rest=True`. A plan without input makes no turn: its items wait
until a new one arrives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from safepoint._core.groups import CancelToken
from safepoint.agent.budget import Budget
from safepoint.agent.checkpoint import Checkpoint
from safepoint.agent.event_hub import EventReader
from safepoint.agent.result import RunResult
from safepoint.agent.resume import OnUnknown, Resume
from safepoint.agent.session_protocol import SessionProtocol
from safepoint.history.parts import Message, Prompt
from safepoint.turns.turn import AnyRun, Turn, TurnOutcome

if TYPE_CHECKING:
    from safepoint.agent.base import BaseAgent
    from safepoint.turns.loop import TurnLoop

T = TypeVar("T")
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class Previous(Generic[T]):
    """The turn before. `messages` is its closed history; `preempted` are the items it lost to a push.

    After a restart `outcome` and `result` are unknown: ENDED, and None.
    """

    outcome: TurnOutcome
    messages: tuple[Message, ...]
    preempted: tuple[T, ...] = ()
    result: RunResult[Any] | None = None  # Any: of any output type


@dataclass(frozen=True, slots=True)
class PlanContext(Generic[T]):
    """The facts for the planning callbacks.

    `history`: the conversation to continue. `checkpoint`: of a stopped turn that can continue, if there is one; `said`:
    its items, whose message is in that conversation already. `plan`: for `prepare`, the plan of the turn.
    """

    loop: TurnLoop[T]
    previous: Previous[T] | None = None
    checkpoint: Checkpoint | None = None
    said: tuple[T, ...] = ()
    history: tuple[Message, ...] = ()
    plan: Plan[T] | ResumePlan[T] | None = None


@dataclass(frozen=True, slots=True)
class Plan(Generic[T]):
    """A new turn, or with `input=None` none yet.

    Items in neither list are dropped and reported in an event; with `keep_rest=True` they wait on instead.
    """

    input: Prompt | None
    consumed: Sequence[T]
    remaining: Sequence[T] = ()
    history: Sequence[Message] = ()
    session: SessionProtocol | None = None
    deps: Any = None  # Any: the agent's dependencies
    budget: Budget | None = None
    token: CancelToken | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: the plan's own
    keep_rest: bool = False

    def __post_init__(self) -> None:
        if self.input is None and len(self.consumed):
            raise ValueError("a plan without input makes no turn, so it can't consume: write consumed=[]")
        _check_rest(self.remaining, keep_rest=self.keep_rest)

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
        """How the same turn continues: with the options that it began with."""
        return ResumePlan(
            self.consumed,
            keep_rest=True,
            session=self.session,
            deps=self.deps,
            budget=self.budget,
            token=self.token,
            metadata=self.metadata,
        )


class _AsPlanned(Enum):
    """The default of a `ResumePlan`: the value in the plan of the turn."""

    AS_PLANNED = "as planned"


AS_PLANNED: Final = _AsPlanned.AS_PLANNED


@dataclass(frozen=True, slots=True)
class ResumePlan(Generic[T]):
    """The stopped turn continues. `message`, `answers` and `on_unknown` are those of `Resume`.

    Session, deps, budget, token and metadata default to those of the turn's plan. `checkpoint` defaults to the one of
    the stopped turn. Questions without an answer wait for `loop.answer(…)`.
    """

    consumed: Sequence[T]
    remaining: Sequence[T] = ()
    message: Prompt | None = None
    answers: Mapping[str, Any] = field(default_factory=dict[str, Any])  # Any: people's answers
    on_unknown: OnUnknown = "tell"
    session: SessionProtocol | _AsPlanned | None = AS_PLANNED
    deps: Any = AS_PLANNED  # Any: the agent's dependencies
    budget: Budget | _AsPlanned | None = AS_PLANNED
    token: CancelToken | _AsPlanned | None = AS_PLANNED
    metadata: Mapping[str, Any] | _AsPlanned = AS_PLANNED  # Any: the plan's own
    keep_rest: bool = False
    checkpoint: Checkpoint | None = None

    def __post_init__(self) -> None:
        _check_rest(self.remaining, keep_rest=self.keep_rest)

    @property
    def is_complete(self) -> bool:
        return AS_PLANNED not in (self.session, self.budget, self.token) and not (
            self.deps is AS_PLANNED or self.metadata is AS_PLANNED
        )

    def completed(self, plan: Plan[T] | ResumePlan[T] | None) -> ResumePlan[T]:
        """The same, with omitted options taken from that plan; without a plan, they stay empty."""
        made: Plan[T] | ResumePlan[T] = plan if plan is not None else Plan(None, ())
        return replace(
            self,
            session=_chosen(self.session, made.session, None),
            deps=_chosen(self.deps, made.deps, None),
            budget=_chosen(self.budget, made.budget, None),
            token=_chosen(self.token, made.token, None),
            metadata=_chosen(self.metadata, made.metadata, {}),
        )

    def start(
        self, agent: BaseAgent[Any, Any], checkpoint: Checkpoint, answers: Mapping[str, Any]
    ) -> AnyRun:  # Any: any agent, any answers
        # The loop's record is what may be continued once: it is replaced as soon as this turn is over.
        resume = Resume(checkpoint, self.message, answers, on_unknown=self.on_unknown, fork=True)
        return agent.start(
            checkpoint=resume,
            session=_chosen(self.session, None, None),
            deps=_chosen(self.deps, None, None),
            budget=_chosen(self.budget, None, None),
            token=_chosen(self.token, None, None),
        )


def session_of(plan: Plan[T] | ResumePlan[T]) -> SessionProtocol | None:
    return _chosen(plan.session, None, None)


def metadata_of(plan: Plan[T] | ResumePlan[T]) -> Mapping[str, Any]:  # Any: the plan's own
    return _chosen(plan.metadata, {}, {})


def _chosen(said: ValueT | _AsPlanned, planned: ValueT | _AsPlanned, default: ValueT) -> ValueT:
    value = planned if said is AS_PLANNED else said
    return default if value is AS_PLANNED else value


def _check_rest(remaining: Sequence[Any], *, keep_rest: bool) -> None:  # Any: items of any type
    if keep_rest and len(remaining):
        raise ValueError("keep_rest=True keeps all items that are not consumed: leave remaining out")


AnyPlan: TypeAlias = "Plan[T] | ResumePlan[T]"
# Any, here and below: a read-only view of the items, which a plan may well call list[T] or Sequence[T]
PlanTurn: TypeAlias = Callable[
    [PlanContext[T], Any], "Plan[T] | ResumePlan[T] | Awaitable[Plan[T] | ResumePlan[T]] | Awaitable[Plan[T]]"
]
PrepareAgent: TypeAlias = Callable[
    [PlanContext[T], list[T]],
    "BaseAgent[Any, Any] | Awaitable[BaseAgent[Any, Any]]",  # Any: any agent
]
OnEvents: TypeAlias = Callable[[Turn[T], EventReader], object]
PlanResume: TypeAlias = Callable[
    [PlanContext[T], list[T], list[T], list[T]], "Plan[T] | ResumePlan[T] | Awaitable[Plan[T] | ResumePlan[T]]"
]


def one_message(ctx: PlanContext[T], items: Sequence[T]) -> Plan[T] | ResumePlan[T]:
    """The plan of `TurnLoop(agent)`: all waiting text becomes one message of one conversation.

    The message of a stopped turn is not said again: that turn continues, with the new text.
    """
    strangers = [item for item in items if not isinstance(item, str)]
    if strangers:
        raise TypeError(f"{strangers[0]!r} is no text: write TurnLoop(agent, plan=…) for items of other types")
    consumed = [item for item in items if str(item).strip()]
    if not consumed:
        return Plan(None, [])  # nothing was said
    if ctx.checkpoint is None:
        return Plan("\n".join(map(str, consumed)), consumed, history=ctx.history)
    said = list(map(id, ctx.said))
    new = [str(item) for item in consumed if not _named(said, item)]
    return ResumePlan(consumed, message="\n".join(new) or None)


def _named(said: list[int], item: object) -> bool:
    if id(item) not in said:
        return False
    said.remove(id(item))
    return True
