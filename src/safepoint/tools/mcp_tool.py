"""The tools of an MCP server as tools of an agent: `async with mcp_tools("http://…") as tools:`.

A cut call is announced to the server, and recorded as remote with an unknown outcome: the server may stop the call, or
may have finished it already; this side cannot know. The session can be used at once for the next call. If the server
crashes, the tool fails, never the run; the next call starts the server again or reconnects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

from msgspec.structs import replace

from safepoint._core.ladder import StopPolicy
from safepoint.errors import UsageError
from safepoint.history.parts import Attachment, Message
from safepoint.history.plain_text import cut, shorten
from safepoint.tools.base import BaseTool, ToolSpec
from safepoint.tools.mcp_connection import Connection
from safepoint.tools.mcp_content import read_result
from safepoint.tools.mcp_features import Answers, McpFeatures
from safepoint.tools.mcp_resources import (
    McpPrompt,
    McpResource,
    McpResourceTool,
    get_prompt,
    list_prompts,
    list_resources,
    read_resource,
)
from safepoint.tools.options import DEFAULT_GRACE_CAP, Effect, EffectLike, ToolOptions

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import Tool as Offered
    from mcp_types import ToolAnnotations

    from safepoint.tools.context import CallContext


# The effects of a server's tools: as the user declares them, or else as the server hints.
#
#     readOnlyHint     pure           a cut call is run again on resume, and stops at no safe point before effects
#     destructiveHint  irreversible   a cut call is never run again by itself
#     idempotentHint   idempotent     a cut call is run again on resume
#     none of them     effectful      a cut call is never run again by itself
#
# The first that is set wins. A tool that is destructive and idempotent counts as destructive: stopping before it
# matters more than repeating it. By the protocol an unset destructiveHint means true; most servers set none, so here it
# means unknown. Hints are the server's own claim. A user who does not trust the server declares the effects here.

McpEffect: TypeAlias = EffectLike | Mapping[str, EffectLike] | None


@dataclass(frozen=True, slots=True)
class Effects:
    """`every`: the effect of all tools; `named`: of single tools, by the server's names. Hints decide the rest."""

    every: Effect | None = None
    named: Mapping[str, Effect] = field(default_factory=dict[str, Effect])

    @classmethod
    def parse(cls, effect: McpEffect) -> Effects:
        if effect is None:
            return cls()
        if isinstance(effect, Mapping):
            return cls(named={name: _parsed(each) for name, each in effect.items()})
        return cls(every=_parsed(effect))

    def check_names(self, offered: Iterable[str]) -> None:
        names = list(offered)
        if missing := sorted(set(self.named) - set(names)):
            raise ValueError(f"effect={{{missing[0]!r}: …}}: the server has no tool {missing[0]!r}, it has {names}")

    def of(self, name: str, hints: ToolAnnotations | None) -> Effect:
        return self.named.get(name) or self.every or hinted(hints)


def hinted(hints: ToolAnnotations | None) -> Effect:
    """The effect that the hints declare, by the table above."""
    if hints is None:
        return Effect.EFFECTFUL
    if hints.read_only_hint:
        return Effect.PURE
    if hints.destructive_hint:
        return Effect.IRREVERSIBLE
    return Effect.IDEMPOTENT if hints.idempotent_hint else Effect.EFFECTFUL


def _parsed(effect: EffectLike) -> Effect:
    return ToolOptions.parse(effect=effect).effect


Era = Literal["auto", "legacy"]
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST = 64
_LONGEST_GUIDANCE = 8_000
"""Characters of a server's instructions that are passed on: it may send any number, and each run pays for them."""


class McpOptions(TypedDict, total=False):
    """Options of each tool. `effect`: one word for all, or a mapping from the server's names; hints decide the rest."""

    effect: McpEffect
    timeout: float | None
    grace: float | None


class McpTool(BaseTool):
    """One tool of a server. Its arguments are checked there, by the server's own schema."""

    remote = True

    def __init__(self, connection: Connection, offered: Offered, prefix: str, options: ToolOptions) -> None:
        self._connection = connection
        self._offered = offered.name
        self.options = options
        name = _UNFIT.sub("_", prefix + offered.name)[:_LONGEST]
        description = offered.description or offered.title or offered.name
        self.spec = ToolSpec(name, description, dict(offered.input_schema))

    @property
    def stop_policy(self) -> StopPolicy:
        return StopPolicy(grace=self.options.grace)

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: decoded JSON
        return dict(args)

    async def body(self, context: CallContext[Any], args: dict[str, Any]) -> object:
        """One call. Cancellation: announced to the server."""

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            so_far = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
            context.tell(f"{message or so_far}\n")

        return read_result(await self._connection.call(self._offered, args, tell))


