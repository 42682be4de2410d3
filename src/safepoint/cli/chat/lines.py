"""Lines for a terminal: pieces of text, each with a role, and signs that have an ASCII form.

A role says what a piece means; the palette says how that looks. No meaning is carried by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from rich.cells import cell_len, set_cell_size

from safepoint.cli.sanitize import sanitize


class Role(StrEnum):
    """What a piece of a line means."""

    INK = "ink"
    DIM = "dim"
    BOLD = "bold"
    GREEN = "green"
    AMBER = "amber"
    RED = "red"
    VIOLET = "violet"


Line: TypeAlias = tuple[tuple[Role, str], ...]
Palette: TypeAlias = Mapping[Role, str]
"""The number of the terminal's own style (SGR) for each role."""

COLOURS: Final[Palette] = {
    Role.DIM: "2",
    Role.BOLD: "1",
    Role.GREEN: "32",
    Role.AMBER: "33",
    Role.RED: "31",
    Role.VIOLET: "35",
}
NO_COLOURS: Final[Palette] = {Role.DIM: "2", Role.BOLD: "1"}
NO_STYLE: Final[Palette] = {}


@dataclass(frozen=True, slots=True)
class Signs:
    """One sign for each state, and the frames of the spinner."""

    done: str = "✓"
    failed: str = "✗"
    doubt: str = "!"
    undone: str = "↶"
    paused: str = "‖"
    queued: str = "·"
    never: str = "×"
    question: str = "?"
    stop: str = "■"
    bar: str = "│"
    branch: str = "├"
    last: str = "└"
    rule: str = "─"
    prompt: str = "›"
    chosen: str = "❯"
    dots: str = "…"
    between: str = " · "
    about: str = "≈"
    spinner: tuple[str, ...] = ("⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏")


UNICODE: Final = Signs()
ASCII: Final = Signs(
    done="ok",
    failed="x",
    doubt="!",
    undone="<-",
    paused="||",
    queued="..",
    never="-",
    question="?",
    stop="#",
    bar="|",
    branch="|-",
    last="`-",
    rule="-",
    prompt=">",
    chosen=">",
    dots="...",
    between=", ",
    about="about ",
    spinner=("*",),
)


def ink(text: object) -> tuple[Role, str]:
    return (Role.INK, clean(text))


def dim(text: object) -> tuple[Role, str]:
    return (Role.DIM, clean(text))


def bold(text: object) -> tuple[Role, str]:
    return (Role.BOLD, clean(text))


def amber(text: object) -> tuple[Role, str]:
    return (Role.AMBER, clean(text))


def clean(text: object) -> str:
    """On one line, without anything that steers a terminal."""
    return sanitize(text).replace("\n", " ").replace("\t", " ")


def plain(line: Line) -> str:
    return "".join(text for _, text in line).rstrip()


def ansi(line: Line, palette: Palette) -> str:
    """The line with the terminal's codes for its roles."""
    return "".join(f"\x1b[{palette[role]}m{text}\x1b[0m" if role in palette else text for role, text in line)


def columns(line: Line) -> int:
    """How many columns of the terminal it takes."""
    return sum(cell_len(text) for _, text in line)


def fit(line: Line, width: int) -> Line:
    """At most `width` columns of it."""
    left, kept = max(0, width), list[tuple[Role, str]]()
    for role, text in line:
        size = cell_len(text)
        if size > left:
            kept.append((role, f"{set_cell_size(text, max(0, left - 1))}…" if left else ""))
            break
        kept.append((role, text))
        left -= size
    return tuple(kept)


def spread(left: Line, right: Line, width: int) -> Line:
    """`left` at the left edge and `right` at the right one; what does not fit is cut from `left`."""
    if not right:
        return fit(left, width)
    room = width - columns(right) - 1
    if room < 8:
        return fit(left, width)
    left = fit(left, room)
    return (*left, (Role.INK, " " * (width - columns(left) - columns(right))), *right)


def joined(lines: Iterable[Line], palette: Palette) -> str:
    return "\n".join(ansi(line, palette) for line in lines)


def seconds(value: float) -> str:
    """A duration as people write it: 0.3 s, 12 s, 3:05 min."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 90:
        return f"{value:.0f} s"
    return f"{int(value) // 60}:{int(value) % 60:02} min"


def count(number: int) -> str:
    """A number of tokens: 412, 18.9k, 1.2M."""
    if number < 1000:
        return str(number)
    return f"{number / 1000:.1f}k" if number < 1_000_000 else f"{number / 1_000_000:.1f}M"
