"""The tools of an MCP server as tools of an agent: `async with mcp_tools("http://…") as tools:`.

A call that is cut is announced to the server, and recorded as remote with an unknown outcome: a server that hears it
may stop, or may be done already, and nobody here can tell. The session can be used at once for the next call. A server
that crashes is a failed tool, never a failed run; the next call starts or finds it again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from safepoint._core.ladder import Manner
from safepoint.agent.model import ToolSpec
from safepoint.errors import McpFailed, UsageError
from safepoint.tools.base import BaseTool
from safepoint.tools.mcp_connection import Connection
from safepoint.tools.options import DEFAULT_GRACE_CAP, EffectLike, ToolOptions

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult, ContentBlock
    from mcp_types import Tool as Offered

    from safepoint.tools.context import ToolContext

Era = Literal["auto", "legacy"]
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST = 64


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
    def manner(self) -> Manner:
        return Manner(grace=self.options.grace)

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: decoded JSON
        return dict(args)

    async def body(self, context: ToolContext[Any], args: dict[str, Any]) -> object:  # Any: as above
        """One call. Cancellation: announced to the server."""

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            if message:
                context.tell(f"{message}\n")

        return _read(await self._connection.call(self._offered, args, tell))


class McpTools:
    """Made by `mcp_tools(…)`: an async context manager around the tools of one server."""

    def __init__(self, connection: Connection, prefix: str, only: Sequence[str] | None, options: ToolOptions) -> None:
        self._connection = connection
        self._prefix = prefix
        self._only = only
        self._options = options

    async def __aenter__(self) -> list[McpTool]:
        """Connect, and ask which tools there are. Cancellation: what was opened is closed again."""
        try:
            await self._connection.open()
            offered = await self._connection.tools()
            return [McpTool(self._connection, each, self._prefix, self._options) for each in self._chosen(offered)]
        except BaseException:
            await self._connection.close()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Close the connection, and end a server that was started here. Cancellation: put off until that is done."""
        await self._connection.close()

    def _chosen(self, offered: Sequence[Offered]) -> list[Offered]:
        names = [tool.name for tool in offered]
        if self._only is not None and (missing := sorted(set(self._only) - set(names))):
            raise ValueError(f"only={list(self._only)!r}: the server has no tool {missing[0]!r}, it has {names}")
        return [tool for tool in offered if self._only is None or tool.name in self._only]


def mcp_tools(
    server: str | Sequence[str] | Callable[[], Any],  # Any: whatever `mcp.Client` takes
    *,
    env: Mapping[str, str] | None = None,
    prefix: str = "",
    only: Sequence[str] | None = None,
    effect: EffectLike = "effectful",
    timeout: float | None = None,
    grace: float | None = None,
    era: Era = "auto",
) -> McpTools:
    """The tools of an MCP server, for `async with`: a URL, a command as a list, or what makes a transport.

    `env` is for a command, which inherits only a few variables. `prefix` goes before each tool's name; `only` names
    the tools to take. `era`: "auto" finds out which protocol the server speaks, "legacy" forces the handshake.
    """
    if era not in ("auto", "legacy"):
        raise ValueError(f"era={era!r}: write 'auto' or 'legacy'")
    if env is not None and (isinstance(server, str) or callable(server)):
        raise ValueError("env=… is for a server that is started by a command: write mcp_tools(['python', 'server.py'])")
    options = ToolOptions.parse(effect=effect, timeout=timeout, grace=grace)
    options.check_grace(DEFAULT_GRACE_CAP)
    name, target = _target(server, env)
    return McpTools(Connection(name, lambda: _client(target(), era)), prefix, only, options)


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


def _read(result: CallToolResult) -> str:
    text = "\n".join(_shown(block) for block in result.content)
    if not text and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    if result.is_error:
        raise McpFailed(text or "the server says that the call failed, and not why")
    return text


def _shown(block: ContentBlock) -> str:
    """A block as text; what is not text is described."""
    if block.type == "text":
        return block.text
    if block.type == "resource":
        text = getattr(block.resource, "text", None)
        return cast(str, text) if text is not None else f"[resource {block.resource.uri}]"
    if block.type == "resource_link":
        return f"[resource {block.uri}]"
    return f"[{block.type}, {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
