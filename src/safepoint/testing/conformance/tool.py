"""`check_tool`: what every tool has to do, so that a run that uses it can be stopped at any moment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from safepoint.agent.agent import Agent
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.result import RunResult
from safepoint.history.check import TOOL_NAME
from safepoint.history.rendering import render_result
from safepoint.history.states import LedgerState
from safepoint.testing.clock import VirtualLoop
from safepoint.testing.conformance.cutting import Cut, cuts
from safepoint.testing.conformance.rules import Rules
from safepoint.testing.frames import describe
from safepoint.testing.leak_checks import Outside
from safepoint.testing.models import ScriptedModel, call, say
from safepoint.tools.bad_arguments import BadArguments
from safepoint.tools.base import BaseTool
from safepoint.tools.content import Content, content_of
from safepoint.tools.context import CallContext

# A tool, arguments that fit it, and a way to call it in a run: once, twice at once, or cut at one of its waits.

MakeTool: TypeAlias = Callable[[], BaseTool]
Args: TypeAlias = Mapping[str, Any]  # Any: JSON
_SETTLING = 10


@dataclass(slots=True)
class Seen:
    """The observations of a run with calls of the tool."""

    result: RunResult[Any]  # Any: of no particular type
    values: list[object] = field(default_factory=list[object])

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        return self.result.ledger

    @property
    def was_cut(self) -> bool:
        return any(entry.state not in (LedgerState.FINISHED, LedgerState.FAILED) for entry in self.entries)


@dataclass(frozen=True, slots=True)
class ToolCase:
    """The arguments of `check_tool`."""

    make: MakeTool
    args: Args
    bad: Sequence[Args] = ()
    deps: Any = None  # Any: the user's own type
    oracles: Sequence[Callable[[], object]] = ()

    async def call(self, tool: BaseTool, *, times: int = 1, cut: Cut | None = None) -> Seen:
        """A run that calls the tool this many times at once, stopped NOW at the cut. Cancellation: stops the run."""
        values: list[object] = []
        calls = [call(tool.name, self.args) for _ in range(times)]
        watched = _watched(tool, values, cut, lambda: run.cancel(reason="check_tool"))
        agent: Agent[Any, Any] = Agent("check_tool", model=ScriptedModel(calls, say("Done.")), tools=[watched])
        async with agent.start("Go.", deps=self.deps) as run:
            pass
        return Seen(run.result, values)

    async def cut_everywhere(self, then: Callable[[BaseTool, Seen, Cut], Coroutine[Any, Any, None]]) -> None:
        """Cut a call at each wait of the tool, in each moment. Cancellation: stops the current run."""
        for cut in cuts():
            tool = self.make()
            seen = await self.call(tool, cut=cut)
            if not cut.reached:
                return
            if cut.landed or seen.was_cut:  # the call may have ended by itself at the same moment
                await then(tool, seen, cut)


def _watched(tool: BaseTool, values: list[object], cut: Cut | None, act: Callable[[], object]) -> BaseTool:
    """The same tool, wrapped to record what it returns and to act at one of its waits."""
    watched = copy(tool)

    async def body(context: CallContext[Any], args: dict[str, Any]) -> object:  # Any: as in BaseTool
        inner: Awaitable[object] = tool.body(context, args)
        values.append(await (inner if cut is None else cut.watch(inner, act)))
        return values[-1]

    vars(watched)["body"] = body
    return watched


async def left_in_loop() -> list[str]:
    """Tasks and connections besides the calling one. Cancellation: only the check ends."""
    loop, this_task = asyncio.get_running_loop(), asyncio.current_task()
    for _ in range(_SETTLING):
        if asyncio.all_tasks() == {this_task}:
            break
        await asyncio.sleep(0)
    left = [f"a task is left: {describe(task)}" for task in asyncio.all_tasks() if task is not this_task]
    fds = loop.open_fds() if isinstance(loop, VirtualLoop) else []
    return left + [f"a connection is left: file descriptor {fd}" for fd in fds]


_NO_NAME = "no_parameter_has_this_name"
# For each JSON type, a value of another type.
_WRONG: dict[object, object] = {"string": [], "integer": "x", "number": "x", "boolean": [], "array": 7, "object": 7}

RULES: Rules[ToolCase] = Rules()


def check_tool(
    make: MakeTool,
    args: Args,
    *,
    bad: Sequence[Args] = (),
    deps: Any = None,  # Any: the user's own type
    oracles: Sequence[Callable[[], object]] = (),
    virtual: bool = True,
) -> None:
    """Hold a tool to every rule, and raise one AssertionError that lists the rules it breaks.

    `make` returns the tool each time, `args` are arguments with which a call succeeds, `bad` are some that must be
    refused, `deps` goes to its context. `oracles` are plain functions that raise AssertionError; they are called after
    each call, finished or cut, to check that it released its resources. `virtual=False`: for a tool that needs real
    time.
    """
    RULES.hold("tool", ToolCase(make, args, bad, deps, oracles), virtual=virtual)


# -- its face --------------------------------------------------------------------------------------------------------


@RULES.rule("a model can be told what it is", "a name of 1 to 64 of A-Z a-z 0-9 _ -, and a docstring or description")
async def _face(case: ToolCase) -> None:
    spec = case.make().spec
    assert TOOL_NAME.fullmatch(spec.name), f"its name is {spec.name!r}"
    assert spec.description.strip(), "its description is empty"


@RULES.rule(
    "its parameters are a JSON schema of an object", "write type hints that pydantic can describe; see tool.spec"
)
async def _schema(case: ToolCase) -> None:
    parameters = case.make().spec.parameters
    try:
        json.dumps(dict(parameters), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"it can't be written as JSON: {error}") from error
    assert parameters.get("type") == "object", f"its type is {parameters.get('type')!r}"
    properties: object = parameters.get("properties", {})
    assert isinstance(properties, Mapping), f"its properties are {properties!r}"
    required: object = parameters.get("required", [])
    assert isinstance(required, list), f"what is required is {required!r}"
    strangers = [name for name in required if name not in properties]  # pyright: ignore[reportUnknownVariableType]  # just looked at
    assert not strangers, f"it requires {strangers!r}, which are no properties"


@RULES.rule("arguments that fit are taken as they are", "validate() returns them typed, and changes nothing in place")
async def _interrupted(case: ToolCase) -> None:
    args = deepcopy(dict(case.args))
    try:
        case.make().validate(args)
    except BadArguments as error:
        raise AssertionError(f"{case.args!r} was refused: {error}") from error
    assert args == case.args, f"validate() has made {args!r} of {case.args!r}"


@RULES.rule(
    "arguments that do not fit are refused",
    "raise BadArguments in validate() for what is missing, unknown or of another type: the model can act on its text",
)
async def _refused(case: ToolCase) -> None:
    tool = case.make()
    for why, args in [*_misfits(tool, case.args), *(("which was given as bad", args) for args in case.bad)]:
        try:
            tool.validate(args)
        except BadArguments as error:
            _check_told(error, f"{args!r} ({why})")
        except Exception as error:
            raise AssertionError(f"{args!r} ({why}) raised {error!r}, not BadArguments") from error
        else:
            raise AssertionError(f"{args!r} ({why}) was taken")


def _check_told(error: BadArguments, what: str) -> None:
    assert str(error).strip(), f"{what} was refused without a word"


def _misfits(tool: BaseTool, args: Args) -> list[tuple[str, Args]]:
    """Arguments that its own schema does not allow."""
    parameters = tool.spec.parameters
    properties: Mapping[str, Mapping[str, Any]] = parameters.get("properties", {})  # Any: JSON
    found: list[tuple[str, Args]] = []
    for name in parameters.get("required", []):
        found.append((f"{name} is missing", {key: value for key, value in args.items() if key != name}))
    for name, schema in properties.items():
        wrong = _WRONG.get(schema.get("type"))
        if wrong is not None:
            found.append((f"{name} is no {schema['type']}", {**args, name: wrong}))
    if parameters.get("additionalProperties") is False:
        found.append((f"{_NO_NAME} is unknown", {**args, _NO_NAME: 1}))
    return found


# -- a call ----------------------------------------------------------------------------------------------------------


@RULES.rule("a call gives a result", "the arguments that you pass to check_tool have to be such that a call succeeds")
async def _result(case: ToolCase) -> None:
    _check_finished(await case.call(case.make()), "a call")


@RULES.rule("a result can be sent as it is", "return text, or values that have a JSON form, below 200,000 characters")
async def _sendable(case: ToolCase) -> None:
    for value in (await case.call(case.make())).values:
        if isinstance(value, RunResult):  # a sub-agent's: its text is what is sent
            continue
        content = content_of(value)
        shown = render_result(content.text if content.parts or isinstance(value, Content) else value)
        assert shown.note is None, f"it returned a {type(value).__name__}: {shown.note}"
        assert not shown.truncated, "its result is too long and was cut"


@RULES.rule("it can be called again, and twice at once", "keep what belongs to a call in local variables")
async def _again(case: ToolCase) -> None:
    tool = case.make()
    if not _finished(await case.call(tool)):
        return  # another rule reports that
    _check_finished(await case.call(tool), "a second call")
    _check_finished(await case.call(tool, times=2), "two calls at once")


@RULES.rule("a call leaves nothing running", "await the tasks, join the threads and end the processes that you start")
async def _leaves_nothing(case: ToolCase) -> Callable[[], None]:
    outside = Outside()
    await case.call(case.make())
    return _check_left(outside, await left_in_loop())


@RULES.rule(
    "what it takes comes back", "give back in a `finally`: permits, files, connections, everything your oracles check"
)
async def _gives_back(case: ToolCase) -> None:
    await case.call(case.make())
    _ask(case, "after a call")


# -- a cut call ------------------------------------------------------------------------------------------------------


@RULES.rule(
    "a cut call stops within its ladder",
    "let CancelledError through and bound the clean-up; in a thread look at ctx.cancel_requested",
)
async def _stops(case: ToolCase) -> None:
    async def check(tool: BaseTool, seen: Seen, cut: Cut) -> None:
        for orphan in seen.result.orphans:
            where = f"; it stands at\n{orphan.stack()}" if orphan.stack() else ""
            raise AssertionError(f"{cut}, it was abandoned{where}")

    await case.cut_everywhere(check)


@RULES.rule("a cut call leaves nothing running", "cancel and await your tasks, and end your processes, in a `finally`")
async def _cut_leaves_nothing(case: ToolCase) -> Callable[[], None]:
    left: list[str] = []
    outside = Outside()

    async def check(tool: BaseTool, seen: Seen, cut: Cut) -> None:
        if not seen.result.orphans:  # another rule reports those
            left.extend(f"{cut}: {what}" for what in await left_in_loop())

    await case.cut_everywhere(check)
    return _check_left(outside, left)


@RULES.rule("what a cut call took comes back", "give back in a `finally`, which a cancel passes too")
async def _cut_gives_back(case: ToolCase) -> None:
    async def check(tool: BaseTool, seen: Seen, cut: Cut) -> None:
        _ask(case, str(cut))

    await case.cut_everywhere(check)


@RULES.rule("the clean-up of a cut call raises nothing", "after a cancel, return or let CancelledError go on")
async def _cleans_up(case: ToolCase) -> None:
    async def check(tool: BaseTool, seen: Seen, cut: Cut) -> None:
        for entry in seen.entries:
            clean = entry.state is not LedgerState.CUT or entry.error is None or _has_undo(tool)
            assert clean, f"{cut}, it raised: {entry.error}"

    await case.cut_everywhere(check)


@RULES.rule("a cut call is undone, if there is an undo", "an undo takes the call's own arguments, and raises nothing")
async def _undone(case: ToolCase) -> None:
    async def check(tool: BaseTool, seen: Seen, cut: Cut) -> None:
        for entry in seen.entries:
            undone = entry.state is not LedgerState.CUT or entry.still_running or not _has_undo(tool)
            assert undone, f"{cut}, it was not undone: {entry.error}"

    await case.cut_everywhere(check)


@RULES.rule("it is usable at once after a cut call", "release locks in a `finally`; keep no half-done call in the tool")
async def _usable(case: ToolCase) -> None:
    async def check(tool: BaseTool, seen: Seen, cut: Cut) -> None:
        _check_finished(await case.call(tool), f"{cut}, the next call")

    if _finished(await case.call(case.make())):
        await case.cut_everywhere(check)


def _has_undo(tool: BaseTool) -> bool:
    return tool.options.undo is not None


def _finished(seen: Seen) -> bool:
    return all(entry.state is LedgerState.FINISHED for entry in seen.entries)


def _check_finished(seen: Seen, what: str) -> None:
    for entry in seen.entries:
        assert entry.state is LedgerState.FINISHED, f"{what} ended as {entry.state}: {entry.error}"


def _ask(case: ToolCase, when: str) -> None:
    for oracle in case.oracles:
        try:
            oracle()
        except AssertionError as error:
            raise AssertionError(f"{when}: {error}") from error


def _check_left(outside: Outside, left: list[str]) -> Callable[[], None]:
    def check() -> None:
        every = [*left, *outside.left()]
        assert not every, "; ".join(every)

    return check
