"""Tests wait for a state and never for a time, and replace nothing behind the code's back.

Everything outside is an argument, so a test passes a fake in instead of patching. Whole-process tests may sleep.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.tree import Source, sources

WHOLE_PROCESS = ("tests/process/", "tests/server/", "tests/terminal/", "tests/release/", "tests/cluster/")
STARTERS = ("tests.program", "tests.process.child", "tests.server.server_process")


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


def signals_without_dispositions(source: Source) -> Iterator[str]:
    """Files that send SIGINT, and start nothing by the helpers that give it a meaning where the tests ignore it."""
    tree = source.parse()
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    if imported & {"tests.signals", *STARTERS}:
        return
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="send_signal" | "raise_signal" | "kill"), args=arguments) if any(
                isinstance(each, ast.Attribute) and each.attr == "SIGINT" for each in arguments
            ):
                yield f"{source.path}:{node.lineno}: sends SIGINT, which may be ignored here; see tests/signals.py"
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


def test_a_test_that_sends_sigint_says_what_it_does_where_the_tests_ignore_it() -> None:
    assert [line for source in sources("tests") for line in signals_without_dispositions(source)] == []


def test_a_sigint_that_may_be_ignored_is_found() -> None:
    for line in (
        "signal.raise_signal(signal.SIGINT)",
        "process.send_signal(signal.SIGINT)",
        "os.kill(1, signal.SIGINT)",
    ):
        assert len(list(signals_without_dispositions(Source("a.py", line)))) == 1, line
        told = f"from tests.signals import default_signals\n{line}"
        assert list(signals_without_dispositions(Source("a.py", told))) == []
    assert list(signals_without_dispositions(Source("a.py", "process.send_signal(signal.SIGTERM)"))) == []
