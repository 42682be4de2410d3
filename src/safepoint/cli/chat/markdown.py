"""Markdown as it streams: finished blocks are printed once, the block that is being written is shown live.

A block ends at a blank line, or with its closing fence. What was printed is ordinary scrollback and never changes.
"""

from __future__ import annotations

import io
import re
from typing import ClassVar, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")


class BlockSplitter:
    """Takes pieces of a text; gives finished blocks. `tail` is the rest."""

    def __init__(self) -> None:
        self.tail = ""
        self._fence: str | None = None
        self._seen = 0  # characters of `tail` that were looked at, whole lines only

    def feed(self, piece: str) -> list[str]:
        self.tail += piece
        blocks: list[str] = []
        while (end := self.tail.find("\n", self._seen)) >= 0:
            line = self.tail[self._seen : end]
            self._seen = end + 1
            if self._ends_block(line):
                blocks.append(self.tail[: self._seen])
                self.tail, self._seen = self.tail[self._seen :], 0
        return [block for block in blocks if block.strip()]

    def _ends_block(self, line: str) -> bool:
        fence = _FENCE.match(line)
        if self._fence is not None:
            if fence is not None and fence[1].startswith(self._fence) and line.strip() == fence[1]:
                self._fence = None
                return True
            return False
        if fence is not None:
            self._fence = fence[1]
            return False
        return not line.strip()

    def finish(self) -> str:
        """The rest, which is finished now."""
        rest, self.tail, self._fence, self._seen = self.tail, "", None, 0
        return rest


class _BarredCode(CodeBlock):
    """Code behind a bar, in the terminal's own colours and on its own background."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        width = max(10, options.max_width - 4)
        syntax = Syntax(code, self.lexer_name, theme="ansi_dark", background_color="default", word_wrap=True)
        bar = Segment("  │ ", Style(dim=True))
        for line in console.render_lines(syntax, options.update_width(width), pad=False):
            yield bar
            yield from line
            yield Segment("\n")


class _LeftHeading(Heading):
    """Bold, at the left edge: a box around a title is too loud for a conversation."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text: Text = self.text
        text.justify = "left"
        text.stylize("bold")
        yield text


class _ChatMarkdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "fence": _BarredCode,
        "code_block": _BarredCode,
        "heading_open": _LeftHeading,
    }


def render(block: str, *, width: int, colour: bool) -> str:
    """The block as text with the terminal's codes, without a last newline."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=max(20, width),
        force_terminal=True,
        color_system="standard",
        no_color=not colour,
        highlight=False,
    )
    console.print(_ChatMarkdown(block, code_theme="ansi_dark"))
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").split("\n"))
