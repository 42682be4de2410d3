"""Three rings; an inner one never imports an outer one, not even for a type checker."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.tree import Source, sources

RINGS = {
    "_core": 1,
    "errors": 1,
    "__main__": 3,
    "_extras": 3,
    "history": 2,
    "agent": 2,
    "tools": 2,
    "compose": 2,
    "turns": 2,
    "sessions": 2,
    "storage": 2,
    "events": 2,
    "models": 3,
    "server": 3,
    "cli": 3,
    "protocols": 3,
    "testing": 3,
}
CORE_NEVER_IMPORTS = {
    "aiohttp",
    "http",
    "httpx",
    "httpx2",
    "json",
    "pydantic",
    "pydantic_core",
    "requests",
    "socket",
    "socketserver",
    "ssl",
    "starlette",
    "urllib",
    "uvicorn",
    "websockets",
}
WINDOW = "safepoint/__init__"


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every import anywhere in the tree, as (line, dotted name); `from a import b` is `a.b`."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                start = "." * level + (module or "")
                yield from ((node.lineno, f"{start}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(module)), *_]
            ):
                if name in ("import_module", "__import__"):
                    yield node.lineno, module
            case _:
                pass


def unit_of(dotted: str) -> str | None:
    """The part of Safepoint that an import names: a key of RINGS, WINDOW for the package itself, None for others."""
    package, *rest = dotted.split(".")
    if package != "safepoint":
        return None
    return rest[0] if rest and rest[0] in RINGS else WINDOW


def layering_complaints(source: Source) -> list[str]:
    unit = source.path.removeprefix("src/safepoint/").removesuffix(".py").split("/")[0]
    if unit == "__init__":
        return window_complaints(source)
    if unit not in RINGS:
        return [f"{source.path}: say in RINGS to which ring {unit} belongs"]
    complaints: list[str] = []
    for line, dotted in imports(source.parse()):
        where = f"{source.path}:{line}"
        target = unit_of(dotted)
        if dotted.startswith("."):
            complaints.append(f"{where}: write the import of {dotted} in full")
        elif target == WINDOW and RINGS[unit] < 3:
            complaints.append(f"{where}: {unit} imports {dotted} through the public window")
        elif target in RINGS and RINGS[target] > RINGS[unit]:
            complaints.append(f"{where}: {unit} (ring {RINGS[unit]}) imports {dotted} (ring {RINGS[target]})")
        elif unit == "_core" and dotted.split(".")[0] in CORE_NEVER_IMPORTS:
            complaints.append(f"{where}: _core imports {dotted}")
    return complaints


def window_complaints(source: Source) -> list[str]:
    """The public window may name ring 3 inside its `__getattr__` only, where the import waits until it is used."""
    tree = source.parse()
    lazy = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]
    eager = ast.Module([node for node in tree.body if node not in lazy], [])
    return [
        f"{source.path}:{line}: imports {dotted} (ring 3) outside __getattr__"
        for line, dotted in imports(eager)
        if (target := unit_of(dotted)) in RINGS and RINGS[target] == 3
    ]


def in_unit(path: str, *lines: str) -> list[str]:
    return layering_complaints(Source(f"src/safepoint/{path}", "\n".join(lines)))


def test_an_inner_ring_never_imports_an_outer_one() -> None:
    assert [complaint for source in sources("src/safepoint") for complaint in layering_complaints(source)] == []


def test_an_import_from_an_outer_ring_is_found_wherever_it_hides() -> None:
    for line in (
        "import safepoint.agent.loop",
        "from safepoint.agent import loop",
        "from safepoint import agent",
        "def late(): from safepoint.testing import say",
        "if TYPE_CHECKING: from safepoint.server import Server",
        "importlib.import_module('safepoint.models')",
    ):
        assert len(in_unit("_core/run.py", line)) == 1, line
    assert in_unit("agent/loop.py", "from safepoint.testing import say")
    assert in_unit("errors.py", "from safepoint.agent.result import RunResult")


def test_an_inner_ring_does_not_go_through_the_public_window() -> None:
    assert in_unit("tools/decorator.py", "from safepoint import Agent")
    assert in_unit("_core/run.py", "import safepoint")
    assert in_unit("server/app.py", "from safepoint import Agent") == []


def test_imports_of_the_same_ring_or_an_inner_one_are_fine() -> None:
    assert in_unit("agent/loop.py", "from safepoint.tools import tool", "from safepoint._core.run import Run") == []
    assert in_unit("server/app.py", "from safepoint.models import openai", "import json") == []
    assert in_unit("_core/run.py", "from safepoint.errors import UsageError", "from safepoint import errors") == []


def test_the_core_knows_no_wire_format_and_no_network() -> None:
    for module in ("json", "http.client", "socket", "pydantic", "urllib.request", "ssl"):
        assert in_unit("_core/run.py", f"import {module}"), module
    assert in_unit("agent/loop.py", "import json") == []


def test_a_new_part_must_be_given_a_ring() -> None:
    assert in_unit("elsewhere/thing.py", "import os")


def test_a_relative_import_is_refused_because_it_hides_its_ring() -> None:
    assert in_unit("_core/run.py", "from ..agent import loop")


def test_the_public_window_names_the_outer_ring_only_inside_getattr() -> None:
    lazy = "def __getattr__(name: str) -> object:\n    from safepoint.server import serve\n    return serve"
    assert in_unit("__init__.py", "from safepoint.agent import Agent", lazy) == []
    assert in_unit("__init__.py", "from safepoint.server import serve")
    assert in_unit("__init__.py", "if TYPE_CHECKING:", "    from safepoint.server import serve", lazy)
