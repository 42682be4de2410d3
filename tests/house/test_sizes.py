"""Sizes have gates, because advice about the tail does not bite.

Aim at 400 lines for a source file and 40 for a function. Each waiver below names a ceiling; the lists may only
shrink: a waiver that is no longer needed fails the test until it is removed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping

from tests.house.tree import CODE, FunctionNode, Source, functions, sources

SOURCE_LINES = 600
TEST_LINES = 800
BODY_LINES = 60
PARAMETERS = 8

FILE_WAIVERS: dict[str, int] = {}
BODY_WAIVERS: dict[str, int] = {}
# Signatures that the contract fixes: every name in them is a word that users meet first.
PARAMETER_WAIVERS = {
    "Agent.__init__": 13,
    "BaseAgent.start": 9,
    "BaseAgent.stream": 9,
    "TurnLoop.__init__": 11,
}


def file_lines(files: Iterable[Source]) -> dict[str, int]:
    return {source.path: len(source.text.splitlines()) for source in files}


def body_lines(files: Iterable[Source]) -> dict[str, int]:
    """The lines of each function, from its first statement after the docstring to its last."""
    named = ((f"{source.path}::{name}", node) for source in files for name, node in functions(source.parse()))
    return largest((name, _body_lines(node)) for name, node in named)


def largest(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    """One size per name: overloads and namesakes must not hide the biggest of them."""
    found: dict[str, int] = {}
    for name, size in sizes:
        found[name] = max(size, found.get(name, 0))
    return found


def _body_lines(node: FunctionNode) -> int:
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body:
        return 0
    return (body[-1].end_lineno or body[-1].lineno) - body[0].lineno + 1


def parameter_counts(files: Iterable[Source]) -> dict[str, int]:
    """The parameters of each function; `self` and `cls` do not count."""
    named = (pair for source in files for pair in functions(source.parse()))
    return largest((name, len(_parameters(node))) for name, node in named)


def _parameters(node: FunctionNode) -> list[str]:
    args = node.args
    every = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    names = [arg.arg for arg in every if arg is not None]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def size_complaints(sizes: Mapping[str, int], gate: int, waivers: Mapping[str, int]) -> Iterator[str]:
    for name, size in sizes.items():
        ceiling = waivers.get(name, gate)
        if size > ceiling:
            yield f"{name}: {size}, and the gate is {ceiling}"
        elif name in waivers and size <= gate:
            yield f"{name}: {size} is within the gate of {gate}; remove its waiver"


def boolean_positionals(source: Source) -> Iterator[str]:
    """The parameters of public functions that invite `call(x, True)`."""
    for name, node in functions(source.parse()):
        if any(part.startswith("_") and not part.endswith("__") for part in name.split(".")):
            continue
        positional = [*node.args.posonlyargs, *node.args.args]
        with_default = positional[len(positional) - len(node.args.defaults) :]
        for arg, default in zip(with_default, node.args.defaults, strict=True):
            if isinstance(default, ast.Constant) and isinstance(default.value, bool):
                yield f"{source.path}:{arg.lineno}: {name}({arg.arg}={default.value}): put it behind a `*`"


def test_source_files_stay_within_the_gate() -> None:
    sizes = file_lines(sources("src", "examples", "bench"))
    assert list(size_complaints(sizes, SOURCE_LINES, FILE_WAIVERS)) == []


def test_test_files_stay_within_the_gate() -> None:
    assert list(size_complaints(file_lines(sources("tests")), TEST_LINES, FILE_WAIVERS)) == []


def test_functions_stay_within_the_gate() -> None:
    assert list(size_complaints(body_lines(sources(*CODE)), BODY_LINES, BODY_WAIVERS)) == []


def test_no_function_takes_more_than_eight_parameters() -> None:
    counts = parameter_counts(sources("src"))
    assert list(size_complaints(counts, PARAMETERS, PARAMETER_WAIVERS)) == []


def test_no_public_function_takes_a_boolean_by_position() -> None:
    assert [complaint for source in sources("src") for complaint in boolean_positionals(source)] == []


def test_a_size_over_the_gate_is_named_and_a_waiver_raises_it() -> None:
    assert list(size_complaints({"a": 501}, 500, {})) == ["a: 501, and the gate is 500"]
    assert list(size_complaints({"a": 501}, 500, {"a": 510})) == []
    assert list(size_complaints({"a": 511}, 500, {"a": 510})) == ["a: 511, and the gate is 510"]


def test_a_waiver_that_is_no_longer_needed_must_go() -> None:
    assert list(size_complaints({"a": 500}, 500, {"a": 510})) == ["a: 500 is within the gate of 500; remove its waiver"]


def test_what_is_measured_is_the_file_the_body_and_the_parameters() -> None:
    text = 'class A:\n    async def f(self, a, /, b, *c, d, **e):\n        """Say.\n        """\n        a\n        b\n'
    source = Source("a.py", text)
    assert file_lines([source]) == {"a.py": 6}
    assert body_lines([source]) == {"a.py::A.f": 2}
    assert parameter_counts([source]) == {"A.f": 5}
    assert body_lines([Source("b.py", 'def f():\n    """Only words."""\n')]) == {"b.py::f": 0}


def test_a_namesake_does_not_hide_a_long_parameter_list() -> None:
    assert parameter_counts([Source("a.py", "def f(a, b): ..."), Source("b.py", "def f(): ...")]) == {"f": 2}


def test_a_boolean_by_position_is_found_in_public_functions_only() -> None:
    bad = ["def f(a, b=True): ...", "def f(b=False, /): ...", "class A:\n    def __init__(self, b=True): ..."]
    good = [
        "def f(a, *, b=True): ...",
        "def _f(b=True): ...",
        "class _A:\n    def f(self, b=True): ...",
        "def f(b=1): ...",
    ]
    assert [len(list(boolean_positionals(Source("a.py", text)))) for text in bad] == [1, 1, 1]
    assert [list(boolean_positionals(Source("a.py", text))) for text in good] == [[], [], [], []]
