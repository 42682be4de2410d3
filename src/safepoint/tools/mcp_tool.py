"""The tools of an MCP server as tools of an agent: `async with mcp_tools("http://…") as tools:`.

A call that is cut is announced to the server, and recorded as remote with an unknown outcome: a server that hears it
may stop, or may be done already, and nobody here can tell. The session can be used at once for the next call. A server
that crashes is a failed tool, never a failed run; the next call starts or finds it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from safepoint._core.ladder import StopPolicy
from safepoint.errors import UsageError
from safepoint.history.plain_text import cut, shorten
from safepoint.tools.base import BaseTool, ToolSpec
from safepoint.tools.mcp_connection import Connection
from safepoint.tools.mcp_content import read_result
from safepoint.tools.mcp_effects import Effects, McpEffect
from safepoint.tools.options import DEFAULT_GRACE_CAP, ToolOptions

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import Tool as Offered

    from safepoint.tools.context import CallContext

Era = Literal["auto", "legacy"]
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST = 64
_LONGEST_GUIDANCE = 8_000
"""Characters of a server's instructions that are passed on: it may send any number, and each run pays for them."""


class McpOptions(TypedDict, total=False):
    """Of each tool: `effect` is a word for all, or a mapping of the server's names to words; the hints say the rest."""

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

    async def body(self, context: CallContext[Any], args: dict[str, Any]) -> object:  # Any: as above
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
        """Connect, and ask which tools there are. Cancellation: what was opened is closed again."""
        try:
            await self._connection.open()
            tools = [self._tool(each) for each in self._chosen(await self._connection.tools())]
            if self._instructions:
                _guide(tools, *await self._connection.greeting())
            return tools
        except BaseException:
            await self._connection.close()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Close the connection, and end a server that was started here. Cancellation: put off until that is done."""
        await self._connection.close()

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
    """A plain call of such a tool is always refused by its server."""
    return tool.execution is not None and tool.execution.task_support == "required"


def _guide(tools: Sequence[McpTool], server: str, instructions: str | None) -> None:
    """Have the server's instructions said in those of the agent, with their source: they are not the user's words."""
    if instructions is None or not instructions.strip():
        return
    names = ", ".join(tool.name for tool in tools)
    words = cut(instructions.strip(), _LONGEST_GUIDANCE)
    for tool in tools:
        tool.guidance = f"The server {shorten(server, 100)} says about its tools ({names}):\n{words}"


def mcp_tools(
    server: str | Sequence[str] | Callable[[], Any],  # Any: whatever `mcp.Client` takes
    *,
    env: Mapping[str, str] | None = None,
    prefix: str = "",
    only: Sequence[str] | None = None,
    instructions: bool = True,
    era: Era = "auto",
    **options: Unpack[McpOptions],
) -> McpTools:
    """The tools of an MCP server, for `async with`: a URL, a command as a list, or what makes a transport.

    `env` is for a command, which inherits only a few variables. `prefix` goes before each tool's name; `only` names
    the tools to take. `instructions=False` keeps the server's own out of those of the agent. `era`: "auto" finds out
    which protocol the server speaks, "legacy" forces the handshake. The options `effect`, `timeout` and `grace` are as
    for `@tool`; without `effect` the server's hints count, and a mapping says it for single tools.
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
    connection = Connection(name, lambda: _client(target(), era))
    effects = Effects.parse(options.get("effect"))
    return McpTools(connection, prefix, only, declared, effects=effects, instructions=instructions)


def _target(
    server: str | Sequence[str] | Callable[[], Any], env: Mapping[str, str] | None
) -> tuple[str, Callable[[], Any]]:  # Any: as above
    """What errors call the server, and what makes the thing that a client connects to."""
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

        return StdioServerParameters(command=command[0], args=command[1:], env=None if env is None else dict(env))

    return " ".join(command)[:80], started


def _client(target: Any, era: Era) -> Client:  # Any: as above
    try:
        from mcp import Client
    except ImportError:
        raise UsageError("MCP tools need the official SDK: pip install 'safepoint[mcp]'") from None
    return Client(target, mode=era)
