"""The resources and prompts of an MCP server: for the program that connects, and as two tools for a model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from safepoint._core.ladder import StopPolicy
from safepoint.history.parts import Attachment, Message, Text
from safepoint.tools.bad_arguments import one_problem
from safepoint.tools.base import BaseTool, ToolSpec
from safepoint.tools.mcp_connection import Connection
from safepoint.tools.mcp_content import read_block, read_contents
from safepoint.tools.options import Effect, ToolOptions

if TYPE_CHECKING:
    from safepoint.tools.context import CallContext


@dataclass(frozen=True, slots=True)
class McpResource:
    """Something that a server has for reading. `is_template`: the address has places in braces to fill in."""

    uri: str
    name: str
    description: str | None = None
    media_type: str | None = None
    is_template: bool = False


@dataclass(frozen=True, slots=True)
class McpPrompt:
    """A prompt that a server offers. `arguments` are the names that it takes; `required`, those that it needs."""

    name: str
    description: str | None = None
    arguments: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


async def list_resources(server: Connection) -> list[McpResource]:
    """What the server lists, templates last; nothing of a server without resources."""
    if not await server.offers("resources"):
        return []
    listed = await server.pages(
        "resources", lambda client, cursor: client.list_resources(cursor=cursor), lambda page: page.resources
    )
    templates = await server.pages(
        "resource templates",
        lambda client, cursor: client.list_resource_templates(cursor=cursor),
        lambda page: page.resource_templates,
    )
    return [McpResource(each.uri, each.name, each.description, each.mime_type) for each in listed] + [
        McpResource(each.uri_template, each.name, each.description, each.mime_type, is_template=True)
        for each in templates
    ]


async def read_resource(server: Connection, uri: str) -> list[str | Attachment]:
    """Texts, images and files behind the address. Raises `McpFailed` in the server's words."""
    result = await server.request(f"resource {uri}", lambda client: client.read_resource(uri))
    return [read_contents(each) for each in result.contents]


async def list_prompts(server: Connection) -> list[McpPrompt]:
    """What the server lists; nothing of a server without prompts."""
    if not await server.offers("prompts"):
        return []
    found = await server.pages(
        "prompts", lambda client, cursor: client.list_prompts(cursor=cursor), lambda page: page.prompts
    )
    return [
        McpPrompt(
            each.name,
            each.description,
            tuple(argument.name for argument in each.arguments or ()),
            tuple(argument.name for argument in each.arguments or () if argument.required),
        )
        for each in found
    ]


async def get_prompt(server: Connection, name: str, arguments: Mapping[str, str]) -> list[Message]:
    """The prompt as messages. Raises `McpFailed` in the server's words."""
    result = await server.request(f"prompt {name}", lambda client: client.get_prompt(name, dict(arguments)))
    return [Message(each.role, (_part(read_block(each.content)),)) for each in result.messages]


def _part(read: str | Attachment) -> Text | Attachment:
    return Text(read) if isinstance(read, str) else read


class McpResourceTool(BaseTool):
    """One of the two tools for a model: it lists a server's resources, or reads one."""

    remote = True

    def __init__(self, spec: ToolSpec, options: ToolOptions, read: Callable[[str], Awaitable[object]]) -> None:
        self.spec = spec
        self.options = replace(options, effect=Effect.PURE)
        self._read = read

    @classmethod
    def both(cls, server: Connection, prefix: str, options: ToolOptions) -> list[McpResourceTool]:
        """The tools `list_resources` and `read_resource`."""

        async def listed(_: str) -> str:
            return "\n".join(map(_line, await list_resources(server))) or "the server lists no resources"

        async def read(uri: str) -> object:
            found = await read_resource(server, uri)
            return found[0] if len(found) == 1 and isinstance(found[0], str) else found

        nothing: dict[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}
        address: dict[str, object] = {
            "type": "object",
            "properties": {"uri": {"type": "string", "description": "the resource's address"}},
            "required": ["uri"],
            "additionalProperties": False,
        }
        say = f"the resources of {server.name}"
        return [
            cls(ToolSpec(f"{prefix}list_resources", f"List {say}.", nothing), options, listed),
            cls(ToolSpec(f"{prefix}read_resource", f"Read one of {say} by its address.", address), options, read),
        ]

    @property
    def stop_policy(self) -> StopPolicy:
        return StopPolicy(grace=self.options.grace)

    def validate(self, args: Mapping[str, Any]) -> dict[str, Any]:  # Any: decoded JSON
        wanted: Mapping[str, object] = self.spec.parameters["properties"]
        for name in wanted:
            if not isinstance(args.get(name), str):
                raise one_problem(f"{name}: missing, but required; expected a string")
        if unknown := sorted(set(args) - set(wanted)):
            raise one_problem(f"{unknown[0]}: unknown argument; leave it out")
        return dict(args)

    async def body(self, context: CallContext[Any], args: dict[str, Any]) -> object:
        """One request. Cancellation: announced to the server."""
        return await self._read(str(args.get("uri", "")))


def _line(resource: McpResource) -> str:
    about = "; ".join(filter(None, (resource.name, resource.description, resource.media_type)))
    return f"{resource.uri}: {about}"
