"""Tools that come with Safepoint. `@tool` itself is imported from `safepoint`."""

from safepoint.tools.fetch import Fetch, fetch
from safepoint.tools.files import files
from safepoint.tools.mcp_tool import McpTool, McpTools, mcp_tools
from safepoint.tools.shell import Shell, shell

__all__ = ["Fetch", "McpTool", "McpTools", "Shell", "fetch", "files", "mcp_tools", "shell"]
