"""The project's files, as the house rules see them.

A rule is a pure function from sources to a list of complaints. It is shown to bite on a small bad example, and
then has to find nothing in the project. What counts as a file of the project is what would be committed: the rules
read `.gitignore` instead of asking git, so that they also hold in an unpacked archive.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("src", "tests", "examples", "bench")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Source:
    """One file: its path from the root, with forward slashes, and its text."""

    path: str
    text: str

    def parse(self) -> ast.Module:
        """The same tree each time: a rule reads it and changes nothing."""
        return _parse(self.text, self.path)


@cache
def _parse(text: str, path: str) -> ast.Module:
    return ast.parse(text, path)


@cache
def project_files() -> list[Path]:
    """Every file that git would take, except git's own."""
    lines = (ROOT / ".gitignore").read_text().splitlines()
    ignored = [".git", *(line.rstrip("/") for line in lines if line and not line.startswith("#"))]
    complex_patterns = [pattern for pattern in ignored if "/" in pattern or pattern.startswith("!")]
    assert not complex_patterns, f"the house rules read plain names in .gitignore, not {complex_patterns}"
    return sorted(_walk(ROOT, ignored))


def _walk(directory: Path, ignored: list[str]) -> Iterator[Path]:
    for entry in directory.iterdir():
        if any(fnmatch(entry.name, pattern) for pattern in ignored):
            continue
        if entry.is_dir():
            yield from _walk(entry, ignored)
        else:
            yield entry


def sources(*tops: str, suffix: str = ".py") -> list[Source]:
    """The files with this suffix that are one of `tops` or below it; bytes that are not text become marks."""
    found: list[Source] = []
    for file in project_files():
        path = file.relative_to(ROOT).as_posix()
        if path.endswith(suffix) and any(path == top or path.startswith(f"{top}/") for top in tops):
            found.append(_source(file, path))
    return found


@cache
def _source(file: Path, path: str) -> Source:
    return Source(path, file.read_text(errors="replace"))


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, FunctionNode]]:
    """Every function in the tree with its dotted name, methods and nested ones included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FunctionNode | ast.ClassDef):
            name = f"{prefix}{node.name}"
            if isinstance(node, FunctionNode):
                yield name, node
            yield from functions(node, f"{name}.")
        elif not isinstance(node, ast.expr):  # most of a tree, and no `def` is in one
            yield from functions(node, prefix)
