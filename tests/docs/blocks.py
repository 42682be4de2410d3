"""The Python programs inside a Markdown page.

Each ```` ```python ```` block is a program of its own, unless

- its first line is `# continues`: then it is appended to the block before it, or
- it is marked ```` ```python notest ````: then it is not run, and an HTML comment right above it says why.

A block that shows a provider's model, as in `model="openai:gpt-5-mini"`, is run with a scripted one in its place. The
comment right above it says which: `<!-- played by: ScriptedModel(say("Hello.")) -->`. All else runs as it is printed.

A program keeps the line numbers of its page, so that a traceback points at the page.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, replace

FENCE = re.compile(r"^\s*(?P<mark>`{3,}|~{3,})\s*(?P<info>.*?)\s*$")
CONTINUES = "# continues"
PROVIDERS_MODEL = re.compile(r'model="(?:openai|anthropic|gemini|bedrock|ollama):[^"]+"')
PLAYED_BY = "played by:"
SCRIPTS = "from safepoint.testing import RuleModel, ScriptedModel, call, say, stall; "


class PageError(Exception):
    """A page whose blocks cannot be told apart; the message names the line."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the line of its first line of text, the words after the fence, the text, what is above it."""

    line: int
    info: tuple[str, ...]
    text: str
    above: str


@dataclass(frozen=True, slots=True)
class Program:
    """What is run: a block with its continuations, each on its own lines of the page."""

    line: int
    text: str


def programs(page: str) -> list[Program]:
    found: list[Program] = []
    may_continue = False
    for block in blocks(page):
        if block.info[:1] not in (("python",), ("py",)):
            continue
        continues = block.text.splitlines()[:1] == [CONTINUES]
        match block.info[1:]:
            case ("notest",):
                if not _reason(block.above):
                    raise PageError(f"line {block.line}: say in an HTML comment right above why it is not tested")
                may_continue = False
                continue
            case ():
                pass
            case words:
                raise PageError(f"line {block.line}: {' '.join(words)!r} means nothing here; the one mark is 'notest'")
        if continues and not may_continue:
            raise PageError(f"line {block.line}: it continues nothing; the block before it is missing or not tested")
        if (script := _reason(block.above)).startswith(PLAYED_BY):
            block = _played(block, script.removeprefix(PLAYED_BY).strip())
        if continues:
            before = found.pop()
            found.append(Program(before.line, _at_line(block, before.text)))
        else:
            found.append(Program(block.line, _at_line(block, "")))
        may_continue = True
    return found


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    lines = page.splitlines()
    opened: tuple[int, str, str] | None = None
    for number, line in enumerate(lines, 1):
        fence = FENCE.match(line)
        if fence is None:
            continue
        if opened is None:
            opened = number, fence["mark"], fence["info"]
            continue
        start, mark, info = opened
        if fence["mark"].startswith(mark) and not fence["info"]:
            text = textwrap.dedent("\n".join(lines[start : number - 1])) + "\n"
            found.append(Block(start + 1, tuple(info.split()), text, "\n".join(lines[: start - 1])))
            opened = None
    if opened is not None:
        raise PageError(f"line {opened[0]}: this block is never closed")
    return found


def _played(block: Block, script: str) -> Block:
    """The block with a scripted model, on the same lines."""
    if len(PROVIDERS_MODEL.findall(block.text)) != 1:
        raise PageError(f'line {block.line}: it is "{PLAYED_BY}" a script, so it has to name one provider\'s model')
    return replace(block, text=SCRIPTS + PROVIDERS_MODEL.sub(lambda _: f"model={script}", block.text))


def _reason(above: str) -> str:
    comment = above.rstrip()
    if not comment.endswith("-->") or "<!--" not in comment:
        return ""
    return comment[comment.rindex("<!--") + 4 : -3].strip()


def _at_line(block: Block, before: str) -> str:
    return before + "\n" * (block.line - 1 - before.count("\n")) + block.text
