"""The awaits at which no injection was ever suspended: the holes in a set of reports.

Sites are found in the source (``await``, ``async for``, ``async with``, asynchronous comprehensions) and compared by
line with the lines that were seen suspended. An ``await`` that never really waits stays on the list: no cancellation
can land there.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from safepoint.testing.frames import short
from safepoint.testing.report import Report

Source: TypeAlias = str | os.PathLike[str] | ModuleType
"""A Python file, a directory of them, or an imported module or package."""


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """One place in the source where a coroutine can wait."""

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{short(self.file)}:{self.line} {self.what}"


def never_reached(sources: Iterable[Source], reports: Iterable[Report]) -> list[Site]:
    """The sites in `sources` that no run of `reports` was ever suspended in, in the order of the source."""
    seen = {site for report in reports for site in report.sites}
    missing: set[Site] = set()
    for source in sources:
        for file in _files(source):
            missing.update(
                site for site, lines in _sites(str(file)) if not any((site.file, line) in seen for line in lines)
            )
    return sorted(missing)


def _files(source: Source) -> list[Path]:
    if isinstance(source, ModuleType):
        file = getattr(source, "__file__", None)  # None for a namespace package, absent for a module made by hand
        if file is None:
            raise ValueError(f"{source.__name__} has no file; pass its directory")
        path = Path(file)
        path = path.parent if path.name == "__init__.py" else path
    else:
        path = Path(source)
    if not path.exists():
        raise ValueError(f"{str(path)!r} does not exist; pass a Python file, a directory or a module")
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _sites(file: str) -> Iterator[tuple[Site, set[int]]]:
    """Each site of a file, and the lines that a frame suspended there may show."""
    file = os.path.abspath(file)
    for node in ast.walk(ast.parse(Path(file).read_bytes(), file)):
        match node:
            case ast.Await():
                yield Site(file, node.lineno, "await"), {node.lineno}
            case ast.AsyncFor():
                yield Site(file, node.lineno, "async for"), {node.lineno}
            case ast.AsyncWith():
                # Until 3.12 a frame shows the statement's line, from 3.13 on that of the context manager.
                lines = {node.lineno, *(item.context_expr.lineno for item in node.items)}
                yield Site(file, node.lineno, "async with"), lines
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                if any(generator.is_async for generator in node.generators):
                    yield Site(file, node.lineno, "async comprehension"), {node.lineno}
            case _:
                pass
