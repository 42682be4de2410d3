"""MCP servers in the same process: one that asks its client, and one with resources and prompts."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.prompts.base import AssistantMessage, UserMessage
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    ListToolsResult,
    PaginatedRequestParams,
    SamplingMessage,
    TextContent,
    Tool,
)

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]}
POEM = "write a poem"


def text(words: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=words)])


class Asking:
    """A server with the tools `person`, `model` and `folders`, which ask their client, each era in its own way."""

    def __init__(self) -> None:
        self.server: Server[Any] = Server("asking", on_list_tools=self.list_tools, on_call_tool=self.call)
        self.cut = asyncio.Event()

    async def list_tools(self, _: object, params: PaginatedRequestParams | None) -> ListToolsResult:
        names = ("person", "model", "folders")
        return ListToolsResult(tools=[Tool(name=name, input_schema={"type": "object"}) for name in names])

    async def call(self, context: Any, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        if context.protocol_version >= "2026":
            if not params.input_responses:
                return InputRequiredResult(input_requests={"it": REQUESTS[params.name]}, request_state="so far")
            return text(heard(params.input_responses["it"]))
        try:
            return text(heard(await asked(context.session, params.name)))
        except asyncio.CancelledError:
            self.cut.set()
            raise


SAMPLING = CreateMessageRequestParams(
    messages=[SamplingMessage(role="user", content=TextContent(text=POEM))],
    max_tokens=7,
    system_prompt="be brief",
    stop_sequences=["."],
)
REQUESTS: dict[str, Any] = {
    "person": ElicitRequest(params=ElicitRequestFormParams(message="which size?", requested_schema=SCHEMA)),
    "model": CreateMessageRequest(params=SAMPLING),
    "folders": ListRootsRequest(),
}


async def asked(session: Any, what: str) -> Any:  # Any: the SDK's session and results
    match what:
        case "person":
            return await session.elicit_form("which size?", SCHEMA)
        case "model":
            return await session.create_message(
                SAMPLING.messages, max_tokens=7, system_prompt="be brief", stop_sequences=["."]
            )
        case _:
            return await session.list_roots()


def heard(answer: object) -> str:
    match answer:
        case ElicitResult():
            return f"{answer.action} {answer.content}"
        case CreateMessageResult(content=TextContent(text=words)):
            return words
        case ListRootsResult():
            return " ".join(str(root.uri) for root in answer.roots)
        case _:
            raise AssertionError(answer)


def library() -> MCPServer[Any]:  # Any: its lifespan
    server: MCPServer[Any] = MCPServer("library")

    @server.resource("book://one", name="one", description="The first book.", mime_type="text/plain")
    def one() -> str:
        return "once upon a time"

    @server.resource("book://scan", name="scan", mime_type="application/pdf")
    def scan() -> bytes:
        return b"%PDF"

    @server.resource("page://{number}", name="page")
    def page(number: str) -> str:
        return f"page {number}"

    @server.prompt(description="Review a text.")
    def review(subject: str, tone: str = "kind") -> list[UserMessage | AssistantMessage]:
        return [UserMessage(f"review {subject}, be {tone}"), AssistantMessage("gladly")]

    return server
