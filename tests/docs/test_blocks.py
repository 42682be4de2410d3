"""The programs of a page are found, joined and refused as `blocks` says."""

from __future__ import annotations

import pytest

from tests.docs.blocks import PageError, programs


def page(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def test_each_python_block_is_a_program_on_its_own_lines_of_the_page() -> None:
    text = page("# Title", "```python", "a = 1", "```", "words", "```bash", "ls", "```", "```python", "b = 2", "```")
    first, second = programs(text)
    assert (first.line, first.text) == (3, "\n\na = 1\n")
    assert (second.line, second.text) == (10, "\n" * 9 + "b = 2\n")


def test_a_block_that_continues_is_appended_to_the_one_before_it() -> None:
    text = page("```python", "a = 1", "```", "words", "```python", "# continues", "assert a == 1", "```")
    (program,) = programs(text)
    assert program.text.splitlines() == ["", "a = 1", "", "", "", "# continues", "assert a == 1"]


def test_an_indented_block_is_a_program_too() -> None:
    assert (
        programs(page("- item", "  ```python", "  if 1:", "      a = 1", "  ```"))[0].text == "\n\nif 1:\n    a = 1\n"
    )


def test_a_fence_inside_a_longer_fence_is_text() -> None:
    assert programs(page("````markdown", "```python", "1 / 0", "```", "````")) == []


def test_a_block_marked_notest_with_a_reason_is_left_out() -> None:
    assert programs(page("<!-- needs a key -->", "```python notest", "1 / 0", "```")) == []


def test_a_providers_model_is_played_by_the_script_above_it() -> None:
    text = page(
        '<!-- played by: ScriptedModel(say("Hi.")) -->', "```python", 'import x; y(model="openai:gpt-5")', "```"
    )
    (program,) = programs(text)
    assert program.text.splitlines()[2].endswith('import x; y(model=ScriptedModel(say("Hi.")))')
    with pytest.raises(PageError, match="has to name one provider"):
        programs(page("<!-- played by: ScriptedModel() -->", "```python", "a = 1", "```"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["```python notest", "a", "```"], "line 2: say in an HTML comment"),
        (["<!-- -->", "```python notest", "a", "```"], "line 3: say in an HTML comment"),
        (["<!-- needs a key -->", "words", "```python notest", "a", "```"], "line 4: say in an HTML comment"),
        (["```python skip", "a", "```"], "line 2: 'skip' means nothing"),
        (["```python", "# continues", "a", "```"], "line 2: it continues nothing"),
        (["```python", "a"], "line 1: this block is never closed"),
    ],
    ids=["no reason", "empty reason", "reason elsewhere", "unknown mark", "continues nothing", "never closed"],
)
def test_a_page_that_cannot_be_run_as_meant_is_refused(lines: list[str], message: str) -> None:
    with pytest.raises(PageError, match=message):
        programs(page(*lines))
