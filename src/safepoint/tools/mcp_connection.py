"""A connection to an MCP server, owned by one task: that task opens it, and only that task closes it.

    Line:   OPENING ──▶ OPEN ──close, or a call found the server gone──▶ LEAVING ──▶ ENDED
               └──failed, or closed before it was open──────────────────────────────▶ ┘

The SDK's session holds AnyIO scopes, which must be left in the task that entered them; callers of the tools may come
from any task and may be cancelled in any of them. So each call is a task of its own too. Cutting a call cancels that
task exactly once: the SDK then tells the server, and the session stays usable. A line that was lost, or that a
restarted server no longer knows, is left, and the next call opens another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from safepoint._core.caller_cancellation import outlast
from safepoint._core.latch import Latch
from safepoint._core.supervisor import Supervisor
from safepoint.errors import McpFailed, UsageError
from safepoint.history.rendering import render_error

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult
    from mcp_types import Tool as Offered

# The SDK's error codes: the other side is gone; and the other side does not accept the request at all.
_CONNECTION_CLOSED = -32000
_INVALID_REQUEST = -32600

PAGES = 100
"""The limit of pages in a list of a server: a longer list is of no use to a model."""


class _Paged(Protocol):
    @property
    def next_cursor(self) -> str | None: ...


T = TypeVar("T")
Page = TypeVar("Page", bound=_Paged)


class Line:
    """One session with the server, from its opening to its end. Making it begins to open it."""

    def __init__(self, name: str, client: Client) -> None:
        self.lost = False
        self.failure: Exception | None = None
        self._client = client
        self._opened = Latch()
        self._leave = asyncio.Event()
        self._owner = Supervisor.current().spawn(self._hold_open(), f"mcp {name}", copy_context())

    async def client(self) -> Client:
        """The client, once it is connected. Cancellation: only the waiting ends."""
        await self._opened.wait()
        if self.failure is not None:
            raise self.failure
        return self._client

    async def close(self) -> None:
        """Close the session; a server that was started here is ended. Cancellation: deferred until that is done."""
        self.leave()
        await outlast(self._owner)

    @property
    def ended(self) -> bool:
        return self._owner.done()

    def leave(self) -> None:
        self.lost = True
        if not self._leave.is_set() and not self._opened.is_set:
            self._owner.cancel()  # once: a second time would cut its clean-up
        self._leave.set()

    async def _hold_open(self) -> None:
        try:
            async with self._client:
                self._opened.set()
                await self._leave.wait()
        except BaseException as error:  # raised where the client is requested; at the end no caller is left
            self.failure = error if isinstance(error, Exception) else UsageError("it was closed while it was opened")
            self.lost = True
        finally:
            self._opened.set()


class Connection:
    """One server. `make` makes a new client for each line; `on_idle` is called when the last request has ended."""

    def __init__(self, name: str, make: Callable[[], Client], *, on_idle: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self._make = make
        self._lines: list[Line] = []
        self._closed = True
        self._requests = 0
        self._on_idle = on_idle

    async def open(self) -> tuple[str, str | None]:
        """Connect; return the server's own name and its instructions. Cancellation: `close` must still be called."""
        self._closed = False
        client = await self._client()
        info = client.server_info
        return info.name if info is not None else self.name, client.instructions

    async def close(self) -> None:
        """Leave every line that was opened. Cancellation: deferred until that is done."""
        self._closed = True
        lines, self._lines = self._lines, []
        put_off: asyncio.CancelledError | None = None
        for line in lines:
            line.leave()
        for line in lines:
            try:
                await line.close()
            except asyncio.CancelledError as cancelled:
                put_off = cancelled
        if put_off is not None:
            raise put_off

    async def offers(self, feature: Literal["resources", "prompts"]) -> bool:
        """Whether the server says that it has any. Cancellation: only the waiting ends."""
        return getattr((await self._client()).server_capabilities, feature) is not None

    async def tools(self) -> Sequence[Offered]:
        """All tools that the server offers. Raises `McpFailed` for a list without an end.

        Cancellation: only the request ends.
        """
        return await self.pages("tools", lambda client, at: client.list_tools(cursor=at), lambda page: page.tools)

    async def pages(
        self,
        what: str,
        fetch: Callable[[Client, str | None], Awaitable[Page]],
        items: Callable[[Page], Sequence[T]],
    ) -> list[T]:
        """Everything on all pages of a list. Raises `McpFailed` for a list without an end.

        Cancellation: only the request ends.
        """
        found: list[T] = []
        asked: set[str | None] = set()
        cursor: str | None = None
        while cursor not in asked and len(asked) < PAGES:
            page = await fetch(await self._client(), cursor)
            found += items(page)
            asked.add(cursor)
            cursor = page.next_cursor
            if cursor is None:
                return found
        so_far = f"{len(found)} {what} on {len(asked)} pages"
        again = "it names a page again" if cursor in asked else "more than can be asked for"
        raise McpFailed(f"the list of {what} of {self.name} has no end: {so_far}, and {again}")

    async def call(self, tool: str, args: dict[str, Any], on_progress: ProgressFnT) -> CallToolResult:  # Any: JSON
        """One call. Cancellation: the server is told, unless its answer has just arrived, which is then returned.

        What the tool did is then known and must not be lost. Its run knows from its own state that it was stopped.
        """
        done: list[CallToolResult] = []

        async def send(client: Client) -> CallToolResult:
            done.append(await client.call_tool(tool, args, progress_callback=on_progress))
            return done[0]

        try:
            return await self.request(tool, send)
        except asyncio.CancelledError:
            if done:
                return done[0]
            raise

    async def request(self, what: str, send: Callable[[Client], Awaitable[T]]) -> T:
        """One request in a task of its own. Cancellation: of that task too, and the server is told."""
        client, line = await self._client(), self._lines[-1]
        done: list[T] = []
        failed: list[BaseException] = []

        async def perform() -> None:
            try:
                done.append(await send(client))
            except Exception as error:
                failed.append(error)

        task = Supervisor.current().spawn(perform(), f"mcp {self.name}/{what}", copy_context())
        self._requests += 1
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))  # until the server was told; FORCE does not wait even for that
            raise
        finally:
            self._requests -= 1
            if not self._requests:
                self._on_idle()
        if failed:
            raise self._heard(line, failed[0])
        return done[0]

    async def _client(self) -> Client:
        if self._closed:
            raise UsageError(f"the connection to {self.name} is closed: use the tools inside `async with mcp_tools(…)`")
        if not self._lines or self._lines[-1].lost:
            self._lines = [line for line in self._lines if not line.ended]
            self._lines.append(Line(self.name, self._make()))
        try:
            return await self._lines[-1].client()
        except Exception as error:
            raise McpFailed(f"no connection to {self.name}: {render_error(_cause(error))}") from error

    def _heard(self, line: Line, error: BaseException) -> McpFailed:
        """The error of a failed call; closes the line if it is unusable."""
        said = getattr(error, "error", None)
        code, words = getattr(said, "code", None), str(getattr(said, "message", ""))
        if code == _CONNECTION_CLOSED:
            line.leave()
            return McpFailed(f"the server {self.name} ended during the call; what came of it is unknown")
        if code == _INVALID_REQUEST and "session" in words.lower():
            line.leave()
            return McpFailed(f"the server {self.name} was started anew, so this call was not made: try again")
        return McpFailed(render_error(error))


def _cause(error: Exception) -> Exception:
    """The original error, without the exception groups of the SDK's task groups."""
    if not isinstance(error, ExceptionGroup):
        return error
    return _cause(cast("ExceptionGroup[Exception]", error).exceptions[0])
