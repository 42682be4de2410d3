"""A tool of another framework, carried out by Safepoint: its ladder, effect, undo, time-out and ledger hold.

The framework says what the call does only when it makes the call. So such a tool is made for each call, and gets its
body from `ForeignLoop.call_tool`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

from safepoint._core.clock import current_clock
from safepoint._core.ladder import StopPolicy, WorkKind
from safepoint._values import Value
from safepoint.agent.tool_context import ToolContext
from safepoint.errors import UsageError
from safepoint.tools.base import BaseTool, ToolSpec
from safepoint.tools.context import CallContext
from safepoint.tools.options import OnCancel, ToolOptions

P = ParamSpec("P")
T = TypeVar("T")
Body = Callable[[Mapping[str, Any]], Awaitable[object]]  # Any: as the framework passes them

_ANYTHING = {"type": "object"}
_current: ContextVar[ToolContext[Any] | None] = ContextVar("safepoint_foreign_call", default=None)


class CallResult(Value, frozen=True):
    """What the framework is to take for a call that has no result of its own tool.

    It was cut alone, denied by a hook, timed out, or its result is known from the run that this one continues.
    """

    text: str
    failed: bool


def tool_context() -> ToolContext[Any]:
    """The context of the tool call that runs here, inside a tool of another framework: named points, shields, `tell`.

    It is what a tool of Safepoint's own takes as a parameter.
    """
    context = _current.get()
    if context is None:
        raise UsageError("tool_context() is for tools of an adapted agent: call it inside one, during a run")
    return context


def is_inside_call(run_id: str) -> bool:
    """Whether the caller runs inside a tool call of that run."""
    context = _current.get()
    return context is not None and context.run.id == run_id


async def in_call_thread(call: Callable[[], T]) -> T:
    """Run a plain function in a daemon thread that belongs to the tool call around it.

    Cancellation: ends the waiting; the thread is told by `tool_context().cancel_requested`.
    """
    return await asyncio.wrap_future(start_call_thread(call))


def start_call_thread(call: Callable[[], T]) -> concurrent.futures.Future[T]:
    """The same, for a framework that takes an executor. Call it in the task of the tool call.

    Until the thread ends, the call is stopped as a thread is: it is told, and abandoned if it does not listen.
    """
    context, loop = _current.get(), asyncio.get_running_loop()
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    inside = copy_context()
    clock = current_clock()
    outside = clock.outside("thread")
    work = context.work if context is not None else None
    before = work.stop_policy if work is not None else None

    def body() -> None:
        try:
            value = inside.run(call)
        except BaseException as error:  # it belongs to the caller, not to the thread's excepthook
            report(None, error)
        else:
            report(value, None)

    def report(value: T | None, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:  # the loop was closed while the thread ran on
            if work is not None and work.orphan is not None:
                work.orphan.ended_late(error) if error is not None else work.orphan.returned_late(value)
        finally:
            outside.done()

    def settle(value: T | None, error: BaseException | None) -> None:
        if work is not None and before is not None:
            work.stop_policy = before
        if not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(cast("T", value))
        else:
            future.set_exception(error)

    thread = threading.Thread(target=body, name="safepoint:thread of a tool", daemon=True)
    if work is not None and before is not None:
        work.stop_policy, work.thread = StopPolicy(WorkKind.THREAD, before.finish, before.grace), thread
        flag = work.on_flag

        def flag_and_count() -> None:
            flag()
            outside.flagged()

        work.on_flag = flag_and_count
    thread.start()
    return future


class CallThreads(concurrent.futures.Executor):
    """An executor whose threads belong to the tool calls that use it."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        return start_call_thread(partial(fn, *args, **kwargs))


class ForeignTool(BaseTool):
    """A tool of the framework, for one call."""

    def __init__(self, name: str, options: ToolOptions, *, remote: bool) -> None:
        self.spec = ToolSpec(name, "", _ANYTHING)
        self.options = options
        self.remote = remote
        self.perform: Body | None = None
        # What the framework's own tool returned or raised: it gets that back, and the ledger has it as text.
        self.value: object = None
        self.error: Exception | None = None
        self.has_value = False
        self.render: Callable[[object], object] = _as_it_is

    @property
    def stop_policy(self) -> StopPolicy:
        return StopPolicy(WorkKind.TASK, finish=self.options.on_cancel is OnCancel.FINISH, grace=self.options.grace)

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: the framework has checked them
        return dict(args)

    async def body(self, context: CallContext[Any], args: dict[str, Any]) -> object:
        """Cancellation: cuts the framework's tool."""
        assert isinstance(context, ToolContext), "the call is made by a run"
        assert self.perform is not None, "the framework has made the call"
        token = _current.set(context)
        try:
            self.value = await self.perform(args)
        except Exception as error:
            self.error = error
            raise
        finally:
            _current.reset(token)
        self.has_value = True
        return self.render(self.value)

    def undo(self, context: CallContext[Any], args: dict[str, Any]) -> Awaitable[object]:
        assert self.options.undo is not None
        return self.options.undo(**args)


class ForeignTools(Mapping[str, BaseTool]):
    """The tools of an adapted agent by name: each lookup makes the tool for one call.

    Frameworks offer tools that depend on the moment, so a name that is not known beforehand is a tool too.
    """

    def __init__(self, names: tuple[str, ...], options: Mapping[str, ToolOptions], remote: frozenset[str]) -> None:
        self._names = names
        self._options = options
        self._remote = remote
        self._otherwise = ToolOptions()

    def __getitem__(self, name: str) -> ForeignTool:
        return ForeignTool(name, self._options.get(name, self._otherwise), remote=name in self._remote)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _as_it_is(value: object) -> object:
    return value
