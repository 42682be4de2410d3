"""A tool of Safepoint's as an async function, for any async program or framework.

The tool keeps what makes it stop well: a cancelled caller stops it by its ladder, so a thread is told, a process and
everything below it is killed, and an undo runs. The caller gets its cancellation back when that is over, in bounded
time. What a run adds is missing: no ledger, no named safe points, no person to ask.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextvars import copy_context
from typing import Any, get_type_hints

from safepoint._core.endings import Ending
from safepoint._core.holds import Stay
from safepoint._core.ladder import Ladder
from safepoint._core.latch import Latch
from safepoint._core.supervisor import Supervisor
from safepoint._core.tree import Node
from safepoint._core.work import Cut, Failed, Returned, Work
from safepoint.errors import AskPerson, StopTool, ToolDefinitionError, UsageError
from safepoint.tools.base import BaseTool
from safepoint.tools.context import CallContext
from safepoint.tools.function import Tool

_TYPES: Mapping[str, object] = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list}


def as_callable(
    tool: BaseTool, *, deps: object = None, ladder: Ladder | None = None
) -> Callable[..., Coroutine[Any, Any, Any]]:  # Any: as the tool is declared
    """The tool as an async function with the same name, description and parameters, without the context.

    `deps` are what its context has. Its `timeout` raises `TimeoutError`.
    Cancellation: the tool is stopped by its ladder, awaited as long as that allows, and then it is raised.
    """
    if not isinstance(tool, BaseTool):  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped callers
        raise ToolDefinitionError(f"{tool!r} is not a tool: write @tool above the function")
    signature = _signature(tool)

    async def call(*args: Any, **kwargs: Any) -> Any:  # Any: as above
        bound = signature.bind(*args, **kwargs)
        return await _Call(tool, deps, ladder or tool.ladder or Ladder()).make(bound.arguments)

    call.__name__ = call.__qualname__ = tool.name
    call.__doc__ = tool.spec.description
    call.__signature__ = signature  # type: ignore[attr-defined]  # what `inspect` reads
    kinds = {each.name: each.annotation for each in signature.parameters.values()}
    call.__annotations__ = kinds | {"return": signature.return_annotation}
    return call


class _Call:
    """One call without a run: the owner of its context."""

    def __init__(self, tool: BaseTool, deps: object, ladder: Ladder) -> None:
        self._tool = tool
        self._ladder = ladder
        self._supervisor = Supervisor.current()
        self._over = Latch()
        call_id = f"call_{uuid.uuid4().hex}"
        self._node = Node(call_id, tool.name, "tool_call", propagation=tool.propagation)
        self._context = CallContext(deps=deps, call_id=call_id, node=self._node, ladder=ladder)
        self._cancelled: asyncio.CancelledError | None = None

    async def make(self, arguments: Mapping[str, Any]) -> object:  # Any: typed by the tool
        """Cancellation: as for `as_callable`."""
        args = self._tool.validate(arguments)
        self._supervisor.enrol(self._node)
        work = self._prepare(self._tool.name)
        work.stop_policy = self._tool.stop_policy
        self._context.bind(work, self)
        clock, seconds = self._supervisor.clock, self._tool.options.timeout
        if seconds is not None:
            work.stop_at(clock.now() + seconds)
        try:
            self._supervisor.start(work, lambda: self._tool.body(self._context, args), copy_context())
            await self._end_of(work)
            if not isinstance(work.outcome, Returned | Failed) and self._tool.options.undo is not None:
                await self._undo(args)
        finally:
            self._node.seal()
            self._node.finish(Ending(self._cancelled is not None, clock.wall()))
        return self._result(work, seconds)

    def _prepare(self, name: str, limit: float | None = None) -> Work[object]:
        work: Work[object] = self._supervisor.prepare(
            name=name, path=self._node.path, ladder=self._ladder, on_end=self._over.set, limit=limit
        )
        return work

    async def _undo(self, args: dict[str, Any]) -> None:  # Any: as above
        """Cancellation: kept until the undo has ended."""
        self._over = Latch()
        work = self._prepare(f"undo of {self._tool.name}", self._ladder.undo)
        self._supervisor.start(work, lambda: self._tool.undo(self._context, args), copy_context())
        await self._end_of(work, stops=False)

    async def _end_of(self, work: Work[object], *, stops: bool = True) -> None:
        """Wait for its end, which is bounded once it is being stopped. Cancellation: stops it, and is kept."""
        while not work.ended:
            try:
                await self._over.wait()
            except asyncio.CancelledError as error:
                self._cancelled = error
                if stops:
                    work.stop()

    def _result(self, work: Work[object], seconds: float | None) -> object:
        if self._cancelled is not None:
            raise self._cancelled
        match work.outcome:
            case Returned(value):
                return value
            case Failed(error) if isinstance(error, AskPerson | StopTool):
                raise UsageError(f"{self._tool.name!r} asked for its run, and as_callable(…) has none") from error
            case Failed(error):
                raise error
            case Cut(error):
                raise TimeoutError(f"{self._tool.name} timed out after {seconds:g} s") from error
            case _:
                raise TimeoutError(f"{self._tool.name} timed out after {seconds:g} s, and still runs")

    # -- as the owner of the context -----------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        """No reader is there."""

    async def remember(self) -> None:
        """Nothing is stored. Cancellation: none, it does not wait."""

    def places_at(self, place: str) -> tuple[str, ...]:
        return (place,)

    def held(self, stay: Stay) -> None:
        """Nothing holds a call without a run."""


def _signature(tool: BaseTool) -> inspect.Signature:
    if isinstance(tool, Tool):
        function: Callable[..., Any] = tool.function  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # of any signature
        signature, hints = inspect.signature(function), get_type_hints(function)
        kept = [
            each.replace(annotation=hints.get(each.name, each.annotation))
            for each in signature.parameters.values()
            if each.name != tool.signature.context_parameter
        ]
        return signature.replace(parameters=kept, return_annotation=hints.get("return", Any))
    schema = tool.spec.parameters
    required = set(schema.get("required", ()))
    made = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if name in required else None,
            annotation=_TYPES.get(str(described.get("type")), Any),
        )
        for name, described in schema.get("properties", {}).items()
    ]
    return inspect.Signature(made, return_annotation=Any)
