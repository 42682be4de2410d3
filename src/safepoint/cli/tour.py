"""`safepoint tour`: two minutes in which you stop an agent six times.

The runs, the stops and the receipts are real; only the model plays a script. `--auto` presses the keys by itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import typer

from safepoint import Agent, BaseAgent, ToolContext, TurnLoop, tool
from safepoint.agent.model import Chunk, ModelRequest, TextDelta
from safepoint.cli.chat.conversation import Conversation, View
from safepoint.cli.chat.lines import Line, Role, bold, dim, ink, spread
from safepoint.cli.chat.plain import LineReader, PlainView
from safepoint.cli.chat.screen import Screen
from safepoint.cli.options import fail
from safepoint.events import Event, TextStreamed
from safepoint.sessions import MemoryStorage, Session, SqliteStorage
from safepoint.testing import ScriptedModel, call, say
from safepoint.turns import Turn

STOPS: Final = 6
ENOUGH: Final = 160  # characters of an answer, after which it is time to stop it
READING: Final = 2.5  # seconds that --auto leaves for reading
_STORY: Final = (
    "Once upon a time there was an agent that nobody could stop. It wrote and wrote, and every word cost a little "
    "money, and the longer it went on the less anyone dared to pull the plug, because nobody knew what would be left. "
) * 6
_COUNTED: Final = (
    "Shelf A holds 42 boxes and shelf B holds 42 boxes, which is enough for this week and for most of the next. "
    "The oldest box on shelf A came in March, so it should go out first. On shelf B two labels can hardly be read. "
    "If the order of last autumn comes again, both shelves will be empty by Thursday, and the depot needs a day. "
) * 2
_REPORT: Final = (
    "Last week the shop sold 1,204 books, a tenth more than in the week before. Most of them were sold on Saturday, "
    "when the reading took place. Eleven parcels came back, nine of them because of one wrong address. "
) * 4


class PacedModel:
    """Plays a script as a slow provider would: a word at a time."""

    name = "script"

    def __init__(self, script: ScriptedModel, pace: float = 0.06) -> None:
        self._script, self._pace = script, pace

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        """Open the stream of one reply. Cancellation: closes it."""
        async with self._script.stream(request) as chunks:
            yield self._slowly(chunks)

    async def _slowly(self, chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
        async for chunk in chunks:
            if not isinstance(chunk, TextDelta):
                yield chunk
                continue
            for word in chunk.text.split():
                yield TextDelta(f"{word} ")
                await asyncio.sleep(self._pace)


async def refund(city: str, nights: int, ctx: ToolContext[None]) -> None:
    """Take the payment back."""
    await asyncio.sleep(0.3)


@tool(undo=refund)
async def book_room(city: str, nights: int, ctx: ToolContext[None]) -> str:
    """Book and pay."""
    for step in ("looking for a room", "holding room 12", "paying", "waiting for the bank"):
        ctx.tell(f"{step}\n")
        await asyncio.sleep(4 if step == "waiting for the bank" else 1)
    await asyncio.sleep(30)
    return f"booked {nights} nights in {city}"


@tool
def parse_logs(night: int) -> str:
    """Block a thread that ignores its cancel flag."""
    time.sleep(8)
    return "parsed"


@tool(effect="pure")
async def read_pages(topic: str, ctx: ToolContext[None]) -> str:
    """Read slowly."""
    for page in range(1, 9):
        ctx.tell(f"page {page} of 8\n")
        await asyncio.sleep(0.8)
    return f"8 pages about {topic}"


@tool(effect="pure")
async def count_stock(shelf: str) -> str:
    """Count."""
    await asyncio.sleep(0.4)
    return f"{shelf}: 42"


def stock_agent() -> Agent:
    """The agent of the fifth stop. Another process makes the same one and goes on with its run."""
    script = ScriptedModel(
        [call("count_stock", shelf="A"), call("count_stock", shelf="B")],
        say(_COUNTED),
    )
    return Agent("stock", model=PacedModel(script), tools=[count_stock])


class Tour:
    """The six stops. `view` is a `Screen`, or a `PlainView` for `--auto` without a terminal."""

    def __init__(self, view: View, *, auto: bool) -> None:
        self._view, self._auto = view, auto
        self._next = asyncio.Event()
        self._talk: Conversation | None = None
        self._began = time.monotonic()

    async def play(self, scenes: Sequence[int]) -> None:
        """Cancellation: the run of the moment is stopped and recorded."""
        stops: tuple[Callable[[], Awaitable[None]], ...] = (
            self._stream, self._effect, self._deaf, self._one_of_three, self._new_process, self._urgent,
        )  # fmt: skip
        for number in scenes:
            await stops[number - 1]()
            if number != scenes[-1]:
                await self._pause("Enter next   Ctrl-D leaves")
        self._say("", "That was the tour. Now with a model, and with your own agent:", "")
        self._print((bold("    safepoint chat"), dim("      talk to an agent on this machine")))
        self._print((bold("    safepoint serve"), dim("     the same over HTTP, with a page")))

    # -- the stops ---------------------------------------------------------------------------------------------------

    async def _stream(self) -> None:
        self._title(1, "Stop in the middle of a sentence")
        self._say("It writes. Every word costs money, and you have read enough.")
        await self._run(_agent("writer", [say(_STORY)]), "Tell me a long story.", self._when_words)
        self._conclude(
            "The words stay, the connection to the model is closed, and the next message can follow at once."
        )

    async def _effect(self) -> None:
        self._title(2, "Stop inside an effect")
        self._say("It is booking a room. Half-way is the worst moment to stop most programs.",
                  "The first press waits for a safe point and says what a second one would do.")  # fmt: skip
        agent = _agent("travel", [call("book_room", city="Rome", nights=2), say("Booked.")], book_room)
        await self._run(agent, "Book a room in Rome.", self._when_output, self._still_running)
        self._conclude("Cut, then undone: the payment was taken back. The ledger never says done unless it was.")

    async def _deaf(self) -> None:
        self._title(3, "Stop a tool that does not listen")
        self._say("A thread that blocks cannot be killed. It can be told, waited for, and let go.")
        agent = _agent("analyst", [call("parse_logs", night=3), say("Parsed.")], parse_logs)
        await self._run(agent, "Read the logs.", self._when_running, self._still_running, self._still_running)
        self._conclude("The run has ended, although the thread still sleeps. It is named, and it holds nothing up.")

    async def _one_of_three(self) -> None:
        self._title(4, "Stop one agent of three")
        self._say("Three agents read side by side. Stop one of them, and let the others go on.")
        cities = ("Rome", "Milan", "Turin")
        readers = [
            _agent(f"reader_{number}", [call("read_pages", topic=city), say(f"Read all about {city}.")], read_pages)
            for number, city in enumerate(cities, 1)
        ]
        calls = [call(reader.name, input=city) for reader, city in zip(readers, cities, strict=True)]
        script = ScriptedModel(calls, say("Two of three answered."))
        agent = Agent("lead", model=PacedModel(script), tools=[each.as_tool() for each in readers])
        await self._run(agent, "Read about three cities.", self._when_nested, act=self._stop_second)
        self._conclude("The others finished. Each part of the tree can be stopped by itself.")

    async def _new_process(self) -> None:
        self._title(5, "Resume in another process")
        self._say("This run is stored in SQLite. Stop it, and a new process goes on where it was.")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tour.db"
            storage = SqliteStorage(path)
            session = await Session.create(storage, "tour")
            await self._run(stock_agent(), "Count the stock.", self._when_words, session=session)
            await storage.aclose()
            self._print((dim(f"process {os.getpid()} hands over to a new one:"),))
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "safepoint.cli.tour", str(path), "tour", stdout=asyncio.subprocess.PIPE
            )
            assert process.stdout is not None
            async for line in process.stdout:
                self._print((ink(f"  {line.decode().rstrip()}"),))
            await process.wait()
        self._conclude("Both counts were kept, and neither was repeated. The same holds after kill -9.")

    async def _urgent(self) -> None:
        self._title(6, "An urgent message into a loop of turns")
        self._say("A loop answers one message after the other. An urgent one takes the floor.")
        agent = _agent("desk", [say(_REPORT), say("The server is back. I have restarted it.")])
        report, urgent = "Write the weekly report.", "URGENT: the server is down!"
        shown = asyncio.Event()

        async def show(turn: Turn[str], events: AsyncIterator[Event]) -> None:
            spoken = 0
            async for event in events:
                if isinstance(event, TextStreamed):
                    self._view.words(event.text)
                    spoken += len(event.text)
                    if spoken > ENOUGH:
                        shown.set()
            self._view.end_words()
            if turn.preempted:
                self._heard(urgent)
            state = "gave way, its words are kept" if turn.preempted else "answered"
            self._print(
                ((Role.GREEN, f"{self._view.look.signs.done} "), bold(" + ".join(turn.consumed)), dim(f"  {state}"))
            )

        async with TurnLoop(agent, on_events=show) as loop:
            self._heard(report)
            loop.push(report)
            await shown.wait()
            loop.push(urgent, interrupt=True)
            loop.stop(idle_for=0.2)
            await loop.wait()
        self._conclude("Nothing was lost: every message has a receipt that says what became of it.")

    # -- a run, and when to press --------------------------------------------------------------------------------------

    async def _run(
        self,
        agent: BaseAgent[Any, Any],  # Any: agents of every kind
        words: str,
        *moments: Callable[[], bool],
        session: Session | None = None,
        act: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """One run. With --auto, or if the person waits, a key is pressed at each moment."""
        talk = self._talk = Conversation(agent, session or await Session.create(MemoryStorage()), self._view)
        if isinstance(self._view, Screen):
            self._view.conversation = talk
        self._heard(words)
        async with asyncio.TaskGroup() as group:
            helping = group.create_task(self._help(talk, moments, act))
            await talk.say(words)
            helping.cancel()

    async def _help(
        self, talk: Conversation, moments: Sequence[Callable[[], bool]], act: Callable[[], Awaitable[None]] | None
    ) -> None:
        """Press at each moment: by itself with --auto, else once the person has hit Enter."""
        for moment in moments:
            while not moment():  # noqa: ASYNC110  # a moment is a look at what is shown, ten times a second
                await asyncio.sleep(0.05)
            self._next.clear()
            before = talk.level
            keys = "Ctrl-C" if act is None else "/tree, Down to a reader, s"
            if self._auto:
                await asyncio.sleep(0.7)
                self._invite(keys)
                await asyncio.sleep(0.6)
            else:
                self._invite(
                    "Press Ctrl-C now. Enter presses it for you."
                    if act is None
                    else f"Type {keys}. Enter does it for you."
                )
                await self._next.wait()
            if act is not None:
                self._hint(())
                await act()
            elif talk.level is before:
                talk.press()
                await asyncio.sleep(0.5)
                self._hint(())

    async def _stop_second(self) -> None:
        talk = self._talk
        assert talk is not None
        calls = [call for call in talk.activity.top if call.running] if talk.activity is not None else []
        if isinstance(self._view, Screen):
            self._view.open_tree(2)
            await asyncio.sleep(1.5 if self._auto else 0.5)
        if len(calls) > 1:
            talk.stop_call(calls[1])
        if isinstance(self._view, Screen):
            await asyncio.sleep(1.5 if self._auto else 0.5)
            self._view.close_tree()

    def _when_words(self) -> bool:
        return self._talk is not None and self._talk.activity is not None and self._talk.activity.spoken > ENOUGH

    def _when_running(self) -> bool:
        return self._talk is not None and self._talk.activity is not None and bool(self._talk.activity.running)

    def _still_running(self) -> bool:
        return self._when_running()

    def _when_output(self) -> bool:
        running = self._talk.activity.running if self._talk is not None and self._talk.activity is not None else []
        return any(len(each.output.last(9)) > 2 for each in running)

    def _when_nested(self) -> bool:
        return self._talk is not None and self._talk.activity is not None and len(self._talk.activity.running) > 4

    # -- words ---------------------------------------------------------------------------------------------------------

    def _title(self, number: int, words: str) -> None:
        signs, width = self._view.look.signs, self._view.look.width
        dots = "●" * number + "○" * (STOPS - number) if not self._view.look.ascii else ""
        self._print(
            (),
            spread((dim(f" {number} of {STOPS}   "), bold(words)), (dim(f"{dots} "),), width),
            (dim(signs.rule * width),),
        )

    def _say(self, *lines: str) -> None:
        width = self._view.look.width - 2
        self._print(*((ink(f" {part}"),) for line in lines for part in textwrap.wrap(line, width) or [""]))

    def _conclude(self, words: str) -> None:
        """What the stop has shown, set apart from it."""
        self._hint(())
        if not (isinstance(self._view, Screen) and self._view.after_blank):
            self._print(())
        self._say(words)

    def _heard(self, words: str) -> None:
        """What a person said to the agent."""
        if isinstance(self._view, Screen):
            self._view.echo(words)
        else:
            self._print((bold(f"{self._view.look.signs.prompt} "), ink(words)))

    def _invite(self, words: str) -> None:
        self._hint(((Role.VIOLET, " ▶ "), bold(words)))

    def _hint(self, line: Line) -> None:
        """Below the input, where it stays while words stream above. A pipe needs none: the keys are pressed for it."""
        if isinstance(self._view, Screen):
            self._view.hint = line
            self._view.changed()

    def _print(self, *lines: Line) -> None:
        self._view.print(*lines)

    async def _pause(self, hint: str) -> None:
        if self._auto:
            await asyncio.sleep(READING)
            return
        self._hint((dim(f"  {hint}"),))
        self._next.clear()
        await self._next.wait()

    def press_enter(self) -> None:
        self._next.set()


def _agent(name: str, replies: Sequence[Any], *tools: Any) -> Agent:  # Any: replies and tools of every kind
    return Agent(name, model=PacedModel(ScriptedModel(*replies)), tools=list(tools))


async def take_tour(*, auto: bool, scenes: Sequence[int]) -> int:
    """The exit code. Cancellation: the run of the moment is stopped."""
    on_screen = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")
    if not on_screen:
        view = PlainView(LineReader(sys.stdin.fileno()), sys.stdout, sys.stdout, interactive=False)
        await Tour(view, auto=True).play(scenes)
        return 0
    left: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def entered(typed: str) -> None:
        if typed.startswith("/t"):
            screen.open_tree()
        else:
            screen.print((dim("That works in `safepoint chat`. Here: Ctrl-C, /tree, Enter and Ctrl-D."),))

    screen = Screen(entered, lambda code: _leave(left, code))
    screen.conversation = Conversation(_agent("tour", []), await Session.create(MemoryStorage()), screen)
    screen.hint = ()
    tour = Tour(screen, auto=auto)
    screen.on_empty = tour.press_enter
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(screen.shown())
        async with asyncio.TaskGroup() as group:
            playing = group.create_task(tour.play(scenes))
            playing.add_done_callback(lambda _: _leave(left, 0))
            await left
            playing.cancel()
    return left.result()


def _leave(left: asyncio.Future[int], code: int) -> None:
    if not left.done():
        left.set_result(code)


async def go_on(path: Path, session_id: str) -> None:
    """What the other process of the fifth stop does. Cancellation: the run is stopped and stored."""
    storage = SqliteStorage(path)
    try:
        session = await Session.load(storage, session_id)
        checkpoint = session.checkpoint
        assert checkpoint is not None
        print(f"process {os.getpid()} goes on with {len(session.messages)} messages", flush=True)
        script = ScriptedModel(say("Both shelves hold 42. Nothing has to be ordered."))
        agent = Agent("stock", model=script, tools=[count_stock])
        result = await agent.resume(checkpoint, session=session)
        print(f"it says: {result.text}", flush=True)
    finally:
        await storage.aclose()


def run_tour(*, auto: bool, only: int | None) -> None:
    """Exits with 0, or with 130 if it was left by Ctrl-C."""
    scenes = [only] if only is not None else list(range(1, STOPS + 1))
    if not auto and not sys.stdin.isatty():
        fail("the tour is for a terminal: write `safepoint tour --auto` to watch it in a pipe")
    raise typer.Exit(asyncio.run(take_tour(auto=auto, scenes=scenes)))


if __name__ == "__main__":
    asyncio.run(go_on(Path(sys.argv[1]), sys.argv[2]))
