"""Agents of other frameworks, run by Safepoint: the seam between a foreign loop and a run.

    ForeignAgent.carry_out(loop)      the framework's loop, one piece of work in a task of its own
         │ tells                            │ asks
         ▼                                  ▼
    loop.begin_model / say / think     each may wait for ever: the run is being stopped then, and the work is
    loop.end_model                     cancelled where it waits
    loop.call_tool  ─▶ a tool call of the run, in a task of its own: ladder, undo, time-out, ledger

The framework decides what happens next; Safepoint records it, and stops it. Nothing here knows any framework.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec import field

from safepoint._core.ladder import Ladder
from safepoint._core.points import SafePoint
from safepoint._values import Value
from safepoint.agent.base import BaseAgent
from safepoint.agent.budget import Budget
from safepoint.agent.foreign_driver import ForeignDriver
from safepoint.agent.foreign_loop import ForeignLoop, Outcome
from safepoint.agent.foreign_tool import ForeignTools
from safepoint.agent.hooks import Hooks
from safepoint.agent.options import OF_A_MODEL, RunOptions
from safepoint.agent.promises import Promises
from safepoint.agent.result import OutT, RunResult
from safepoint.agent.resume import Resume
from safepoint.agent.run_context import RunContext
from safepoint.errors import UsageError
from safepoint.tools.context import DepsT
from safepoint.tools.options import ToolOptions


class ForeignOptions(Value, frozen=True, kw_only=True):
    """What `adapt` was told beside the agent. `tools`: what the framework does not know about its tools, by name."""

    name: str
    tools: Mapping[str, ToolOptions] = field(default_factory=dict[str, ToolOptions])
    remote: Collection[str] = ()
    budget: Budget | None = None
    hooks: Sequence[Hooks] = ()
    ladder: Ladder | None = None


class ForeignAgent(BaseAgent[DepsT, OutT]):
    """An agent whose loop is another framework's. An adapter supplies `carry_out` and `promises`."""

    promises: Promises
    example = "adapt(agent, name='writer')"

    def __init__(self, options: ForeignOptions, *, tool_names: Iterable[str] = (), remote: Iterable[str] = ()) -> None:
        known = tuple(tool_names)
        tools = ForeignTools(known, options.tools, frozenset((*options.remote, *remote)))
        super().__init__(options.name, tools=tools, budget=options.budget, hooks=options.hooks, ladder=options.ladder)

    @abstractmethod
    async def carry_out(self, loop: ForeignLoop) -> Outcome:
        """Run the framework's loop over `loop.messages` to its end.

        Cancellation: the run is being stopped; let it through.
        """

    def for_run(self, options: RunOptions[DepsT]) -> BaseAgent[DepsT, OutT]:
        if given := [name for name in OF_A_MODEL if options.get(name) is not None]:
            raise UsageError(
                f"{self.name!r} is an agent of {self.promises.framework}, which chooses its {given[0]}: "
                f"give {given[0]}=… there"
            )
        return self

    def check_ask(self, at: SafePoint) -> None:
        refused = self.promises.unkept(at)
        if refused is not None:
            raise UsageError(refused)

    def check_steer(self) -> None:
        if not self.promises.steering:
            raise UsageError(
                f"{self.promises.framework} takes no message in the middle of a run: stop the run, and start the next "
                "one with history=result.messages"
            )

    def driver(self, record: RunContext, resume: Resume | None) -> ForeignDriver:
        return ForeignDriver(self, record, resume)

    def model_names(self) -> Iterable[str]:
        return ()

    def output_of(self, result: RunResult[Any]) -> OutT:  # Any: as it was stored
        return cast("OutT", self.value_of(result.text))

    def value_of(self, text: str) -> object:
        """The typed answer in the text of a finished run."""
        return text

    def __repr__(self) -> str:
        return f"<{self.promises.framework} agent {self.name!r}>"
