"""`safepoint chat` itself: what is typed becomes turns and commands, until the person leaves."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from safepoint import BaseAgent, RunResult, StopReason
from safepoint._core.points import Level
from safepoint.agent.resume import OnUnknown
from safepoint.cli.chat.activity import summary
from safepoint.cli.chat.archive import Archive, ArchivedChat
from safepoint.cli.chat.commands import COMMANDS, split
from safepoint.cli.chat.conversation import Conversation, Press, View
from safepoint.cli.chat.lines import Line, bold, clean, dim, ink, spread
from safepoint.cli.chat.plain import LineReader, PlainView
from safepoint.cli.chat.screen import Screen
from safepoint.cli.chat.target import NoTarget, Target, for_model, names_model
from safepoint.cli.chat.words import Look, resume_words, tree_lines, why_lines
from safepoint.errors import SafepointError

INTERRUPTED: Final = 130  # what a shell says of a program that Ctrl-C has ended
TERMINATED: Final = 143
_DOUBT: Final[dict[str, OnUnknown]] = {"t": "tell", "r": "rerun", "a": "ask"}


def greeting(target: Target, look: Look) -> list[Line]:
    """Who answers, what it can do, and how to stop it."""
    first = spread(
        (bold(f"Safepoint {metadata.version('safepoint')}"), dim(f"   {target.words}")),
        (dim("/model changes"),),
        look.width,
    )
    about: list[Line] = [(ink(line),) for line in target.about]
    return [first, *about, (), (dim("Ctrl-C stops it, and nothing that was done is lost. /help lists the rest."),), ()]


class ChatProgram:
    """One chat, independent of the screen that shows it. `exit_code` is set once the person has left."""

    def __init__(self, target: Target, archive: Archive, folder: Path) -> None:
        self._target, self._archive, self._folder = target, archive, folder
        self._typed: asyncio.Queue[str | None] = asyncio.Queue()
        self.exit_code = 0
        self.talk: Conversation
        self._listed: list[ArchivedChat] = []
        self._doubt: str | None = None

    # -- what the views call -------------------------------------------------------------------------------------------

    def submit(self, typed: str) -> None:
        """A message or a command was typed. Commands that look at a live run act at once."""
        command, _ = split(typed)
        if self.talk.working and command in ("/tree", "/why", "/take-back", "/help"):
            self._at_once(command)
        else:
            self._typed.put_nowait(typed)

    def leave(self, code: int) -> None:
        """End the chat. A run that is live is stopped NOW first, and recorded."""
        self.exit_code = code
        self.talk.stop_now("the chat was left")
        self._tell_let_go()
        self._typed.put_nowait(None)

    def _tell_let_go(self) -> None:
        names = ", ".join(dict.fromkeys(self.talk.let_go))
        if names:
            self.talk.view.print((ink(f"{self.talk.view.look.signs.stop} Left. Still running until now: {names}."),))

    # -- the chat ------------------------------------------------------------------------------------------------------

    async def on_screen(self, session_id: str | None, *, latest: bool) -> int:
        """Chat on a real terminal; the exit code. Cancellation: the live run is stopped and recorded."""
        screen = Screen(self.submit, self.leave, history=self._archive.history)
        await self._begin(screen, session_id, latest=latest)
        screen.conversation = self.talk
        with (
            _on_signal(signal.SIGTERM, lambda: self.leave(TERMINATED)),
            _on_signal(signal.SIGHUP, lambda: self.leave(TERMINATED)),
        ):
            async with screen.shown():
                self._greet()
                while (typed := await self._next()) is not None:
                    await self._handle(typed)
        return self.exit_code

    async def in_lines(self, session_id: str | None, *, latest: bool, interactive: bool) -> int:
        """Chat without a screen; the exit code. Cancellation: as above."""
        reader = LineReader(sys.stdin.fileno())
        view = PlainView(reader, sys.stdout, sys.stderr, interactive=interactive)
        await self._begin(view, session_id, latest=latest)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(self._serve_lines(reader, view))
            with _on_signal(signal.SIGINT, lambda: self._interrupt_lines(view, serving)):
                await asyncio.wait([serving])
        return self.exit_code if not serving.cancelled() else INTERRUPTED

    async def _serve_lines(self, reader: LineReader, view: PlainView) -> None:
        if view.interactive:
            self._greet()
        while True:
            typed = self.talk.queue.popleft() if self.talk.queue else None
            if typed is None:
                view.prompt()
                typed = await reader.line()
            if typed is None or split(typed)[0] == "/quit":
                return
            result = await self._handle(typed) if typed.strip() else None
            if not view.interactive and result is not None and result.stop_reason is StopReason.CANCELLED:
                self.exit_code = INTERRUPTED
                return
            if not view.interactive and result is not None and result.stop_reason is StopReason.ERROR:
                self.exit_code = 1

    def _interrupt_lines(self, view: PlainView, serving: asyncio.Task[None]) -> None:
        if view.leave_question():
            return
        match self.talk.press():
            case Press.STOPS:
                view.print(*self.talk.stop_lines())
            case Press.IDLE if view.interactive:
                view.print((), (dim("Nothing runs. Ctrl-C again, Ctrl-D or /quit ends the chat."),))
                view.prompt()
            case Press.IDLE | Press.LEAVE:
                self._tell_let_go()
                serving.cancel()
            case Press.REPEATED:
                pass

    async def _begin(self, view: View, session_id: str | None, *, latest: bool) -> None:
        agent = self._target.agent
        if session_id is not None:
            session = await self._archive.open(session_id)
        else:
            session = await (self._archive.latest() if latest else self._archive.new(agent.name))
        self.talk = Conversation(agent, session, view)

    def _greet(self) -> None:
        self.talk.view.print(*greeting(self._target, self.talk.view.look))
        self._recall()

    def _recall(self) -> None:
        """Where an earlier chat was left."""
        messages = self.talk.session.messages
        if not messages:
            return
        said = [message for message in messages if message.role == "user" and message.text.strip()]
        number = f"{len(said)} message{'s' if len(said) != 1 else ''}"
        lines: list[Line] = [(dim(f"Goes on with: {self.talk.session.state.get('title', '')}, {number} so far."),)]
        if self.talk.session.checkpoint is not None:
            lines.append(
                (
                    dim("Its last turn was stopped. "),
                    bold("/resume"),
                    dim(" goes on there; a message does something else."),
                )
            )
        self.talk.view.print(*lines, ())

    async def _next(self) -> str | None:
        """What comes next: a message that waits in the queue, unless the person has stopped; or what is typed."""
        if self.talk.queue and self._typed.empty():
            text = self.talk.queue.popleft()
            if isinstance(self.talk.view, Screen):
                self.talk.view.echo(text)
            return text
        return await self._typed.get()

    async def _handle(self, typed: str) -> RunResult[Any] | None:
        """One message or command. Cancellation: as for the chat."""
        if self._doubt is not None:
            return await self._decide_doubt(typed)
        if not typed.startswith("/"):
            return await self.talk.say(typed)
        command, rest = split(typed)
        match command:
            case "/resume":
                return await self._resume(rest)
            case "/rewind":
                await self._rewind(rest)
            case "/model":
                self._model(rest)
            case "/sessions":
                await self._sessions(rest)
            case "/new":
                self.talk = self._other(self.talk.agent, await self._archive.new(self.talk.agent.name))
                self.talk.view.print((dim("A new chat."),))
            case "/quit":
                self.leave(0)
            case _:
                self._at_once(command)
        return None

    def _at_once(self, command: str) -> None:
        talk, view = self.talk, self.talk.view
        match command:
            case "/help":
                view.print(*((bold(f"  {name.ljust(12)}"), dim(help)) for name, help in COMMANDS.items()))
                view.print((dim("  Ctrl-C or Esc stops at the next safe point; again: now; a third time: force."),))
            case "/why":
                view.print(*self._why())
            case "/tree":
                if isinstance(view, Screen) and talk.working:
                    view.open_tree()
                elif talk.activity is not None:
                    view.print(*tree_lines(talk.activity, talk.clock(), view.look, -1))
                else:
                    view.print((dim("Nothing has run yet."),))
            case "/take-back":
                text = talk.take_back()
                view.print((dim(f"Taken back: {text}" if text is not None else "There is nothing to take back."),))
            case _:
                view.print((ink(f"There is no command {clean(command)}. "), dim("/help lists all.")))

    def _why(self) -> list[Line]:
        talk = self.talk
        if talk.run is not None and talk.level > Level.SAFE:
            return [
                (ink(f"Waits for {each.name}: {each.rung or 'its end'}, {each.seconds:.1f} s so far."),)
                for each in talk.run.why_not_stopped()
            ]
        if talk.activity is None:
            return [(dim("Nothing was stopped."),)]
        return why_lines(talk.activity, talk.took, talk.clock())

    async def _resume(self, message: str) -> RunResult[Any] | None:
        checkpoint = self.talk.session.checkpoint
        if checkpoint is None or checkpoint.questions:
            return await self.talk.resume(message or None)
        words, doubt = resume_words(checkpoint)
        self.talk.view.print((dim(f"  {words}"),))
        if not doubt:
            return await self.talk.resume(message or None)
        names = ", ".join(dict.fromkeys(doubt))
        verb = "is" if len(set(doubt)) == 1 else "are"
        self.talk.view.print(
            (ink(f"  {names} {verb} in doubt:"), dim("  t tell the model   r run it again   a ask me each time"))
        )
        self._doubt = message
        return None

    async def _decide_doubt(self, typed: str) -> RunResult[Any] | None:
        message, self._doubt = self._doubt, None
        choice = _DOUBT.get(typed.strip().lower()[:1]) if len(typed.strip()) < 6 else None
        if choice is None:
            return await self.talk.say(typed) if not typed.startswith("/") else await self._handle(typed)
        return await self.talk.resume(message or None, choice)

    async def _rewind(self, rest: str) -> None:
        session, view = self.talk.session, self.talk.view
        turns = [session.messages[run.index].text for run in session.runs]
        if not turns:
            view.print((dim("There is nothing to take back."),))
            return
        if not rest:
            view.print(*((bold(f"  {number}  "), ink(clean(text)[:60])) for number, text in enumerate(turns, 1)))
            view.print((dim("  /rewind N goes back to before message N"),))
            return
        if not rest.isdecimal() or not 1 <= int(rest) <= len(turns):
            view.print((dim(f"Write a number from 1 to {len(turns)}."),))
            return
        stays: list[str] = []
        for _ in range(len(turns) - int(rest) + 1):
            rewound = await session.rewind()
            stays += [f"{entry.name} {summary(entry.args)}" for entry in rewound.effects]
        view.print((ink(f"Back to before: {clean(turns[int(rest) - 1])[:60]}"),))
        view.print(*((dim("  not taken back: "), ink(text)) for text in stays))

    def _model(self, name: str) -> None:
        view = self.talk.view
        if not name:
            view.print(
                (
                    ink(f"{self._target.words}."),
                    dim("  /model openai:NAME, anthropic:NAME, gemini:NAME, ollama:NAME, local changes it"),
                )
            )
            return
        try:
            if not names_model(name):
                raise NoTarget(
                    f"{name!r} is no model: write openai:NAME, anthropic:NAME, gemini:NAME, ollama:NAME or local"
                )
            if name == "local":
                raise NoTarget("the embedded model is started with the program: write `safepoint chat local`")
            target = for_model(name, self._folder)
        except (ValueError, SafepointError, ModuleNotFoundError) as error:
            view.print((ink(clean(error)),))
            return
        self._target = target
        self.talk = self._other(target.agent, self.talk.session)
        view.print((dim(f"From now on: {target.words}."),))

    async def _sessions(self, rest: str) -> None:
        view = self.talk.view
        if not rest:
            self._listed = (await self._archive.chats())[:10]
            for number, chat in enumerate(self._listed, 1):
                view.print(spread((bold(f"  {number}  "), ink(chat.title)), (dim(_when(chat.at)),), view.look.width))
            view.print((dim("  /sessions N opens one" if self._listed else "There is no earlier chat."),))
            return
        if not rest.isdecimal() or not 1 <= int(rest) <= len(self._listed):
            view.print((dim("Type /sessions first, then /sessions and a number of that list."),))
            return
        self.talk = self._other(self.talk.agent, await self._archive.open(self._listed[int(rest) - 1].id))
        self._recall()

    def _other(
        self, agent: BaseAgent[Any, Any], session: Any
    ) -> Conversation:  # Any: as agents are declared; a Session
        talk = Conversation(agent, session, self.talk.view)
        if isinstance(talk.view, Screen):
            talk.view.conversation = talk
        return talk


def _when(at: float) -> str:
    same_day = time.strftime("%Y%m%d", time.localtime(at)) == time.strftime("%Y%m%d")
    return time.strftime("%H:%M" if same_day else "%d %b %H:%M", time.localtime(at))


@contextmanager
def _on_signal(number: int, call: Callable[[], None]) -> Generator[None]:
    """Call it in the loop for that signal. A process that was started to ignore the signal goes on ignoring it."""
    if signal.getsignal(number) is signal.SIG_IGN:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(number, call)
    try:
        yield
    finally:
        loop.remove_signal_handler(number)
