"""Every example runs as it stands, ends by itself, and says in its first line what it shows."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.house.tree import ROOT
from tests.program import run_program

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
EACH_EXAMPLE = pytest.mark.parametrize(
    "example", [pytest.param(file, id=file.name) for file in EXAMPLES] or [pytest.param(None, id="there is none yet")]
)


def first_line(text: str) -> str:
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


@EACH_EXAMPLE
def test_an_example_runs(example: Path | None, tmp_path: Path) -> None:
    if example is not None:
        run_program(example, tmp_path)


@EACH_EXAMPLE
def test_an_example_says_what_it_shows(example: Path | None) -> None:
    if example is not None:
        assert first_line(example.read_text()), f"{example.name}: open it with a docstring that says what it shows"


def test_an_example_that_fails_or_is_silent_is_found(tmp_path: Path) -> None:
    example = tmp_path / "broken.py"
    example.write_text("1 / 0")
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        test_an_example_runs(example, tmp_path)
    with pytest.raises(AssertionError, match="open it with a docstring"):
        test_an_example_says_what_it_shows(example)
