"""What an agent makes of a server's tools: names, results, failures; with a server in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest
from mcp import Client, MCPError
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ImageContent,
    ListToolsResult,
    PaginatedRequestParams,
    ResourceLink,
    Tool,
    ToolAnnotations,
    ToolExecution,
)

from safepoint import Agent, LedgerEntry
from safepoint.errors import McpFailed
from safepoint.testing import ScriptedModel, call, pass_time, say
from safepoint.tools import McpTools, mcp_tools
from safepoint.tools.mcp_connection import PAGES, Connection
from safepoint.tools.options import ToolOptions
from tests.virtual import virtual


def made() -> MCPServer[Any]:  # Any: its lifespan
    server: MCPServer[Any] = MCPServer("sample")

    @server.tool(description="Add two numbers.")
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool(name="odd.name")
    async def odd() -> list[str]:
        return ["one", "two"]

    @server.tool()
    async def fails() -> str:
        raise ToolError("no such row")

    @server.tool()
    async def draws() -> Image:
        return Image(data=b"123456", format="png")

    @server.tool()
    async def nothing() -> None:
        pass

    return server


async def called(tools: McpTools, name: str, **args: object) -> LedgerEntry:
    async with tools as offered:
        agent = Agent("a", model=ScriptedModel(call(name, args), say("done")), tools=offered)
        return (await agent.run("go")).ledger[0]


@virtual
async def test_a_result_is_the_text_that_the_server_sent() -> None:
    assert (await called(mcp_tools(made), "add", a=1, b=2)).content == "3"
    assert (await called(mcp_tools(made), "nothing")).content == '{"result": null}'
    assert (await called(mcp_tools(made, prefix="my-"), "my-odd_name")).content == "one\ntwo"
    assert (await called(mcp_tools(made), "draws")).content == "[image 1: image/png, 6 bytes]"


@virtual
async def test_what_the_server_refuses_is_a_failed_tool_with_its_words() -> None:
    entry = await called(mcp_tools(made), "fails")
    assert (entry.state, entry.error) == ("failed", "McpFailed: Error executing tool fails: no such row")
    entry = await called(mcp_tools(made), "add", a="x")
    assert entry.state == "failed"
    assert "Input should be a valid integer" in (entry.error or "")


@virtual
async def test_the_schema_is_the_servers_own_and_only_says_which_tools() -> None:
    async with mcp_tools(made, only=["add"], effect="pure") as tools:
        (add,) = tools
    assert (add.spec.description, list(add.spec.parameters["properties"])) == ("Add two numbers.", ["a", "b"])
    assert (add.options.effect, add.remote) == ("pure", True)
    with pytest.raises(ValueError, match=r"the server has no tool 'subtract', it has \['add'"):
        await mcp_tools(made, only=["subtract"]).__aenter__()


HINTS = {
    "nothing is hinted": (None, "effectful"),
    "no hint in it": (ToolAnnotations(), "effectful"),
    "it only reads": (ToolAnnotations(read_only_hint=True), "pure"),
    "it only reads, and the rest has no meaning": (
        ToolAnnotations(read_only_hint=True, destructive_hint=True, idempotent_hint=False),
        "pure",
    ),
    "once is as good as twice": (ToolAnnotations(idempotent_hint=True, destructive_hint=False), "idempotent"),
    "once is as good as twice, and it destroys": (
        ToolAnnotations(idempotent_hint=True, destructive_hint=True),
        "irreversible",
    ),
    "it destroys": (ToolAnnotations(read_only_hint=False, destructive_hint=True), "irreversible"),
    "it adds": (ToolAnnotations(destructive_hint=False), "effectful"),
}


def listing(*tools: Tool) -> Server[Any]:  # Any: its lifespan
    async def list_tools(_: object, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=list(tools))

    return Server("listing", on_list_tools=list_tools)


def hinting() -> Server[Any]:  # Any: as above
    schema = {"type": "object"}
    return listing(
        *(Tool(name=f"t{n}", input_schema=schema, annotations=hint) for n, (hint, _) in enumerate(HINTS.values()))
    )


@virtual
async def test_hints_say_what_a_tool_leaves_in_the_world_and_can_be_overruled() -> None:
    hinted = {f"t{number}": effect for number, (_, effect) in enumerate(HINTS.values())}

    async def effects(effect: Any) -> dict[str, str]:  # Any: a word, or a mapping of names to words
        async with mcp_tools(hinting, effect=effect) as tools:
            return {tool.name: tool.options.effect for tool in tools}

    assert await effects(None) == hinted
    assert await effects("effectful") == dict.fromkeys(hinted, "effectful")
    assert await effects({"t0": "pure", "t2": "effectful"}) == {**hinted, "t0": "pure", "t2": "effectful"}
    with pytest.raises(ValueError, match=r"effect=\{'t99': …\}: the server has no tool 't99', it has \['t0'"):
        await effects({"t99": "pure"})
    with pytest.raises(ValueError, match="effect='harmless' is not a choice"):
        mcp_tools(hinting, effect="harmless")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # that is the point
    with pytest.raises(ValueError, match="effect='harmless' is not a choice"):
        mcp_tools(hinting, effect={"t0": "harmless"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]  # as above


@virtual
async def test_a_tool_that_only_runs_as_a_task_is_not_offered() -> None:
    def tasks() -> Server[Any]:  # Any: as above
        kinds: list[Literal["required", "optional", "forbidden"]] = ["required", "optional", "forbidden"]
        schema = {"type": "object"}
        return listing(
            *(Tool(name=kind, input_schema=schema, execution=ToolExecution(task_support=kind)) for kind in kinds)
        )

    async with mcp_tools(tasks, era="legacy") as tools:
        assert [tool.name for tool in tools] == ["optional", "forbidden"]
    with pytest.raises(
        ValueError, match="'required' runs only as a task, which Safepoint does not speak: leave it out"
    ):
        await mcp_tools(tasks, era="legacy", only=["required"]).__aenter__()


@virtual
async def test_what_a_server_sends_is_bounded_and_what_cannot_be_read_is_said() -> None:
    def odd() -> Server[Any]:  # Any: as above
        async def call_tool(_: object, params: CallToolRequestParams) -> CallToolResult:
            broken = ImageContent(type="image", data="no base 64!", mime_type="image/png")
            nothing = ImageContent(type="image", data="", mime_type="image/png")
            link = ResourceLink(type="resource_link", name="x", uri="diary://x")
            return CallToolResult(content=[broken, nothing, link], is_error=params.name == "fails")

        async def list_tools(_: object, params: PaginatedRequestParams | None) -> ListToolsResult:
            return ListToolsResult(tools=[Tool(name=name, input_schema={"type": "object"}) for name in ("ok", "fails")])

        return Server("odd", on_list_tools=list_tools, on_call_tool=call_tool, instructions="x" * 100_000)

    async with mcp_tools(odd) as tools:
        model = ScriptedModel([call("ok"), call("fails")], say("done"))
        result = await Agent("a", model=model, tools=tools).run("go")
    told = model.requests[0].instructions or ""
    assert len(told) < 10_000
    assert "more characters were left out" in told
    ok, fails = result.ledger
    assert (ok.content or "").startswith("[image, image/png: its data cannot be read]\n[image left out: ")
    assert (ok.content or "").endswith("\n[resource diary://x]")
    assert "[image, image/png: its data cannot be read]" in (fails.error or "")


def paged(next_cursor: Callable[[str | None], str | None], asked: list[str | None]) -> Server[Any]:  # Any: its lifespan
    """A server with one tool on each page."""

    async def list_tools(_: object, params: PaginatedRequestParams | None) -> ListToolsResult:
        cursor = None if params is None else params.cursor
        asked.append(cursor)
        tool = Tool(name=f"tool{len(asked)}", input_schema={"type": "object"})
        return ListToolsResult(tools=[tool], next_cursor=next_cursor(cursor))

    return Server("paged", on_list_tools=list_tools)


@virtual
async def test_all_pages_of_a_list_are_asked_for() -> None:
    def following(cursor: str | None) -> str | None:
        return {None: "", "": "b", "b": "c"}.get(cursor)

    async with mcp_tools(lambda: paged(following, [])) as tools:
        assert [tool.name for tool in tools] == ["tool1", "tool2", "tool3", "tool4"]


def grows(cursor: str | None) -> str:
    return f"{cursor}+"


def repeats(cursor: str | None) -> str:
    return "same"


@virtual
@pytest.mark.parametrize(
    ("following", "pages", "why"), [(grows, PAGES, "more than can be asked for"), (repeats, 2, "it names a page again")]
)
async def test_a_list_of_tools_without_an_end_is_refused_and_nothing_is_left(
    following: Callable[[str | None], str], pages: int, why: str
) -> None:
    asked: list[str | None] = []
    with pytest.raises(McpFailed, match=f"has no end: {pages} tools on {pages} pages, and {why}"):
        await mcp_tools(partial(paged, following, asked)).__aenter__()
    assert len(asked) == pages
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual
async def test_a_tool_outside_its_block_says_where_it_belongs() -> None:
    async with mcp_tools(made) as tools:
        pass
    agent = Agent("a", model=ScriptedModel(call("add", a=1, b=2), say("done")), tools=tools)
    assert "use the tools inside `async with mcp_tools(…)`" in ((await agent.run("go")).ledger[0].error or "")


class Reporting(Client):
    """Says when the answer of a call has come, before anybody else hears of it."""

    on_answer: Callable[[], object]

    async def call_tool(self, *args: Any, **options: Any) -> Any:  # Any: as the SDK has it
        answer = await super().call_tool(*args, **options)
        self.on_answer()
        return answer


@virtual
async def test_an_answer_that_comes_in_the_moment_of_the_cancel_is_kept() -> None:
    client = Reporting(made())
    async with McpTools(Connection("sample", lambda: client), "", None, ToolOptions()) as tools:
        model = ScriptedModel(call("add", a=1, b=2), say("done"))
        async with Agent("a", model=model, tools=tools).start("go") as run:
            client.on_answer = run.cancel
    assert (run.result.stop_reason, model.calls) == ("cancelled", 1)
    (entry,) = run.result.ledger
    assert (entry.state, entry.content) == ("finished", "3")


class Slow(Client):
    """Loses its server in the first call, and takes its time to leave."""

    leaving: asyncio.Event
    may_leave: asyncio.Event

    async def call_tool(self, *args: Any, **options: Any) -> Any:  # Any: as the SDK has it
        raise MCPError(-32000, "Connection closed")

    async def __aexit__(self, *how: Any) -> None:  # Any: as above
        self.leaving.set()
        await self.may_leave.wait()
        await super().__aexit__(*how)


@virtual
async def test_a_closing_that_is_cancelled_leaves_every_line_all_the_same() -> None:
    slow = Slow(made())
    slow.leaving, slow.may_leave = asyncio.Event(), asyncio.Event()
    clients = [slow, Client(made())]
    connection = Connection("sample", lambda: clients.pop(0))
    tools = McpTools(connection, "", None, ToolOptions())
    offered = await tools.__aenter__()
    model = ScriptedModel(call("add", a=1, b=2), call("add", a=1, b=2), say("done"))
    ledger = (await Agent("a", model=model, tools=offered).run("go")).ledger
    assert [entry.state for entry in ledger] == ["failed", "finished"]  # the second one on a line of its own
    closing = asyncio.ensure_future(tools.__aexit__())
    await slow.leaving.wait()
    await pass_time(1)
    closing.cancel()
    await pass_time(1)
    slow.may_leave.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_server_that_cannot_be_started_is_named_and_leaves_nothing() -> None:
    async def main() -> None:
        with pytest.raises(McpFailed, match="no connection to no-such-program --now"):
            await mcp_tools(["no-such-program", "--now"]).__aenter__()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_an_opening_that_is_cancelled_leaves_nothing() -> None:
    async def main() -> None:
        entering = asyncio.ensure_future(mcp_tools(["sleep", "3600"]).__aenter__())
        for _ in range(20):
            await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
