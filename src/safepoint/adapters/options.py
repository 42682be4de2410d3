"""What every `adapt` takes beside the agent, and what every adapter checks."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from safepoint._core.ladder import Ladder
from safepoint.agent.budget import Budget
from safepoint.agent.foreign import ForeignOptions
from safepoint.agent.hooks import Hooks
from safepoint.errors import ToolDefinitionError
from safepoint.tools.options import EffectLike, OnCancelLike, ToolOptions, Undo


class ToolFacts(TypedDict, total=False):
    """What a framework does not know of a tool; as for `@tool`."""

    effect: EffectLike
    on_cancel: OnCancelLike
    grace: float
    timeout: float
    undo: Undo


class AdaptOptions(TypedDict, total=False):
    """The options of `adapt`, which describes them."""

    name: str
    effects: Mapping[str, EffectLike]
    tools: Mapping[str, ToolFacts]
    remote: Collection[str]
    run_options: Mapping[str, Any]  # Any: the framework's own
    budget: Budget
    hooks: Sequence[Hooks]
    ladder: Ladder


_NAMES = tuple(AdaptOptions.__annotations__)
_FACTS = tuple(ToolFacts.__annotations__)


def checked(options: AdaptOptions, name: str, known: Iterable[str] | None) -> ForeignOptions:
    """The options, checked. `name`: the agent's own; `known`: the names of its tools, if that is all of them."""
    for option in options:
        if option not in _NAMES:
            raise TypeError(f"adapt() has no option {option!r}: the options are {', '.join(_NAMES)}")
    tools = _tool_options(options)
    for tool in (*tools, *options.get("remote", ())):
        if known is not None and tool not in known:
            raise ToolDefinitionError(f"the agent has no tool {tool!r}: its tools are {', '.join(known) or 'none'}")
    return ForeignOptions(
        name=options.get("name") or name,
        tools=tools,
        remote=tuple(options.get("remote", ())),
        budget=options.get("budget"),
        hooks=options.get("hooks", ()),
        ladder=options.get("ladder"),
    )


def _tool_options(options: AdaptOptions) -> dict[str, ToolOptions]:
    facts: dict[str, dict[str, Any]] = {}  # Any: `parse` checks each value
    for tool, given in options.get("tools", {}).items():
        if strange := [name for name in given if name not in _FACTS]:
            raise ToolDefinitionError(f"tools={{{tool!r}: {{{strange[0]!r}: …}}}}: write one of {', '.join(_FACTS)}")
        facts[tool] = dict(given)
    for tool, effect in options.get("effects", {}).items():
        if "effect" in facts.setdefault(tool, {}):
            raise ToolDefinitionError(f"the effect of {tool!r} is given twice: leave it out of tools=…")
        facts[tool]["effect"] = effect
    made = {tool: ToolOptions.parse(**given) for tool, given in facts.items()}
    for each in made.values():
        each.check_grace(*([ladder.cap] if (ladder := options.get("ladder")) is not None else []))
    return made


def check_version(framework: str, distribution: str, tested: tuple[str, str]) -> None:
    """Say so if the installed version of the framework is none that the adapter was tested with."""
    try:
        installed = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return
    if not _numbers(tested[0]) <= _numbers(installed) < _numbers(tested[1]):
        warnings.warn(
            f"safepoint.adapters was tested with {framework} from {tested[0]} to below {tested[1]}; "
            f"this is {installed}: check a stop before you rely on it",
            RuntimeWarning,
            stacklevel=3,
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
