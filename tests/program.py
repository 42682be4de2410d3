"""Run a Python file as a user would, in a process of its own, with every warning an error.

The process is forked from one that has imported what the file imports, see `tests/warm`.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.warm.process import start_python

SECONDS = 50  # below the ceiling for a test, so that the report names the program


def run_program(file: Path, cwd: Path, *, seconds: float = SECONDS, fresh: bool = False) -> str:
    """What the program printed. Fails unless it exits 0 in time; whatever it started goes with it.

    `fresh`: in a new Python, for a program that looks at what is imported.
    """
    with tempfile.TemporaryFile() as output:
        process = start_python(
            [str(file)],
            preload=list(imports(file.read_text())),
            cwd=cwd,
            files=(None, output.fileno(), output.fileno()),
            options=["warnings_are_errors", "new_session", *(["fresh"] if fresh else [])],
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise AssertionError(f"{file.name} did not end within {seconds} s\n{_read(output.fileno())}") from None
        printed = _read(output.fileno())
    assert process.returncode == 0, f"{file.name} ended with {process.returncode}\n{printed}"
    return printed


def imports(text: str) -> Iterator[str]:
    """What a program imports, as `module` or `module:name`; nothing of a program that is none."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}:{alias.name}" for alias in names)
            case _:
                pass


def _read(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode()
