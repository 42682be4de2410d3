"""A tool that runs in a process of its own: `@tool(run_in="process")`. Only such code can always be stopped.

The function is not sent: the new process imports its module and finds it by name, as `multiprocessing` does when it
spawns. The arguments are pickled; the reply is never unpickled: the worker writes the text for the model, as JSON, into
a file without a name. So a broken worker can lie, but it cannot run code in the host.

A process has no `ToolContext`: it cannot see the run. NOW sends TERM, which raises `StopTool` in the function, so that
`finally` blocks run; a process that does not end is killed, with everything it has started.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from safepoint._values import Value
from safepoint.errors import ToolDefinitionError

# Set in a worker while it imports the program that started it.
importing = False


class Job(Value, frozen=True):
    """The first message to a worker: the program to import, if the function is in there."""

    argv: list[str]
    main_name: str | None
    main_path: str | None


class ProcessTarget(Value, frozen=True):
    """Where a function can be found again: its module, and its name in there."""

    module: str
    qualname: str

    @classmethod
    def of(cls, label: str, function: Callable[..., Any], *, context: bool) -> ProcessTarget:  # Any: every function
        """Refuse, when the tool is defined, a function that another process could not find or call."""
        if not inspect.isfunction(function) or "<lambda>" in function.__qualname__:
            raise ToolDefinitionError(f"{label}: run_in='process' needs a plain function, written with `def`")
        if "<locals>" in function.__qualname__:
            raise ToolDefinitionError(
                f"{label} is defined inside another function, where a new process can't find it; "
                "move it to the top of its module, or write run_in='thread'"
            )
        if context:
            raise ToolDefinitionError(
                f"{label}: a process has no ToolContext; take that parameter out, pass what the function needs as "
                "arguments, and clean up in `finally`, or write run_in='thread'"
            )
        main = sys.modules.get("__main__")
        if function.__module__ == "__main__" and getattr(main, "__file__", None) is None:
            raise ToolDefinitionError(
                f"{label} is typed in here and not in a file, where a new process can't find it; put it in a module"
            )
        return cls(function.__module__, function.__qualname__)

    def find(self) -> object:
        """The object that has that name now: a tool, or a function."""
        found: object = sys.modules.get(self.module) or __import__(self.module, fromlist=["_"])
        for name in self.qualname.split("."):
            found = getattr(found, name)
        return found


def check_platform(platform: str = sys.platform) -> None:
    """Refuse a system without process groups."""
    if platform == "win32":
        raise ToolDefinitionError(
            "run_in='process' and shell tools need process groups and signals, which Windows lacks: "
            "write run_in='thread'"
        )
