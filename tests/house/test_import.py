"""`import safepoint` stays light: no outer ring, and nothing to install but anyio, msgspec and pydantic."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import packages_distributions, requires

import pytest

import safepoint
from tests.house.test_layering import RINGS
from tests.house.tree import ROOT

CORE = ["anyio", "msgspec", "pydantic"]

LIST_WHAT_A_STOP_LOADED = """
import asyncio, sys
from safepoint import Agent
from safepoint.testing import ScriptedModel, stall

async def main():
    reached = asyncio.Event()
    caller = asyncio.create_task(Agent("a", model=ScriptedModel(stall(reached.set))).run("go"))
    await reached.wait()
    before = set(sys.modules)
    caller.cancel()
    await asyncio.wait([caller])
    print(*sorted(set(sys.modules) - before), caller.cancelled())

asyncio.run(main())
"""

LIST_WHAT_THE_IMPORT_LOADED = """
import sys
before = set(sys.modules)
import safepoint
print(*sorted(set(sys.modules) - before), sep="\\n")
"""


def heavy_modules(loaded: Iterable[str], allowed: set[str], owners: Mapping[str, Iterable[str]]) -> list[str]:
    """The loaded modules that belong to ring 3, or to a distribution that is not allowed."""
    heavy: list[str] = []
    for module in loaded:
        top, _, rest = module.partition(".")
        if top == "safepoint":
            if RINGS.get(rest.split(".")[0]) == 3:
                heavy.append(module)
        elif top not in sys.stdlib_module_names and not top.startswith("_sysconfigdata"):
            distributions = {normal(name) for name in owners.get(top, [])}
            if not distributions & allowed:
                heavy.append(module)
    return heavy


def normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def requirement_name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return normal(found[0])


def with_their_own_dependencies(names: Iterable[str]) -> set[str]:
    closed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in closed:
            continue
        closed.add(name)
        if name in installed():
            wanted = [line for line in requires(name) or [] if "extra ==" not in line]
            waiting += [requirement_name(line) for line in wanted]
    return closed


def installed() -> set[str]:
    return {normal(name) for names in packages_distributions().values() for name in names}


def test_safepoint_depends_on_anyio_msgspec_and_pydantic_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [requirement_name(line) for line in project["dependencies"]] == CORE


def test_importing_safepoint_loads_no_outer_ring_and_no_other_package() -> None:
    command = [sys.executable, "-W", "error", "-X", "importtime", "-c", LIST_WHAT_THE_IMPORT_LOADED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert "safepoint" in loaded
    assert heavy_modules(loaded, with_their_own_dependencies(CORE), packages_distributions()) == []


def test_composites_and_loops_of_turns_are_loaded_by_those_who_name_them() -> None:
    program = f"{LIST_WHAT_THE_IMPORT_LOADED}print('then', safepoint.Parallel, safepoint.TurnLoop, *sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, _, then = done.stdout.partition("then ")
    late = {"safepoint.compose.parallel", "safepoint.turns.loop"}
    assert not late & set(first.split())
    assert late <= set(then.split())


def test_the_first_stop_of_a_process_does_not_wait_for_imports() -> None:
    program = [sys.executable, "-W", "error", "-c", LIST_WHAT_A_STOP_LOADED]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


def test_a_misspelt_name_is_no_name_of_safepoint() -> None:
    with pytest.raises(AttributeError, match=r"^module 'safepoint' has no attribute 'Paralel'$"):
        getattr(safepoint, "Paralel")  # noqa: B009  # a type checker knows it too


def test_a_heavy_import_is_named() -> None:
    loaded = ["asyncio", "safepoint.agent", "safepoint.server.app", "pydantic_core", "hypothesis.strategies", "unowned"]
    allowed = with_their_own_dependencies(CORE)
    heavy = ["safepoint.server.app", "hypothesis.strategies", "unowned"]
    assert heavy_modules(loaded, allowed, packages_distributions()) == heavy
