"""Tests wait for a state and never for a time, and replace nothing behind the code's back.

Everything outside is an argument, so a test passes a fake in instead of patching. Whole-process tests may sleep.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.tree import Source, sources

WHOLE_PROCESS = ("tests/process/", "tests/server/")


def sleeps_with_a_number(source: Source) -> Iterator[str]:
    for node in ast.walk(source.parse()):
        match node:
            case ast.Call(func=ast.Attribute(attr="sleep") | ast.Name(id="sleep")):
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                if any(isinstance(arg, ast.Constant) and arg.value != 0 for arg in arguments):
                    yield f"{source.path}:{node.lineno}: sleeps for a number of seconds; wait for a state instead"
            case _:
                pass


def patches(source: Source) -> Iterator[str]:
    for node in ast.walk(source.parse()):
        where = f"{source.path}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.Import(names=names) if any(alias.name.split(".")[:2] == ["unittest", "mock"] for alias in names):
                yield f"{where}: imports unittest.mock; pass a fake in"
            case ast.ImportFrom(module="unittest", names=names) if any(alias.name == "mock" for alias in names):
                yield f"{where}: imports unittest.mock; pass a fake in"
            case ast.ImportFrom(module="unittest.mock"):
                yield f"{where}: imports unittest.mock; pass a fake in"
            case ast.Attribute(attr="setattr"):
                yield f"{where}: monkeypatch.setattr; pass a fake in"
            case _:
                pass


def test_no_test_sleeps_for_a_number_of_seconds() -> None:
    files = [source for source in sources("tests") if not source.path.startswith(WHOLE_PROCESS)]
    assert [complaint for source in files for complaint in sleeps_with_a_number(source)] == []


def test_no_test_patches_anything() -> None:
    assert [complaint for source in sources("tests") for complaint in patches(source)] == []


def test_a_sleep_with_a_number_is_found() -> None:
    for line in ("await asyncio.sleep(0.1)", "time.sleep(2)", "sleep(1)", "await anyio.sleep(delay=3)"):
        assert len(list(sleeps_with_a_number(Source("a.py", line)))) == 1, line
    for line in ("await asyncio.sleep(0)", "await clock.sleep(seconds)", "event.wait(5)"):
        assert list(sleeps_with_a_number(Source("a.py", line))) == [], line


def test_a_patch_is_found() -> None:
    for line in (
        "import unittest.mock",
        "from unittest import mock",
        "from unittest.mock import AsyncMock",
        "monkeypatch.setattr(module, 'name', 1)",
    ):
        assert len(list(patches(Source("a.py", line)))) == 1, line
    assert list(patches(Source("a.py", "monkeypatch.setenv('A', 'b')\nsetattr(x, 'y', 1)"))) == []
