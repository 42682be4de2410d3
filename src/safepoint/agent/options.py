"""The options of one run: one list for `start`, `run`, `stream`, `resume` and the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypedDict

from safepoint._core.groups import CancelToken
from safepoint._core.ladder import Ladder
from safepoint.agent.budget import Budget
from safepoint.agent.freeze import Gate, Switch
from safepoint.agent.model import Model, ModelSettings
from safepoint.agent.session_protocol import SessionProtocol
from safepoint.history.parts import Message
from safepoint.tools.base import BaseTool
from safepoint.tools.context import DepsT

if TYPE_CHECKING:
    from safepoint.agent.run import Inherit, Run

Instructions: TypeAlias = str | Callable[["Run[DepsT, Any]"], "str | Awaitable[str]"]


class RunOptions(TypedDict, Generic[DepsT], total=False):
    """The options of one run, by name. Each may be left out; None means left out, except for `parent` and `deps`.

    `history`: the conversation so far, as `result.messages`; or `session`, where it is stored.
    `deps`: the dependencies of the agent's tools.
    `token`, `budget`, `ladder`: what stops the run, and how.
    `switch`: what freezes and thaws it, in place of the agent's; `switch.of(app=…, user=…)` says whose run it is.
    `parent`: the run that this one is part of. Inside a tool the default is the tool's own run; None detaches it.
    `model`, `settings`, `instructions`, `tools`: in place of the agent's own, for this run. Its fallback models, its
    hooks and the type of its output stay. An agent made of agents has none of these and refuses them.
    """

    history: Sequence[Message]
    session: SessionProtocol | None
    deps: DepsT
    token: CancelToken | None
    budget: Budget | None
    ladder: Ladder | None
    switch: Switch | Gate | None
    parent: Run[Any, Any] | Inherit | None  # Any: a run of any agent
    model: Model | str | None
    settings: ModelSettings | None
    instructions: Instructions[DepsT] | None
    tools: Sequence[BaseTool] | None


OF_A_MODEL = ("model", "settings", "instructions", "tools")


def check_names(options: Mapping[str, object]) -> None:
    """Refuse a misspelt option as Python refuses an unknown argument."""
    known = RunOptions.__annotations__
    if strangers := [name for name in options if name not in known]:
        raise TypeError(f"a run has no option {strangers[0]!r}: the options are {', '.join(known)}")
