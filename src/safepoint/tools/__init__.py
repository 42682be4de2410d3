"""Tools that come with Safepoint. `@tool` itself is imported from `safepoint`.

Each is loaded on first use: a program without a shell tool does not pay for one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from safepoint.tools.callables import as_callable
    from safepoint.tools.fetch_tool import Fetch, fetch
    from safepoint.tools.file_tools import files
    from safepoint.tools.mcp_features import McpFeatures, McpQuestion, McpSampling
    from safepoint.tools.mcp_resources import McpPrompt, McpResource, McpResourceTool
    from safepoint.tools.mcp_tool import McpTool, McpTools, mcp_tools
    from safepoint.tools.shell_tool import Shell, shell

__all__ = [
    "Fetch",
    "McpFeatures",
    "McpPrompt",
    "McpQuestion",
    "McpResource",
    "McpResourceTool",
    "McpSampling",
    "McpTool",
    "McpTools",
    "Shell",
    "as_callable",
    "fetch",
    "files",
    "mcp_tools",
    "shell",
]

_HOMES = {
    "Fetch": "fetch_tool",
    "McpFeatures": "mcp_features",
    "McpPrompt": "mcp_resources",
    "McpQuestion": "mcp_features",
    "McpResource": "mcp_resources",
    "McpResourceTool": "mcp_resources",
    "McpSampling": "mcp_features",
    "McpTool": "mcp_tool",
    "McpTools": "mcp_tool",
    "Shell": "shell_tool",
    "as_callable": "callables",
    "fetch": "fetch_tool",
    "files": "file_tools",
    "mcp_tools": "mcp_tool",
    "shell": "shell_tool",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
