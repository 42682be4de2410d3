"""`make recording`: plays the tour and an ACP client in a terminal and writes what was on the screen as animated SVGs.

The picture needs no script and no font of its own: each frame is a group that CSS shows for its time.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TypeAlias

from tests.terminal.terminal import PATIENCE, Terminal

ROOT = Path(__file__).parents[2]
WIDTH, HEIGHT = 8.43, 18  # of a character cell, in pixels
SHORTEST = 0.12  # seconds: what was on the screen for less is left out
QUIET = 0.02  # seconds without output, after which a frame is drawn
LONGEST = 2.0  # seconds that one frame stays at most
COLOURS = {
    "green": "#3fb950",
    "brown": "#d29922",
    "red": "#f85149",
    "magenta": "#bc8cff",
    "blue": "#79c0ff",
    "cyan": "#56d4dd",
}
Cells: TypeAlias = list[tuple[str, str, bool]]
Frame: TypeAlias = tuple[float, list[Cells]]

INK, DIM, PAPER = "#e6edf3", "#8b949e", "#0d1117"


def show_dim(data: bytes) -> bytes:
    """The emulator drops the code for dim text: a colour that it knows stands for it."""
    return re.sub(rb"\x1b\[((?:\d+;)*)2(;\d+)*m", b"\x1b[0;90m", data)


def record(arguments: list[str], *, command: Sequence[str] | None = None, rows: int = 24) -> list[Frame]:
    """The frames, each with the seconds that it was on the screen."""
    frames: list[Frame] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        Terminal(
            arguments, cwd=Path(folder), env={"PYTHONPATH": str(ROOT)}, columns=80, rows=rows, command=command
        ) as terminal,
    ):
        terminal.filter = show_dim
        shown, since = terminal.cells(), time.monotonic()
        while terminal.read(PATIENCE):
            while terminal.read(QUIET):  # a picture that is still being drawn is none
                pass
            now = time.monotonic()
            cells = terminal.cells()
            if cells != shown and now - since >= SHORTEST:
                frames.append((min(now - since, LONGEST), shown))
                shown, since = cells, now
        frames.append((LONGEST, terminal.cells()))
        assert terminal.process.wait(PATIENCE) == 0
    return frames[1:]


def svg(frames: list[Frame], title: str) -> str:
    """A film strip behind a window: the frames stand below each other, and CSS moves the strip from one to the next.

    A line that occurs in several frames is drawn once and used again.
    """
    total, tall = sum(seconds for seconds, _ in frames), len(frames[0][1]) * HEIGHT
    lines: dict[str, int] = {}
    uses: list[str] = []
    moves: list[str] = []
    at = 0.0
    for number, (seconds, cells) in enumerate(frames):
        moves.append(f"{100 * at / total:.3f}%{{transform:translateY({-number * tall}px)}}")
        at += seconds
        for row, line in enumerate(map(_line, cells)):
            if line:
                place = number * tall + row * HEIGHT
                uses.append(f'<use href="#l{lines.setdefault(line, len(lines))}" y="{place}"/>')
    width, height = round(80 * WIDTH + 24), tall + 24
    drawn = "".join(f'<text id="l{number}" class="t" y="14">{line}</text>' for line, number in lines.items())
    css = (
        f".t{{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:{INK};white-space:pre}}"
        f".s{{animation:film {total:.2f}s step-end infinite}}.d{{fill:{DIM}}}.b{{font-weight:700}}"
        f"@keyframes film{{{''.join(moves)}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{title}, recorded in a terminal"><style>{css}</style>'
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/><defs>{drawn}</defs>'
        f'<svg x="12" y="12" width="{width - 24}" height="{tall}"><g class="s">{"".join(uses)}</g></svg></svg>\n'
    )


def _line(cells: Cells) -> str:
    """One row as pieces of the same style, each at its own column: a font of another width does no harm."""
    pieces: list[str] = []
    start = 0
    while start < len(cells):
        style = cells[start][1:]
        end = start
        while end < len(cells) and cells[end][1:] == style:
            end += 1
        text = "".join(cell[0] for cell in cells[start:end])
        if text.strip():
            colour, bold = style
            fill = f' style="fill:{COLOURS[colour]}"' if colour in COLOURS else ""
            names = " ".join(filter(None, ("b" if bold else "", "d" if colour == "brightblack" else "")))
            named = f' class="{names}"' if names else ""
            size = f' textLength="{len(text) * WIDTH:.1f}"'
            pieces.append(f'<tspan x="{start * WIDTH:.1f}"{size}{named}{fill}>{escape(text)}</tspan>')
        start = end
    return "".join(pieces)


def save(name: str, picture: str) -> None:
    target = ROOT / "docs" / "pictures" / f"{name}.svg"
    target.parent.mkdir(exist_ok=True)
    target.write_text(picture)
    print(f"{target.relative_to(ROOT)}: {len(picture) // 1000} kB")


def acp_client() -> list[str]:
    """The command that plays an ACP client against `safepoint acp`."""
    served = ["-m", "safepoint", "acp", "tests.terminal.acp_app:agent", "--store", "memory:"]
    return [sys.executable, "-m", "tests.terminal.acp_client", sys.executable, *served]


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["tour", "acp"]
    if "tour" in wanted:
        save("tour", svg(record(["tour", "--auto"]), "safepoint tour"))
    if "acp" in wanted:
        save("acp", svg(record([], command=acp_client()), "an ACP client that prompts, cancels and goes on"))
