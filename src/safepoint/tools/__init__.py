"""Tools that come with Safepoint. `@tool` itself is imported from `safepoint`."""

from safepoint.tools.shell import Shell, shell

__all__ = ["Shell", "shell"]
