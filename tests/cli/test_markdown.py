"""Markdown is printed block by block: a block is whole at a blank line or at its closing fence, never inside one."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from safepoint.cli.chat.markdown import BlockSplitter, render

TEXT = "# Title\n\nWords and\nmore.\n\n```python\na = 1\n\nb = 2\n```\nAfter.\n\n- one\n- two\n"


def test_blocks_end_at_blank_lines_and_closing_fences() -> None:
    splitter = BlockSplitter()
    assert splitter.feed(TEXT) == [
        "# Title\n\n",
        "Words and\nmore.\n\n",
        "```python\na = 1\n\nb = 2\n```\n",
        "After.\n\n",
    ]
    assert splitter.tail == "- one\n- two\n"


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_pieces_of_any_size_give_the_same_blocks(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(TEXT)]
    splitter, whole = BlockSplitter(), BlockSplitter()
    blocks = [block for start, end in pairwise(places) for block in splitter.feed(TEXT[start:end])]
    assert blocks == whole.feed(TEXT)
    assert splitter.finish() == whole.finish()


def test_a_block_is_rendered_for_the_width_that_there_is() -> None:
    text = render("Some **bold** words that do not fit into one line.", width=20, colour=False)
    assert "**" not in text
    assert all(len(line.replace("\x1b[1m", "").replace("\x1b[0m", "")) <= 20 for line in text.split("\n"))
