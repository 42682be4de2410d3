"""Only the supervisor starts tasks. A task that nobody owns is a task that nobody stops."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.tree import Source, sources

UNOWNED = {"create_task", "ensure_future", "gather", "shield", "wait_for"}
SUPERVISED = ("src/safepoint/_core", "src/safepoint/history", "src/safepoint/agent", "src/safepoint/tools")

# This list may only shrink.
MAY_START_TASKS = {"src/safepoint/_core/supervisor.py"}


def unowned_tasks(source: Source) -> Iterator[str]:
    """Uses of asyncio's unsupervised tools, by the module's name or an alias, imported, or from a loop."""
    tree = source.parse()
    asyncio_names = {"asyncio"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            asyncio_names |= {alias.asname for alias in node.names if alias.name == "asyncio" and alias.asname}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module="asyncio", names=names):
                found = {alias.name for alias in names} & UNOWNED
            case ast.Attribute(value=owner, attr=name) if name in UNOWNED and _is_asyncio(owner, asyncio_names):
                found = {name}
            case _:
                continue
        yield from (f"{source.path}:{node.lineno}: {name}" for name in sorted(found))


def _is_asyncio(owner: ast.expr, asyncio_names: set[str]) -> bool:
    match owner:
        case ast.Name(id=name) if name in asyncio_names:
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in ("get_running_loop", "get_event_loop")
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").endswith("loop")
        case _:
            return False


def task_complaints(files: list[Source], allowed: set[str]) -> Iterator[str]:
    for source in files:
        found = list(unowned_tasks(source))
        if source.path not in allowed:
            yield from found
        elif not found:
            yield f"{source.path}: starts no task; take it off the list, which may only shrink"


def test_only_the_listed_files_start_tasks() -> None:
    assert list(task_complaints(sources(*SUPERVISED), MAY_START_TASKS)) == []


def test_every_way_to_start_an_unowned_task_is_found() -> None:
    for text in (
        "asyncio.create_task(work())",
        "import asyncio as aio\naio.gather(a, b)",
        "from asyncio import shield",
        "asyncio.get_running_loop().create_task(work())",
        "self._loop.create_task(work())",
        "await asyncio.wait_for(work(), timeout)",
    ):
        assert len(list(unowned_tasks(Source("a.py", text)))) == 1, text
    for text in ("async with asyncio.TaskGroup() as group: group.create_task(work())", "ctx.shield(1)"):
        assert list(unowned_tasks(Source("a.py", text))) == [], text


def test_a_listed_file_may_start_tasks_and_leaves_the_list_when_it_no_longer_does() -> None:
    busy, idle = Source("a.py", "asyncio.create_task(work())"), Source("a.py", "")
    assert list(task_complaints([busy], {"a.py"})) == []
    assert list(task_complaints([idle], {"a.py"})) == [
        "a.py: starts no task; take it off the list, which may only shrink"
    ]
