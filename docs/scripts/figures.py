"""The figures of the guides: `make figures` draws them into `docs/figures`.

Two of them are measurements. `when.svg` shows where a run stops for each safe point, and `tree.svg` what a run consists
of: both are drawn from real runs, on a clock that jumps. `ladder.svg` is drawn from the ladder's own plans. So none of
them can say something that the code does not do; a test compares the files with what is drawn now.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from safepoint import Agent, SafePoint, tool
from safepoint._core.ladder import Ladder, Rung, StopPolicy, WorkKind, plan
from safepoint.events import ModelCallEnded, ModelCallStarted, ToolCallEnded, ToolCallStarted
from safepoint.models import CallDelta, Chunk, Finish, ModelRequest
from safepoint.testing import ScriptedModel, call, run_virtual, say

FOLDER = Path(__file__).resolve().parents[1] / "figures"
WIDTH = 760

# Inside a page the colours are those of the page, see docs/theme/extra.css; alone, those of the reader's system.
STYLE = """
svg.fig { --ink: #1f2430; --soft: #5c6470; --line: #c9ced6; --work: #dfe7f5; --edge: #5673b8; --safe: #0b7a5b;
  --warn: #a85a00; --cut: #f6dccb; --none: #eef0f3;
  font-family: ui-sans-serif, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-size: 13px; }