class McpTools:
    """Made by `mcp_tools(…)`: an async context manager around the tools of one server."""

    def __init__(
        self,
        connection: Connection,
        prefix: str,
        only: Sequence[str] | None,
        options: ToolOptions,
        *,
        effects: Effects | None = None,
        instructions: bool = True,
    ) -> None:
        self._connection = connection
        self._prefix = prefix
        self._only = only
        self._options = options
        self._effects = effects or Effects()
        self._instructions = instructions

    async def __aenter__(self) -> list[McpTool]:
        """Connect and list the server's tools. Cancellation: an open connection is closed again."""
        try:
            name, instructions = await self._connection.open()
            tools = [self._tool(each) for each in self._chosen(await self._connection.tools())]
            if self._instructions:
                _guide(tools, name, instructions)
            return tools
        except BaseException:
            await self._connection.close()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Close the connection, and end a server that was started here. Cancellation: deferred until that is done."""
        await self._connection.close()

    async def resources(self) -> list[McpResource]:
        """The resources that the server lists, and its templates. Cancellation: only the request ends."""
        return await list_resources(self._connection)

    async def read(self, uri: str) -> list[str | Attachment]:
        """What is behind an address: texts, images and files. Cancellation: only the request ends."""
        return await read_resource(self._connection, uri)

    async def prompts(self) -> list[McpPrompt]:
        """The prompts that the server offers. Cancellation: only the request ends."""
        return await list_prompts(self._connection)

    async def prompt(self, name: str, **arguments: str) -> list[Message]:
        """A prompt of the server, filled in, as messages for an agent. Cancellation: only the request ends."""
        return await get_prompt(self._connection, name, arguments)

    def resource_tools(self) -> list[McpResourceTool]:
        """Two tools by which a model lists the server's resources and reads them; both are `pure`."""
        return McpResourceTool.both(self._connection, self._prefix, self._options)

    def _tool(self, offered: Offered) -> McpTool:
        options = replace(self._options, effect=self._effects.of(offered.name, offered.annotations))
        return McpTool(self._connection, offered, self._prefix, options)

    def _chosen(self, offered: Sequence[Offered]) -> list[Offered]:
        names = [tool.name for tool in offered]
        self._effects.check_names(names)
        if self._only is not None and (missing := sorted(set(self._only) - set(names))):
            raise ValueError(f"only={list(self._only)!r}: the server has no tool {missing[0]!r}, it has {names}")
        if tasks := [tool.name for tool in offered if _is_task(tool) and tool.name in (self._only or ())]:
            raise ValueError(
                f"only={list(self._only or ())!r}: {tasks[0]!r} runs only as a task, which Safepoint does not speak: "
                "leave it out"
            )
        return [tool for tool in offered if not _is_task(tool) and (self._only is None or tool.name in self._only)]


def _is_task(tool: Offered) -> bool:
    """Whether the tool runs only as a task: the server refuses every plain call of it."""
    return tool.execution is not None and tool.execution.task_support == "required"


def _guide(tools: Sequence[McpTool], server: str, instructions: str | None) -> None:
    """Add the server's instructions to the agent's, with their source: they are not the user's words."""
    if instructions is None or not instructions.strip():
        return
    names = ", ".join(tool.name for tool in tools)
    words = cut(instructions.strip(), _LONGEST_GUIDANCE)
    for tool in tools:
        tool.guidance = f"The server {shorten(server, 100)} says about its tools ({names}):\n{words}"


def mcp_tools(
    server: str | Sequence[str] | Callable[[], Any],  # Any: any argument of `mcp.Client`
    *,
    env: Mapping[str, str] | None = None,
    prefix: str = "",
    only: Sequence[str] | None = None,
    instructions: bool = True,
    era: Era = "auto",
    features: McpFeatures | None = None,
    **options: Unpack[McpOptions],
) -> McpTools:
    """The tools of an MCP server, for `async with`: a URL, a command as a list, or a function that makes a transport.

    `env` is for a command, which inherits only a few variables. `prefix` goes before each tool's name; `only` names
    the tools to take. `instructions=False` keeps the server's instructions out of the agent's. `era`: "auto" detects
    the protocol that the server speaks, "legacy" forces the handshake. `features` answers what the server asks its
    client: questions to a person, words of a model, folders. The options `effect`, `timeout` and `grace` are
    as for `@tool`; without `effect` the server's hints count, and a mapping sets it for single tools.
    """
    if strange := next((option for option in options if option not in McpOptions.__annotations__), None):
        raise TypeError(f"mcp_tools({strange}=…): there is no such option; write one of effect, timeout, grace")
    if era not in ("auto", "legacy"):
        raise ValueError(f"era={era!r}: write 'auto' or 'legacy'")
    if env is not None and (isinstance(server, str) or callable(server)):
        raise ValueError("env=… is for a server that is started by a command: write mcp_tools(['python', 'server.py'])")
    declared = ToolOptions.parse(timeout=options.get("timeout"), grace=options.get("grace"))
    declared.check_grace(DEFAULT_GRACE_CAP)
    name, target = _target(server, env)
    answers = Answers(features or McpFeatures(), name)
    connection = Connection(name, lambda: _client(target(), era, answers), on_idle=answers.take_back)
    effects = Effects.parse(options.get("effect"))
    return McpTools(connection, prefix, only, declared, effects=effects, instructions=instructions)


def _target(
    server: str | Sequence[str] | Callable[[], Any], env: Mapping[str, str] | None
) -> tuple[str, Callable[[], Any]]:
    """The server's name for error messages, and a function that makes the client's target."""
    if isinstance(server, str):
        if not server.startswith(("http://", "https://")):
            raise ValueError(
                f"mcp_tools({server!r}): write a URL, or a command as a list: mcp_tools({server.split()!r})"
            )
        return server, lambda: server
    if callable(server):
        return getattr(server, "__name__", "the MCP server"), server
    command = [str(word) for word in server]
    if not command:
        raise ValueError("mcp_tools([]): the command is empty; write mcp_tools(['python', 'server.py'])")

    def started() -> object:
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        given = None if env is None else dict(env)
        return stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=given))

    return " ".join(command)[:80], started


def _client(target: Any, era: Era, answers: Answers) -> Client:
    try:
        from mcp import Client
    except ImportError:
        raise UsageError("MCP tools need the official SDK: pip install 'safepoint[mcp]'") from None
    return Client(target, mode=era, **answers.callbacks())
