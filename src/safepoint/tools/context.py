"""What a tool call can use while it runs: its dependencies, and whether it is being stopped.

Tool functions take its subclass `ToolContext` (in `agent`), which also knows the run. The tools in this package need no
run, so that `tools` does not import `agent`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol

from typing_extensions import TypeVar  # TypeVar defaults; pydantic brings it along

from safepoint._core.holds import Stay
from safepoint._core.ladder import Ladder, Rung
from safepoint._core.points import HELD, NAMED, Level, SafePoint
from safepoint._core.tree import Node
from safepoint._core.work import Work, WorkState
from safepoint.errors import AskPerson, StopTool, UsageError
from safepoint.tools.call_state import CallState

DepsT = TypeVar("DepsT", default=None)

_TOLD_TO_STOP = frozenset({Rung.CANCEL, Rung.FLAG, Rung.RAISE, Rung.ASK, Rung.TERM, Rung.KILL})


class CallOwner(Protocol):
    """What a context needs of the call, or of the hook, that it is made for."""

    def tell(self, text: str) -> None:
        """Show progress."""
        ...

    async def remember(self) -> None:
        """Store the call's state, if there is a journal. Cancellation: it is written whole or not."""
        ...

    def places_at(self, place: str) -> tuple[str, ...]:
        """This place, and every condition that holds there."""
        ...

    def held(self, stay: Stay) -> None:
        """The call waits at a point of its own, until the stay is over."""
        ...


class CallContext(Generic[DepsT]):
    """The part of a `ToolContext` that belongs to one call.

    Everything except `shield` and `safe_point` is safe in threads too.
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
        self._owner: CallOwner | None = None

    @property
    def work(self) -> Work[object]:
        assert self._work is not None, "the context is bound before the tool's first line"
        return self._work

    def bind(self, work: Work[object], owner: CallOwner) -> None:
        self._work, self._owner = work, owner

    @property
    def owner(self) -> CallOwner:
        assert self._owner is not None, "as above"
        return self._owner

    def tell(self, text: str) -> None:
        """Show progress to the readers of the run's events, as `ToolOutputStreamed`. Never waits.

        The model does not see it.
        """
        if not self.call_id:
            raise UsageError("ctx.tell(…) shows what a tool call has done, and a hook is no call: log it instead")
        if self.node.runs_in_this_thread():
            self.owner.tell(text)
        else:
            self.node.call_soon(partial(self.owner.tell, text))

    @property
    def cancel_requested(self) -> bool:
        """Whether this call must stop now: return or raise as soon as you can. A safe-point ask does not set it."""
        work = self.work
        return work.state is WorkState.ABANDONED or work.rung in _TOLD_TO_STOP

    def check(self) -> None:
        """Leave the tool here if it must stop now."""
        if self.cancel_requested:
            raise StopTool()

    async def safe_point(self, name: str, save: object = None) -> None:
        """A place where this tool can stop without losing anything; if an ask for it stands, the tool ends here.

        If the run is held at this point, the tool waits here until it is released. `save` is kept for the call that
        continues it. Cancellation: a held tool stops here and loses nothing; the point itself does not wait.
        """
        if not self.node.runs_in_this_thread():
            raise UsageError("safe_point() is for the run's own event loop: write ctx.safe_point_sync(…) in a thread")
        places = self._reach(name)
        self._stop_at(places, name, save)
        while (stay := self._stand(places)) is not None:
            try:
                await stay.over.wait()
            except asyncio.CancelledError:
                if not self.cancel_requested:
                    raise
                raise StopTool(name, save) from None
            self._stop_at((*places, HELD), name, save)

    def safe_point_sync(self, name: str, save: object = None) -> None:
        """`safe_point` for a tool that runs in a thread: the loop decides, and this thread waits for the decision."""
        decided: concurrent.futures.Future[None] = concurrent.futures.Future()

        def decide(places: tuple[str, ...] = ()) -> None:
            try:
                places = places or self._reach(name)
                self._stop_at(places, name, save)
            except StopTool as stop:
                decided.set_exception(stop)
            else:
                stay = self._stand(places)
                if stay is None:
                    decided.set_result(None)
                else:
                    stay.over.when_set(lambda: self.node.call_soon(partial(decide, (*places, HELD))))

        if self.node.runs_in_this_thread():
            raise UsageError("safe_point_sync() is for threads: write `await ctx.safe_point(…)` here")
        if not self.node.call_soon(decide):
            raise StopTool(name, save)  # the event loop is closed: no run waits for this tool any more
        decided.result()

    def _reach(self, name: str) -> tuple[str, ...]:
        """The places where this call now stands: its own point, and every condition that holds there."""
        SafePoint.named(name)  # refuses an empty name
        return self.owner.places_at(NAMED + name)

    def _stop_at(self, places: tuple[str, ...], name: str, save: object) -> None:
        """Leave the tool here if it was asked to; where it was held, every request stops it."""
        if self.work.state is WorkState.ENDED:
            return  # a task left over from an ended call, which takes no asks
        for place in places:
            self.node.check_safe_point(place)
        if self.work.state is WorkState.ABANDONED or self.node.stop is not None:
            raise StopTool(name, save)

    def _stand(self, places: tuple[str, ...]) -> Stay | None:
        """The wait for a hold, if one stands for this point. Tasks of one tool may share it."""
        began = self.node.stay is None
        stay = self.node.stand(*places)
        if stay is not None and began:
            self.owner.held(stay)
        return stay

    @property
    def saved(self) -> Any:  # Any: the tool's own value
        """The value that this call saved at the safe point where it stopped, if it continues; None otherwise."""
        return self.memory.saved

    async def interrupt(self, payload: object) -> Any:  # Any: the person's answer
        """Ask a person. The run ends `interrupted`; on resume with the answer, this call runs again and gets it here.

        Interrupts of one call match their answers by order. Cancellation: the question itself does not wait.
        """
        return self.interrupt_sync(payload)

    def interrupt_sync(self, payload: object) -> Any:
        """`interrupt` for a tool that runs in a thread."""
        number, self._asked = self._asked, self._asked + 1
        if number < len(self.memory.answers):
            return self.memory.answers[number]
        raise AskPerson(payload)

    async def once(self, key: str, function: Callable[[], Any]) -> Any:  # Any: the function's own result
        """Call the function, sync or async, the first time only; a call that continues gets the same value again.

        In a session the value is stored before this returns. Cancellation: if it lands in the function, the function
        counts as not done; if it lands in the storing, it counts as done.
        """
        if key not in self.memory.once:
            value = function()
            self.memory.once[key] = await value if inspect.isawaitable(value) else value
            await self.owner.remember()
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
        """How hard this call is being pushed to stop."""
        return self.node.pushed


class Shield:
    """A bounded critical section. A stop that arrives meanwhile lands on the first wait after the section.

    It does not land where the section ends: a value returned from inside would be lost there, and it is a real result.
    """

    def __init__(self, work: Work[object], seconds: float) -> None:
        self._work = work
        self._seconds = seconds
        self._until = 0.0

    async def __aenter__(self) -> None:
        """Begin the section. Never waits. Cancellation: the section has not begun."""
        self._until = self._work.shield(self._seconds)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the section. Never waits. Cancellation: lands on the first wait after it."""
        self._work.unshield(self._until)