@media (prefers-color-scheme: dark) { svg.fig { --ink: #e6e9ef; --soft: #a2abb8; --line: #4a515e; --work: #2b3650;
  --edge: #8fa9e6; --safe: #4fc79f; --warn: #f0a85c; --cut: #50341f; --none: #2a2f38; } }
svg.fig text { fill: var(--ink); } svg.fig .soft { fill: var(--soft); } svg.fig .safe { fill: var(--safe); }
svg.fig .warn { fill: var(--warn); } svg.fig .small { font-size: 12px; } svg.fig .strong { font-weight: 600; }
svg.fig .mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 12px; }
svg.fig .box { fill: var(--work); stroke: var(--edge); } svg.fig .cutbox { fill: var(--cut); stroke: var(--warn); }
svg.fig .none { fill: var(--none); stroke: var(--line); stroke-dasharray: 3 3; }
svg.fig .wire { stroke: var(--soft); fill: none; stroke-width: 1.25; } svg.fig .rule { stroke: var(--line); }
svg.fig .ask { stroke: var(--warn); stroke-width: 1.5; stroke-dasharray: 4 3; }
svg.fig .dot { fill: var(--safe); } svg.fig .stop { fill: var(--ink); }
""".strip()  # noqa: E501  # CSS


@dataclass
class Drawing:
    """SVG, element by element."""

    title: str
    height: int
    width: int = WIDTH
    elements: list[str] = field(default_factory=list[str])

    def add(self, element: str) -> None:
        self.elements.append(element)

    def text(self, x: float, y: float, words: str, look: str = "", anchor: str = "start") -> None:
        self.add(f'<text x="{x:g}" y="{y:g}" class="{look}" text-anchor="{anchor}">{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, look: str = "box") -> None:
        self.add(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" class="{look}"/>')

    def wire(self, *points: tuple[float, float], look: str = "wire", arrow: bool = False) -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.add(f'<polyline points="{path}" class="{look}"/>')
        if arrow:
            x, y = points[-1]
            self.add(f'<path d="M{x:g} {y:g} l-7 -4 v8 z" class="stop" style="fill: var(--soft)"/>')

    def dot(self, x: float, y: float, look: str = "dot", radius: float = 5) -> None:
        self.add(f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{look}"/>')

    def square(self, x: float, y: float) -> None:
        self.add(f'<rect x="{x - 5:g}" y="{y - 5:g}" width="10" height="10" class="stop"/>')

    def svg(self) -> str:
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="fig" viewBox="0 0 {self.width} {self.height}">'
        return "\n".join(
            [head, f"<title>{escape(self.title)}</title>", f"<style>{STYLE}</style>", *self.elements, "</svg>", ""]
        )


# One step of a run, and the places in it where nothing is half done.


def draw_run() -> str:
    figure = Drawing("The safe points of one step of a run", 262)
    middle = 112
    figure.text(8, middle + 4, "prompt", "strong")
    figure.wire((58, middle), (78, middle), arrow=True)
    figure.box(80, middle - 20, 92, 40)
    figure.text(126, middle + 4, "model call", anchor="middle")
    figure.wire((172, middle), (284, middle))
    figure.dot(226, middle)
    figure.text(226, middle - 14, "AFTER_MODEL", "mono safe", "middle")
    lanes = ((52, "search (pure)", False), (middle, "copy (pure)", False), (172, "pay (effectful)", True))
    for top, words, effect in lanes:
        figure.wire((284, middle), (284, top), (322, top))
        figure.wire((446, top), (490, top), (490, middle))
        figure.box(322, top - 17, 124, 34)
        figure.text(384, top + 4, words, anchor="middle")
        figure.dot(466, top)
        if effect:
            figure.dot(304, top)
    figure.dot(384, middle + 17, radius=4)
    figure.text(466, 28, "AFTER_TOOL, each time a call ends", "mono safe")
    figure.text(304, 206, "BEFORE_EFFECT", "mono safe", "middle")
    figure.text(384, middle + 34, 'named("page")', "mono safe", "middle")
    figure.wire((490, middle), (610, middle), arrow=True)
    figure.dot(548, middle)
    figure.text(548, middle - 14, "AFTER_TOOLS", "mono safe", "middle")
    figure.box(612, middle - 20, 92, 40)
    figure.text(658, middle + 4, "model call", anchor="middle")
    figure.wire((704, middle), (728, middle), arrow=True)
    figure.text(734, middle + 4, "…", "strong")
    figure.wire((126, middle + 20), (126, 240), (198, 240), arrow=True)
    figure.text(206, 244, "no tool calls: this is the answer, and the run is finished", "soft")
    return figure.svg()


# Where a run stops for each safe point: measured.

LONG = 2.0
CALLS = {"look": 2.0, "pay": 3.0, "mail": 2.0}
ASKED = 3.0


class TimedModel:
    """Asks for all three tools, and needs a while for it."""

    name = "timed"

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        yield self._chunks()

    async def _chunks(self) -> AsyncIterator[Chunk]:
        await asyncio.sleep(LONG)
        for index, name in enumerate(CALLS):
            yield CallDelta(index, id=f"call_{name}", name=name, arguments="{}")
        yield Finish("tool_calls")


@tool(effect="pure")
async def look() -> None:
    """Look something up."""
    await asyncio.sleep(CALLS["look"])


@tool
async def pay() -> None:
    """Pay for it."""
    await asyncio.sleep(CALLS["pay"])


@tool
async def mail() -> None:
    """Tell the customer."""
    await asyncio.sleep(CALLS["mail"])


@dataclass(frozen=True)
class Bar:
    """One piece of work: when it began and ended, and the ledger's word for how."""

    lane: str
    begin: float
    end: float
    state: str


@dataclass(frozen=True)
class Stopped:
    bars: list[Bar]
    at: float


def measure(point: SafePoint) -> Stopped:
    """Run the agent on a virtual clock, ask it to stop while two tools run, and write down what it did."""

    async def main() -> Stopped:
        clock = asyncio.get_running_loop().time
        began = clock()
        starts: dict[str, float] = {}
        bars: list[Bar] = []
        agent = Agent("clerk", model=TimedModel(), tools=[look, pay, mail], max_parallel_tools=2)
        async with agent.start("Go.") as run:
            asyncio.get_running_loop().call_later(ASKED, run.cancel, point)
            async for event in run.events():
                now = clock() - began
                match event:
                    case ModelCallStarted():
                        starts["model"] = now
                    case ModelCallEnded():
                        bars.append(Bar("model", starts["model"], now, "finished"))
                    case ToolCallStarted(call=started):
                        starts[started.name] = now
                    case ToolCallEnded(entry=entry):
                        bars.append(Bar(entry.name, starts.pop(entry.name, now), now, str(entry.state)))
                    case _:
                        pass
            return Stopped(bars, clock() - began)

    return run_virtual(main)


def draw_when() -> str:
    points = {
        "NOW": SafePoint.NOW,
        "BEFORE_EFFECT": SafePoint.BEFORE_EFFECT,
        "AFTER_TOOL": SafePoint.AFTER_TOOL,
        "AFTER_TOOLS": SafePoint.AFTER_TOOLS,
        "AFTER_MODEL": SafePoint.AFTER_MODEL,
    }
    lanes, lane, row, left, second = ("model", *CALLS), 17, 92, 186, 57
    figure = Drawing("Where a run stops, for each safe point", 44 + row * len(points) + 26)
    bottom = 44 + row * len(points) - 14
    figure.text(14, 20, "cancel(SafePoint.…)", "mono soft")
    figure.text(left + ASKED * second, 20, "asked here", "warn small", "middle")
    for number, (name, point) in enumerate(points.items()):
        top = 44 + number * row
        stopped = measure(point)
        figure.text(14, top + 12, name, "mono strong")
        for index, each in enumerate(lanes):
            y = top + index * lane
            figure.text(left - 10, y + 11, each, "small soft", "end")
            for bar in (bar for bar in stopped.bars if bar.lane == each):
                x = left + bar.begin * second
                if bar.state == "not_started":
                    figure.text(x + 10, y + 11, "not started", "small soft")
                else:
                    look = "cutbox" if bar.state == "cut" else "box"
                    figure.box(x, y, (bar.end - bar.begin) * second, lane - 4, look)
                    if bar.state == "cut":
                        figure.text(left + bar.end * second + 10, y + 11, "cut, outcome unknown", "small warn")
        end = left + stopped.at * second
        figure.wire((end, top - 4), (end, top + 4 * lane), look="wire")
        figure.square(end, top - 4)
        figure.text(end + 10, top + 1 if name != "NOW" else top + 11, "stopped", "small strong")
        if number:
            figure.wire((14, top - 18), (WIDTH - 14, top - 18), look="rule")
    figure.wire((left + ASKED * second, 26), (left + ASKED * second, bottom), look="ask")
    figure.text(left, bottom + 24, "time; two tools may run at once, so mail waits for look", "small soft")
    return figure.svg()


# How long each kind of work may take to stop: the ladder's own plans.

KINDS = (
    ("async tool", StopPolicy(WorkKind.TASK)),
    ("plain function in a thread", StopPolicy(WorkKind.THREAD)),
    ("process, shell", StopPolicy(WorkKind.PROCESS)),
    ('on_cancel="finish", grace=2', StopPolicy(WorkKind.TASK, finish=True, grace=2.0)),
)
SAYS = {
    Rung.FINISH: "let it finish",
    Rung.CANCEL: "cancel",
    Rung.FLAG: "tell",
    Rung.RAISE: "raise",
    Rung.TERM: "TERM",
    Rung.KILL: "KILL",
}


def draw_ladder() -> str:
    left, second, row = 206, 122, 46
    figure = Drawing(
        "The ladder: how each kind of work is stopped by NOW, with the default times", 60 + row * len(KINDS) + 20
    )
    figure.text(left, 20, "NOW", "warn small strong", "middle")
    figure.wire((left, 28), (left, 44 + row * len(KINDS)), look="ask")
    for seconds in range(1, 4):
        mark = left + seconds * second
        figure.text(mark, 20, f"{seconds} s", "small soft", "middle")
        figure.wire((mark, 28), (mark, 44 + row * len(KINDS)), look="rule")
    for number, (words, policy) in enumerate(KINDS):
        y = 42 + number * row
        x: float = left
        figure.text(left - 14, y + 18, words, anchor="end")
        for climb in plan(policy, Ladder(), force=False):
            if climb.rung is Rung.ABANDON:
                figure.square(x + 8, y + 14)
                figure.text(x + 20, y + 18, "abandoned: an orphan", "small soft")
                continue
            width = climb.seconds * second
            figure.box(x, y, width, 28, "box" if climb.rung is Rung.FINISH else "cutbox")
            figure.text(x + width / 2, y + 18, SAYS[climb.rung], "small", "middle")
            x += width
    figure.text(
        left,
        60 + row * len(KINDS) + 6,
        "Work that ends earlier leaves the ladder at once. Nothing takes longer than the cap, 10 s.",
        "small soft",
        "start",
    )
    return figure.svg()


# What a run consists of: the tree of a real one.


def live_tree() -> list[tuple[str, str]]:
    """Kind and path of each live node of a run with a sub-agent, parents first."""

    @tool(effect="pure")
    async def search(place: str) -> str:
        """Search one place."""
        await asyncio.sleep(60)
        return place

    @tool(effect="pure")
    async def read(page: int) -> str:
        """Read a page."""
        await asyncio.sleep(60)
        return str(page)

    async def main() -> list[tuple[str, str]]:
        reading = ScriptedModel(call("read", page=1), say("Read."))
        researcher = Agent("researcher", model=reading, tools=[read])
        calls = [call("search", place="attic"), call("search", place="cellar"), call("researcher", input="Read it.")]
        writer = Agent("writer", model=ScriptedModel(calls, say("Done.")), tools=[search, researcher.as_tool()])
        async with writer.start("Write about it.") as run:
            await asyncio.sleep(1)
            nodes: list[tuple[str, str]] = [(node.kind, node.path) for node in run.tree.walk()]
            run.cancel()
        return nodes

    return run_virtual(main)


def draw_tree() -> str:
    nodes = live_tree()
    figure = Drawing("The tree of a run, and what stops each part", 40 + 46 * len(nodes))
    notes = {
        "writer": "run.cancel() stops all of it",
        "writer/search": "node.cancel() stops this call; the rest goes on",
        "writer/researcher": "a sub-agent's call …",
        "writer/researcher/researcher": "… and its run: a node like the first one",
    }
    places: dict[str, tuple[float, float]] = {}
    said: set[str] = set()
    for number, (kind, path) in enumerate(nodes):
        parent, _, name = path.rpartition("/")
        depth = path.count("/")
        x, y = 14 + depth * 44, 16 + number * 46
        places[path] = (x, y)
        if parent:
            px, py = places[parent]
            figure.wire((px + 16, py + 32), (px + 16, y + 16), (x, y + 16))
        label = name.partition(":")[0]
        figure.box(x, y, 176, 32, "box" if kind == "run" else "none")
        figure.text(x + 10, y + 21, kind, "small soft")
        figure.text(x + 76, y + 21, label, "mono strong")
        plain = "/".join(part.partition(":")[0] for part in path.split("/"))
        if plain in notes and plain not in said:
            said.add(plain)
            figure.text(380, y + 21, notes[plain], "small soft")
    return figure.svg()


def draw_favicon() -> str:
    points = "10,2 22,2 30,10 30,22 22,30 10,30 2,22 2,10"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
        f'<polygon points="{points}" fill="#24406e"/><circle cx="16" cy="16" r="5" fill="#7fe0bd"/></svg>\n'
    )


def figures() -> Iterator[tuple[str, str]]:
    """Each figure's file name, and its SVG."""
    yield "run.svg", draw_run()
    yield "when.svg", draw_when()
    yield "ladder.svg", draw_ladder()
    yield "tree.svg", draw_tree()
    yield "favicon.svg", draw_favicon()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, svg in figures():
        (FOLDER / name).write_text(svg)
        print(f"docs/figures/{name}")
