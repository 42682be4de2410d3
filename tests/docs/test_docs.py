"""Every Python block of the README and of docs/ runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import programs
from tests.house.tree import sources
from tests.program import run_program

PROGRAMS = [
    pytest.param(page.path, program.text, id=f"{page.path}:{program.line}")
    for page in sources("README.md", "docs", suffix=".md")
    for program in programs(page.text)
]


@pytest.mark.parametrize(("page", "text"), PROGRAMS or [pytest.param("", "", id="there is no Python block yet")])
def test_a_block_of_the_docs_runs(page: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / f"{Path(page).name}.py"
    file.write_text(text)
    run_program(file, tmp_path)


def test_the_pages_that_are_read_include_the_readme() -> None:
    assert "README.md" in [page.path for page in sources("README.md", "docs", suffix=".md")]


def test_a_block_that_fails_or_warns_fails_its_test(tmp_path: Path) -> None:
    for text in ("1 / 0", "import warnings; warnings.warn('old')", "raise SystemExit(3)"):
        with pytest.raises(AssertionError, match=r"page\.md\.py ended with"):
            test_a_block_of_the_docs_runs("docs/page.md", text, tmp_path)
