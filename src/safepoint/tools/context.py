"""What a tool call may know and do while it runs: its dependencies, and whether it is being stopped.

Tool functions take its subclass `ToolContext` (in `agent`), which also knows the run. The tools in this package need no
run, so that `tools` does not import `agent`.
"""

from __future__ import annotations

import concurrent.futures
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Generic

from typing_extensions import TypeVar  # TypeVar defaults; pydantic brings it along

from safepoint._core.ladder import Ladder, Rung
from safepoint._core.points import NAMED, Level, SafePoint
from safepoint._core.tree import Node
from safepoint._core.work import Work, WorkState
from safepoint.errors import AskPerson, StopTool, UsageError
from safepoint.tools.call_state import CallState

DepsT = TypeVar("DepsT", default=None)

_TOLD_TO_STOP = frozenset({Rung.CANCEL, Rung.FLAG, Rung.ASK, Rung.TERM, Rung.KILL})


class CallContext(Generic[DepsT]):
    """The part of a `ToolContext` that belongs to one call.

    Everything but `shield` and `safe_point` is safe in threads too.
    """

    __tool_context__: ClassVar[bool] = True

    def __init__(
        self,
        *,
        deps: DepsT,
        call_id: str,
        node: Node,
        ladder: Ladder,
        memory: CallState | None = None,
    ) -> None:
        self.deps = deps
        self.call_id = call_id
        self.node = node
        self.memory = memory or CallState()
        self._ladder = ladder
        self._asked = 0
        self._work: Work[object] | None = None
        self._tell: Callable[[str], None] | None = None
        self._save: Callable[[], Awaitable[None]] | None = None

    @property
    def work(self) -> Work[object]:
        assert self._work is not None, "the context is bound before the tool's first line"
        return self._work

    def bind(
        self,
        work: Work[object],
        tell: Callable[[str], None] | None,
        save: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`save` makes what the call remembers outlive the process, if there is a place for that."""
        self._work, self._tell, self._save = work, tell, save

    def tell(self, text: str) -> None:
        """Show what the call has done so far, to whoever reads the run's events: `ToolOutputStreamed`. Never waits.

        The model does not see it.
        """
        if self._tell is None:
            raise UsageError("ctx.tell(…) shows what a tool call has done, and a hook is no call: log it instead")
        if self.node.runs_in_this_thread():
            self._tell(text)
        else:
            self.node.call_soon(partial(self._tell, text))

    @property
    def cancel_requested(self) -> bool:
        """This call is to stop now: return, or raise, as soon as you can. A safe-point ask does not set it."""
        work = self.work
        return work.state is WorkState.ABANDONED or work.rung in _TOLD_TO_STOP

    def check(self) -> None:
        """Leave the tool right here if it is to stop now."""
        if self.cancel_requested:
            raise StopTool()

    async def safe_point(self, name: str, save: object = None) -> None:
        """A place where this tool can stop without losing anything; a standing ask for it leaves the tool right here.

        `save` is kept for the call that continues it. Cancellation: as for any await; the point itself does not wait.
        """
        if not self.node.runs_in_this_thread():
            raise UsageError("safe_point() is for the run's own event loop: write ctx.safe_point_sync(…) in a thread")
        self._stop_at(name, save)

    def safe_point_sync(self, name: str, save: object = None) -> None:
        """`safe_point` for a tool that runs in a thread: the loop decides, this thread waits for its word."""
        decided: concurrent.futures.Future[None] = concurrent.futures.Future()

        def decide() -> None:
            try:
                self._stop_at(name, save)
            except StopTool as stop:
                decided.set_exception(stop)
            else:
                decided.set_result(None)

        if self.node.runs_in_this_thread():
            raise UsageError("safe_point_sync() is for threads: write `await ctx.safe_point(…)` here")
        if not self.node.call_soon(decide):
            raise StopTool(name, save)  # the loop is gone: nobody waits for this tool any more
        decided.result()

    def _stop_at(self, name: str, save: object) -> None:
        SafePoint.named(name)  # refuses an empty name
        if self.work.state is WorkState.ENDED:
            return  # a task that the call has left behind: nothing can be asked of the call any more
        if self.work.state is WorkState.ABANDONED or self.node.check_safe_point(NAMED + name) is not None:
            raise StopTool(name, save)

    @property
    def saved(self) -> Any:  # Any: whatever the tool itself saved
        """What this call saved at the safe point where it stopped, if it continues; None otherwise."""
        return self.memory.saved

    async def interrupt(self, payload: object) -> Any:  # Any: whatever the person answers
        """Ask a person. The run ends `interrupted`; resumed with the answer, this call runs again and gets it here.

        Interrupts of one call match their answers by order. Cancellation: the question does not wait.
        """
        return self.interrupt_sync(payload)

    def interrupt_sync(self, payload: object) -> Any:  # Any: as above
        """`interrupt` for a tool that runs in a thread."""
        number, self._asked = self._asked, self._asked + 1
        if number < len(self.memory.answers):
            return self.memory.answers[number]
        raise AskPerson(payload)

    async def once(self, key: str, function: Callable[[], Any]) -> Any:  # Any: whatever the function returns
        """Call the function, sync or async, the first time only; a call that continues gets the same value again.

        In a session the value is stored before this returns. Cancellation: lands in the function, which counts as not
        done; or in the storing, and then it counts as done.
        """
        if key not in self.memory.once:
            value = function()
            self.memory.once[key] = await value if inspect.isawaitable(value) else value
            if self._save is not None:
                await self._save()
        return self.memory.once[key]

    def shield(self, max_seconds: float) -> Shield:
        """`async with ctx.shield(2):` a critical section that NOW does not cut, for at most that long."""
        if not self.node.runs_in_this_thread():
            raise UsageError(
                "ctx.shield(…) is for the run's own event loop: a thread is never cut; write @tool(grace=…) to have it "
                "waited for longer"
            )
        return Shield(self.work, self._ladder.bound(max_seconds, f"ctx.shield({max_seconds!r})"))

    @property
    def level(self) -> Level:
        """How hard this call is being pushed."""
        return self.node.pushed


class Shield:
    """A bounded critical section. A stop that came meanwhile lands on the first wait after it.

    Not where the section ends: a value that is returned from inside would be lost there, and it is a real result.
    """

    def __init__(self, work: Work[object], seconds: float) -> None:
        self._work = work
        self._seconds = seconds
        self._until = 0.0

    async def __aenter__(self) -> None:
        """Cancellation: there is nothing to wait for."""
        self._until = self._work.shield(self._seconds)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancellation: there is nothing to wait for."""
        self._work.unshield(self._until)
