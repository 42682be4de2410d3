"""The tree drawn at the top of errors.py is the tree of its classes: same names, same bases."""

from __future__ import annotations

import ast
import re

from tests.house.tree import ROOT

BRANCH = re.compile(r"^(?P<indent>(?:│  |   )*)[├└]─ (?P<name>\w+)(?:\((?P<bases>[\w, ]+)\))?")
TOP = re.compile(r"^(?P<name>[A-Z]\w+)(?:\((?P<bases>[\w, ]+)\))?(?:  .*)?$")

Tree = dict[str, frozenset[str]]


def drawn_tree(docstring: str) -> Tree:
    """Each drawn name with its bases: the name it hangs from and those in parentheses; alone, it is an Exception."""
    tree: Tree = {}
    above: list[str] = []
    for line in docstring.splitlines():
        if found := BRANCH.match(line):
            depth = len(found["indent"]) // 3 + 1
            parents = above[depth - 1 : depth]
        elif found := TOP.match(line):
            depth = 0
            parents = []
        else:
            continue
        name, others = found["name"], [base.strip() for base in (found["bases"] or "").split(",") if base]
        tree[name] = frozenset([*parents, *others] or ["Exception"])
        above = [*above[:depth], name]
    return tree


def written_tree(module: ast.Module) -> Tree:
    classes = [node for node in module.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return {node.name: frozenset(ast.unparse(base) for base in node.bases) for node in classes}


def test_the_error_tree_is_drawn_as_it_is() -> None:
    module = ast.parse((ROOT / "src/safepoint/errors.py").read_text())
    assert drawn_tree(ast.get_docstring(module) or "") == written_tree(module)


DRAWING = """Errors, in one tree.

Base
├─ Yours(ValueError)   it was you
│  └─ Twice            again
└─ Theirs              it was them

Outside, because nobody may catch it:
Flight(BaseException)  in flight only
"""

CLASSES = """
class Base(Exception): ...
class Yours(Base, ValueError): ...
class Twice(Yours): ...
class Theirs(Base): ...
class Flight(BaseException): ...
class _Private(Base): ...
"""


def test_a_drawing_that_is_right_is_read_as_its_classes() -> None:
    assert drawn_tree(DRAWING) == written_tree(ast.parse(CLASSES))


def test_a_class_that_is_missing_on_either_side_or_hangs_elsewhere_is_found() -> None:
    drawn = drawn_tree(DRAWING)
    for was, now in (
        ("class Theirs(Base): ...", ""),
        ("class Theirs(Base): ...", "class Theirs(Base): ...\nclass More(Base): ..."),
        ("class Twice(Yours)", "class Twice(Base)"),
        ("class Yours(Base, ValueError)", "class Yours(Base)"),
    ):
        assert drawn != written_tree(ast.parse(CLASSES.replace(was, now))), now
