"""A module that only one other imports needs a reason to be one; here they are, by the names they hold for.

A reason belongs to a kind of module, such as the routes of a server. What no reason covers is merged with its importer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatch

from tests.house.test_layering import imports
from tests.house.tree import Source, sources

REASONS = {
    "adapters": "a window; `safepoint serve` and `chat` load it for an agent of another framework only",
    "agent.as_tool": "an agent as a tool is an idea of its own, and `base` would pass 300 lines",
    "agent.call_hooks": "decides in plain functions, and is tested without a run",
    "agent.driver": "made by `Agent`, as `compose.driver` is by composites",
    "agent.ending": "plain functions that make a result, tested without a run",
    "agent.event_json": "behind the window `safepoint.events`, which loads pydantic",
    "agent.run_stream": "what `stream` returns",
    "agent.span*": "loaded only where OpenTelemetry is installed",
    "agent.sync_streamed": "what `stream_sync` returns, in a thread of its own",
    "cli.*": "a command is loaded when it is called, so that `--help` is quick",
    "cluster.*": "an engine is loaded with its extra; a worker is for programs of their own",
    "compose.*": "loaded when it is first used; the plan and the run of its children are two ideas",
    "history.bounded_json": "a writer for any value, which knows nothing of tools",
    "models": "a window",
    "models.*_account": "a way to sign in, loaded with its extra",
    "models.*_wire": "a provider's JSON, pure, tested without its SDK",
    "models.weights": "a download, apart from the model that needs it",
    "protocols.*": "a wire: its events, its requests and its routes apart, and pure where they can be",
    "server.routes.*": "the app mounts it",
    "server.api_docs": "a page, apart from the routes that send it",
    "server.connection": "uvicorn's protocol, apart from the process that runs it",
    "server.logs": "set up by `serve` only: an app inside another program keeps that program's logs",
    "server.middleware": "the app mounts it",
    "server.pagination": "plain functions, tested without a server",
    "serving.*": "one idea each, beside a run manager of 500 lines",
    "sessions.*": "one idea each, beside a session of 600 lines",
    "tools.callables": "loaded by the window `safepoint.tools`: the other direction of the adapters",
    "storage.postgres.*": "loaded with the extra; the client's side, apart from the storage's",
    "storage.sqlite.*": "the rows of one part of the storage, or one thread of it",
    "testing": "a window",
    "testing.*": "a tool of the kit each; what is measured by its file must be one (`virtual_sleep`)",
    "tools.*_tool*": "loaded when it is first used, with its extra",
    "tools.process_call": "loaded for a tool that runs in a process",
    "tools.signature": "reads a function's signature, apart from the tool made of it",
    "turns": "a window",
    "turns.*": "one idea each: plans, runs, stops; the loop itself has 400 lines",
}


def importers(files: Iterable[Source]) -> dict[str, set[str]]:
    """Who imports each module, anywhere in a file, also for a type checker."""
    modules = {module_of(source): source for source in files}
    found: dict[str, set[str]] = {name: set() for name in modules}
    for name, source in modules.items():
        for _, dotted in imports(source.parse()):
            parts = dotted.split(".")
            while parts and ".".join(parts) not in modules:
                parts.pop()
            if parts and ".".join(parts) != name:
                found[".".join(parts)].add(name)
    return found


def module_of(source: Source) -> str:
    return source.path.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def without_reason(found: Mapping[str, set[str]], reasons: Iterable[str]) -> list[str]:
    single = [name.removeprefix("safepoint.") for name, by in found.items() if len(by) == 1]
    return sorted(name for name in single if not any(fnmatch(name, pattern) for pattern in reasons))


def test_a_module_that_one_other_imports_has_a_reason() -> None:
    found = importers(sources("src/safepoint"))
    assert without_reason(found, REASONS) == [], "merge it with the module that imports it, or add its reason"


def test_no_reason_is_left_over() -> None:
    found = importers(sources("src/safepoint"))
    assert [pattern for pattern in REASONS if without_reason(found, [pattern]) == without_reason(found, [])] == []


def test_a_module_with_one_importer_is_found() -> None:
    files = [
        Source("src/safepoint/a/__init__.py", ""),
        Source("src/safepoint/a/one.py", "from safepoint.a.two import x"),
        Source("src/safepoint/a/two.py", "from safepoint.a import three\nfrom safepoint.a.one import y"),
        Source("src/safepoint/a/three.py", "if TYPE_CHECKING:\n    from safepoint.a import one"),
    ]
    assert without_reason(importers(files), []) == ["a.three", "a.two"]
    assert without_reason(importers(files), ["a.t*"]) == []
