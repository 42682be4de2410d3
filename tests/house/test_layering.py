"""Three rings, and packages that import each other in one direction only, not even for a type checker otherwise."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

from tests.house.tree import Source, sources

RINGS = {
    "_core": 1,
    "_values": 1,
    "errors": 1,
    "__main__": 3,
    "_extras": 3,
    "history": 2,
    "agent": 2,
    "tools": 2,
    "compose": 2,
    "turns": 2,
    "storage": 2,
    "sessions": 2,
    "events": 2,
    "serving": 3,
    "cluster": 3,
    "protocols": 3,
    "server": 3,
    "models": 3,
    "adapters": 3,
    "cli": 3,
    "testing": 3,
}
# Inside a ring: a part, and what it never imports.
NEVER = {
    "agent": {"storage", "sessions", "turns", "compose"},
    "serving": {"protocols", "server", "cli"},
    "protocols": {"server", "cli"},
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
SERVING_NEVER_IMPORTS = {"fastapi", "starlette", "uvicorn", "websockets"}
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


def part_of(source: Source) -> str:
    return source.path.removeprefix("src/safepoint/").removesuffix(".py").split("/")[0]


def layering_complaints(source: Source) -> list[str]:
    unit = part_of(source)
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
        elif target in NEVER.get(unit, ()):
            complaints.append(f"{where}: {unit} never imports {target}")
        elif dotted.split(".")[0] in {"_core": CORE_NEVER_IMPORTS, "serving": SERVING_NEVER_IMPORTS}.get(unit, ()):
            complaints.append(f"{where}: {unit} imports {dotted}")
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


def package_imports(files: list[Source]) -> Counter[tuple[str, str]]:
    """How often each part imports each other one. The public window, which imports them all, is none of them."""
    found: Counter[tuple[str, str]] = Counter()
    for source in files:
        unit = part_of(source)
        targets = [unit_of(dotted) for _, dotted in imports(source.parse())]
        found.update((unit, target) for target in targets if target in RINGS and target != unit and unit in RINGS)
    return found


def cycle_complaints(edges: Iterable[tuple[str, str]]) -> list[str]:
    graph: dict[str, set[str]] = {}
    for source, target in edges:
        graph.setdefault(source, set()).add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [f"packages import each other in a circle: {' imports '.join(reversed(error.args[1]))}"]
    return []


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


def test_packages_import_each_other_in_one_direction() -> None:
    assert cycle_complaints(package_imports(sources("src/safepoint"))) == []


def test_a_circle_of_packages_is_found_also_where_only_a_type_checker_sees_it() -> None:
    inner = Source("src/safepoint/history/parts.py", "if TYPE_CHECKING: from safepoint.compose import loop")
    outer = Source("src/safepoint/compose/loop.py", "def late(): from safepoint.history import parts")
    assert package_imports([inner, outer]) == {("history", "compose"): 1, ("compose", "history"): 1}
    [complaint] = cycle_complaints(package_imports([inner, outer]))
    assert "compose imports history" in complaint
    assert cycle_complaints(package_imports([outer])) == []
