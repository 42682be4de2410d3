"""Names: a file is named for the noun it owns, no participle or pronoun names a thing, and cancelled has two l's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from tests.house.tree import CODE, ROOT, Source, project_files, sources

NO_NOUN = re.compile(r"(^|_)(utils?|helpers?|common|misc)(_|$)")
ONE_L = re.compile(r"cancel(?:ed|ing|ation)\b", re.IGNORECASE)
# Names that say neither what a thing is nor what a function does. `OWN` of the testing kit is public, and stays.
NO_NAMES = frozenset({"told", "taken", "knowing", "others", "own"})
PROTOCOLS = "src/safepoint/protocols/"  # a protocol's own spelling stays in that protocol's module


def modules_without_a_noun(paths: Iterable[str]) -> list[str]:
    """The paths of code of which some part, folder or file, is named for no noun."""
    code = [path for path in paths if path.endswith(".py") and path.split("/")[0] in CODE]
    return [path for path in code if any(NO_NOUN.search(part) for part in path.removesuffix(".py").split("/"))]


def misspellings(source: Source) -> list[str]:
    if source.path.startswith(PROTOCOLS):
        return []
    return [
        f"{source.path}:{number}: write {found[0]} with two l's"
        for number, line in enumerate(source.text.splitlines(), 1)
        for found in ONE_L.finditer(line)
    ]


def names_defined(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that the source gives to something, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)):
                yield node.lineno, name
            case _:
                pass


def unclear_names(source: Source) -> list[str]:
    return [
        f"{source.path}:{line}: {name} is no name: write the noun for what it holds, or the verb for what it does"
        for line, name in names_defined(source.parse())
        if name != "OWN" and name.strip("_").lower() in NO_NAMES
    ]


def test_no_participle_and_no_pronoun_is_a_name() -> None:
    assert [complaint for source in sources("src") for complaint in unclear_names(source)] == []


def test_a_participle_is_found_wherever_it_names_something() -> None:
    bad = [
        "told = 1",
        "def taken(): ...",
        "class _Told: ...",
        "def f(own): ...",
        "self._others = 1",
        "try: ...\nexcept E as own: ...",
    ]
    good = ["told_at = 1", "self.others", "f(told)", "OWN = 1"]
    assert [len(unclear_names(Source("src/a.py", text))) for text in bad] == [1] * len(bad)
    assert [unclear_names(Source("src/a.py", text)) for text in good] == [[]] * len(good)


def test_every_module_is_named_for_a_noun() -> None:
    assert modules_without_a_noun(file.relative_to(ROOT).as_posix() for file in project_files()) == []


def test_cancelled_has_two_ls() -> None:
    prose = sources("README.md", "CONTRIBUTING.md", "docs", "changes", suffix=".md")
    files = [*sources("src", "examples", "bench"), *prose]
    assert [complaint for source in files for complaint in misspellings(source)] == []


def test_a_module_for_everything_is_found() -> None:
    bad = ["src/safepoint/utils.py", "src/safepoint/_utils.py", "tests/loop_helpers.py", "bench/common/timing.py"]
    good = ["src/safepoint/commonplace.py", "docs/misc.md", "src/safepoint/agent/loop.py"]
    assert modules_without_a_noun([*bad, *good]) == bad


def test_one_l_is_found_outside_the_protocols() -> None:
    text = "state = 'Canceled'  # canceling\nCancelledError, cancellation\ncancelation"
    assert [line.split(":")[1] for line in misspellings(Source("src/safepoint/a.py", text))] == ["1", "1", "3"]
    assert misspellings(Source("src/safepoint/protocols/a2a.py", text)) == []
