"""`@tool`: a typed function that a model may call. The function stays callable as before."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar, cast, overload

from typing_extensions import Unpack  # pydantic brings it along

from safepoint._core.ladder import Ladder, StopPolicy, WorkKind
from safepoint._core.threads import in_thread
from safepoint.errors import ToolDefinitionError
from safepoint.tools.base import BaseTool, ToolSpec
from safepoint.tools.context import CallContext
from safepoint.tools.options import (
    DEFAULT_GRACE_CAP,
    EffectLike,
    OnCancel,
    OnCancelLike,
    RunIn,
    RunInLike,
    ToolOptions,
    Undo,
)
from safepoint.tools.process import ProcessTarget, check_platform
from safepoint.tools.signature import Signature
from safepoint.tools.tool_function import ToolFunction

P = ParamSpec("P")
R = TypeVar("R")

_KINDS = {RunIn.ASYNC: WorkKind.TASK, RunIn.THREAD: WorkKind.THREAD, RunIn.PROCESS: WorkKind.PROCESS}


class Options(TypedDict, total=False):
    """The options of `@tool(…)`."""

    name: str
    description: str
    effect: EffectLike
    on_cancel: OnCancelLike
    grace: float
    timeout: float
    undo: Undo
    run_in: RunInLike
    final: bool
    raise_in_thread: bool
    ladder: Ladder


class Tool(BaseTool, Generic[P, R]):
    """A function as a tool."""

    def __init__(self, function: Callable[P, R], **options: Unpack[Options]) -> None:
        _check_options(options)
        name, description = options.pop("name", None), options.pop("description", None)
        self.ladder = options.pop("ladder", None)
        _check_kinds(name, description, self.ladder)
        self.signature = Signature.of(function, name=name)
        declared = ToolOptions.parse(**cast("dict[str, Any]", options))  # Any: `parse` checks each value
        self.options: ToolOptions = declared.placed_for(self.signature.name, is_async=self.signature.is_async)
        self.options.check_grace(self.ladder.cap if self.ladder else DEFAULT_GRACE_CAP)
        kind = _KINDS[self.options.run_in or RunIn.ASYNC]
        finish, grace = self.options.on_cancel is OnCancel.FINISH, self.options.grace
        self._stop_policy = StopPolicy(kind, finish=finish, grace=grace, raises=self.options.raise_in_thread)
        self._check_undo(function)
        self.spec = ToolSpec(self.signature.name, description or self.signature.description, self.signature.parameters)
        self.function = function
        self._place: ProcessTarget | None = None
        if self.options.run_in is RunIn.PROCESS:
            check_platform()
            label, takes_context = ToolFunction(function).label, self.signature.context_parameter is not None
            self._place = ProcessTarget.of(label, function, context=takes_context)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def stop_policy(self) -> StopPolicy:
        return self._stop_policy

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: decoded JSON in, typed values out
        return self.signature.validate(args)

    def body(self, context: CallContext[Any], args: dict[str, Any]) -> Awaitable[object]:
        if self._place is not None:
            from safepoint.tools.process_call import in_process

            return in_process(context.work, self._place, args, context.node.clock)
        function: Callable[..., Any] = self.function  # Any: its result, which an async function returns later
        arguments = self._with_context(context, args)
        if self.options.run_in is RunIn.THREAD:
            return in_thread(context.work, partial(function, **arguments), context.node.clock)
        made: Awaitable[object] = function(**arguments)
        return made

    def undo(self, context: CallContext[Any], args: dict[str, Any]) -> Awaitable[object]:
        """The compensation of a cut call, with the same arguments."""
        assert self.options.undo is not None
        return self.options.undo(**self._with_context(context, args))

    def _check_undo(self, function: Callable[P, R]) -> None:
        """Refuse a compensation that cannot be called when it is declared, not when it is needed."""
        undo = self.options.undo
        if undo is None:
            return
        names = [parameter.name for parameter in ToolFunction(function).parameters()]
        try:
            inspect.signature(undo).bind(**dict.fromkeys(names))
        except TypeError as problem:
            raise ToolDefinitionError(
                f"undo={getattr(undo, '__name__', undo)} is called with the arguments of {self.signature.name}(), by "
                f"name, and can't be: {problem}; write `async def` with the parameters ({', '.join(names)})"
            ) from problem

    def _with_context(self, context: CallContext[Any], args: dict[str, Any]) -> dict[str, Any]:
        if self.signature.context_parameter is None:
            return args
        return {**args, self.signature.context_parameter: context}


def _check_options(options: Mapping[str, object]) -> None:
    if strange := next((option for option in options if option not in Options.__annotations__), None):
        raise ToolDefinitionError(
            f"@tool({strange}=…): there is no such option; write one of {', '.join(Options.__annotations__)}"
        )


def _check_kinds(name: object, description: object, ladder: object) -> None:
    for option, value in (("name", name), ("description", description)):
        if not isinstance(value, str | None):
            raise ValueError(f"{option}={value!r} is not a str; write {option}='…', or leave {option} out")
    if not isinstance(ladder, Ladder | None):
        raise ValueError(f"ladder={ladder!r}: write ladder=Ladder(…), or leave ladder out")


@overload
def tool(function: Callable[P, R], /, **options: Unpack[Options]) -> Tool[P, R]: ...
@overload
def tool(**options: Unpack[Options]) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Callable[P, R] | None = None, /, **options: Unpack[Options]) -> object:
    """Turn a typed function into a tool; `@tool`, `@tool(effect="pure", timeout=5)` or `tool(function, name="x")`."""
    if isinstance(function, str):
        raise ToolDefinitionError(f"@tool({function!r}): options have names; write @tool(name={function!r})")
    if isinstance(function, BaseTool):
        raise ToolDefinitionError(f"{function!r} is a tool already: write @tool once, with all its options")
    if function is not None:
        return Tool(function, **options)

    def decorate(function: Callable[P, R]) -> Tool[P, R]:
        return Tool(function, **options)

    return decorate
