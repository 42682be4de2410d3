"""Tools that come with Safepoint. `@tool` itself is imported from `safepoint`."""

from safepoint.tools.mcp_tool import McpTool, McpTools, mcp_tools
from safepoint.tools.shell import Shell, shell

__all__ = ["McpTool", "McpTools", "Shell", "mcp_tools", "shell"]
