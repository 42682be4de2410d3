"""What an MCP server may ask of its client, and what it has beside tools; with a server in the same process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp.server.lowlevel import Server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
)

from safepoint import Agent, File
from safepoint.errors import McpFailed
from safepoint.testing import CALLER, ScriptedModel, call, check_cancellable, say
from safepoint.tools import McpFeatures, McpQuestion, McpResource, McpSampling, mcp_tools
from safepoint.tools.mcp_tool import Era
from tests.tools.mcp_servers import POEM, SCHEMA, Asking, library
from tests.virtual import virtual

ERAS: tuple[Era, ...] = ("legacy", "auto")


async def result_of(tool: str, features: McpFeatures | None, era: Era) -> str:
    async with mcp_tools(lambda: Asking().server, era=era, features=features) as tools:
        agent = Agent("a", model=ScriptedModel(call(tool), say("done")), tools=tools)
        (entry,) = (await agent.run("go")).ledger
    return entry.content or entry.error or ""


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
@pytest.mark.parametrize("era", ERAS)
@virtual
async def test_a_person_is_asked_with_the_servers_words_and_schema(era: Era) -> None:
    questions: list[McpQuestion] = []

    async def elicit(question: McpQuestion) -> dict[str, str] | None:
        questions.append(question)
        return {"size": "large"} if len(questions) == 1 else None

    features = McpFeatures(elicit=elicit)
    assert await result_of("person", features, era) == "accept {'size': 'large'}"
    assert await result_of("person", features, era) == "decline None"
    assert questions[0].text == "which size?"
    assert questions[0].schema is not None
    assert questions[0].schema["required"] == ["size"]
    assert questions[0].url is None


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
@pytest.mark.parametrize("era", ERAS)
@virtual
async def test_a_model_writes_what_the_server_proposes(era: Era) -> None:
    proposed: list[McpSampling] = []

    async def sample(request: McpSampling) -> str:
        proposed.append(request)
        return "roses"

    assert await result_of("model", McpFeatures(sample=sample), era) == "roses"
    (request,) = proposed
    assert [(message.role, message.text) for message in request.messages] == [("user", POEM)]
    assert (request.system, request.max_tokens, request.stop) == ("be brief", 7, (".",))


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
@pytest.mark.parametrize("era", ERAS)
@virtual
async def test_the_server_learns_the_folders_as_addresses(era: Era, tmp_path: Path) -> None:
    assert await result_of("folders", McpFeatures(roots=[tmp_path]), era) == tmp_path.as_uri()


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
@pytest.mark.parametrize("tool", ["person", "model", "folders"])
@pytest.mark.parametrize("era", ERAS)
@virtual
async def test_what_is_not_given_is_not_offered_and_the_call_fails(era: Era, tool: str) -> None:
    assert "not supported" in await result_of(tool, None, era)


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
@pytest.mark.parametrize("era", ERAS)
@virtual
async def test_a_function_that_fails_fails_the_call_and_tells_the_server_nothing_about_it(era: Era) -> None:
    async def elicit(question: McpQuestion) -> None:
        raise RuntimeError("the password is 1234")

    said = await result_of("person", McpFeatures(elicit=elicit), era)
    assert "the client could not answer the elicitation" in said
    assert "1234" not in said


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")
@pytest.mark.parametrize("era", ERAS)
@virtual
async def test_a_stop_takes_the_question_back_and_the_connection_can_be_used_again(era: Era) -> None:
    asking, open_now, cut = Asking(), asyncio.Event(), asyncio.Event()

    async def elicit(question: McpQuestion) -> dict[str, str]:
        if cut.is_set():
            return {"size": "small"}
        open_now.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()
        raise AssertionError

    async with mcp_tools(lambda: asking.server, era=era, features=McpFeatures(elicit=elicit)) as tools:
        agent = Agent("a", model=ScriptedModel(call("person"), call("person"), say("done")), tools=tools)
        async with agent.start("go") as run:
            await open_now.wait()
            run.cancel()
        assert cut.is_set()
        if era == "legacy":  # in the new era the server does not wait while the person is asked
            await asyncio.wait_for(asking.cut.wait(), 1)
        (entry,) = run.result.ledger
        assert (entry.state, entry.remote) == ("cut", True)
        assert (await agent.run("go")).ledger[0].content == "accept {'size': 'small'}"
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual
async def test_a_question_ends_with_the_last_call_although_the_server_does_not_take_it_back() -> None:
    open_now, cut = asyncio.Event(), asyncio.Event()
    asks: list[asyncio.Task[Any]] = []

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        asks.append(asyncio.ensure_future(context.session.elicit_form("which size?", SCHEMA)))
        await asyncio.Event().wait()
        raise AssertionError

    async def list_tools(_: object, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(name="person", input_schema={"type": "object"})])

    async def elicit(question: McpQuestion) -> None:
        open_now.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()

    server: Server[Any] = Server("keeps", on_list_tools=list_tools, on_call_tool=call_tool)
    async with mcp_tools(lambda: server, era="legacy", features=McpFeatures(elicit=elicit)) as tools:
        async with Agent("a", model=ScriptedModel(call("person")), tools=tools).start("go") as run:
            await open_now.wait()
            run.cancel()
        await asyncio.wait_for(cut.wait(), 1)
        (answer,) = await asyncio.gather(*asks)
        assert answer.action == "cancel"


def test_roots_are_a_list() -> None:
    with pytest.raises(ValueError, match=r"write a list of folders: roots=\['/work'\]"):
        McpFeatures(roots="/work")


@pytest.mark.parametrize("era", ERAS)
@virtual
async def test_resources_are_listed_and_read(era: Era) -> None:
    server = mcp_tools(library, era=era)
    async with server:
        listed = await server.resources()
        assert listed[0] == McpResource("book://one", "one", "The first book.", "text/plain")
        assert [(each.uri, each.is_template) for each in listed[1:]] == [
            ("book://scan", False),
            ("page://{number}", True),
        ]
        assert await server.read("book://one") == ["once upon a time"]
        assert await server.read("page://7") == ["page 7"]
        (scan,) = await server.read("book://scan")
        assert isinstance(scan, File)
        assert (scan.data, scan.media_type) == (b"%PDF", "application/pdf")
        with pytest.raises(McpFailed, match="book://none"):
            await server.read("book://none")


@pytest.mark.parametrize("era", ERAS)
@virtual
async def test_a_prompt_is_filled_in_as_messages(era: Era) -> None:
    server = mcp_tools(library, era=era)
    async with server:
        (review,) = await server.prompts()
        assert (review.name, review.arguments, review.required) == ("review", ("subject", "tone"), ("subject",))
        messages = await server.prompt("review", subject="this", tone="strict")
        assert [(each.role, each.text) for each in messages] == [
            ("user", "review this, be strict"),
            ("assistant", "gladly"),
        ]
        with pytest.raises(McpFailed):
            await server.prompt("review")


@virtual
async def test_a_model_reads_resources_with_two_tools() -> None:
    server = mcp_tools(library, prefix="lib-")
    async with server as tools:
        model = ScriptedModel(
            call("lib-list_resources"),
            call("lib-read_resource", uri="book://one"),
            call("lib-read_resource", url="book://one"),
            call("lib-read_resource", uri="book://none"),
            say("done"),
        )
        agent = Agent("a", model=model, tools=[*tools, *server.resource_tools()])
        listed, read, wrong, unknown = (await agent.run("go")).ledger
    assert (listed.content or "").splitlines()[0] == "book://one: one; The first book.; text/plain"
    assert (read.content, read.remote, read.effect) == ("once upon a time", True, "pure")
    assert "uri: missing" in (wrong.content or wrong.error or "")
    assert unknown.state == "failed"


@pytest.mark.parametrize("era", ERAS)
def test_a_caller_is_cancelled_although_the_answer_has_just_arrived(era: Era) -> None:
    async def scenario() -> None:
        server = mcp_tools(library, era=era)
        async with server:
            await server.resources()
            await server.read("book://one")
            await server.prompts()
            await server.prompt("review", subject="this")

    report = check_cancellable(scenario, kinds=[CALLER])
    assert report.failures == []
    assert report.injections > 0


@virtual
async def test_a_server_without_resources_and_prompts_has_none() -> None:
    server = mcp_tools(lambda: Asking().server)
    async with server:
        assert await server.resources() == []
        assert await server.prompts() == []
