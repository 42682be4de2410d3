"""The chat on a real terminal: scrollback above, and below it one block that is redrawn, with the prompt in it.

What is printed is ordinary scrollback and is never touched again. The block shows the words and calls under way, the
status line and the input; it is redrawn at most ten times a second.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

from prompt_toolkit.application import Application
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    FormattedTextControl,
    HSplit,
    Layout,
    VerticalAlign,
    Window,
)
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.widgets import SearchToolbar

from safepoint import Question
from safepoint._core.points import Level
from safepoint.cli.chat.activity import Call
from safepoint.cli.chat.approvals import Request, read_answer
from safepoint.cli.chat.commands import common_beginning, completions
from safepoint.cli.chat.conversation import Conversation, Press, QuestionLeft
from safepoint.cli.chat.lines import COLOURS, NO_COLOURS, UNICODE, Line, Role, amber, bold, dim, fit, ink, joined
from safepoint.cli.chat.markdown import BlockSplitter, render
from safepoint.cli.chat.words import (
    Look,
    status_line,
    thinking_line,
    tokens_of,
    tree_lines,
    tree_order,
    working_lines,
)
from safepoint.cli.sanitize import sanitize

REDRAW: Final = 0.1
ESCAPE_WAIT: Final = 0.1  # seconds: a lone Esc, or the beginning of a key that sends several bytes
FOLDED: Final = 6  # lines of a paste that are still shown
_TAILS: Final = (2, 10, 200)
# What lies between these two is shown as one picture, by terminals that know them (mode 2026); others ignore them.
_HOLD: Final = "\x1b[?2026h"
_SHOW: Final = "\x1b[?2026l"


class Screen:
    """A `View`. `submit` is called with each message and command; `leave` when the person wants to end the chat."""

    def __init__(
        self,
        submit: Callable[[str], None],
        leave: Callable[[int], None],
        *,
        history: Path | None = None,
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self.conversation: Conversation | None = None
        self._submit, self._leave = submit, leave
        self._colour = not os.environ.get("NO_COLOR")
        self._palette = COLOURS if self._colour else NO_COLOURS
        self._splitter = BlockSplitter()
        self._pending: list[str] = []
        self._printed = asyncio.Event()
        self.after_blank = True  # the last line that was printed is empty
        self._after_echo = False  # it is what the person has said
        self._question: tuple[Question, Request | None] | None = None
        self._answer: asyncio.Future[object] | None = None
        self._confirm: str | None = None
        self._editing = False
        self._tree: int | None = None
        self._tail = 0
        self._sent = 0
        self._pastes: dict[str, str] = {}
        # What Enter does on an empty line, and the words below the input that say so.
        self.on_empty: Callable[[], None] = lambda: None
        self.hint: Line | None = None
        kept: History = FileHistory(str(history)) if history is not None else InMemoryHistory()
        self._buffer = Buffer(history=kept, multiline=True, enable_history_search=False)
        self._app: Application[None] = self._application(input, output)

    @property
    def look(self) -> Look:
        return Look(max(20, self._app.output.get_size().columns))

    # -- the view ------------------------------------------------------------------------------------------------------

    def words(self, piece: str) -> None:
        if not self.after_blank and not self._after_echo and not self._splitter.tail:
            self._out("")  # between the calls and what is said about them
        for block in self._splitter.feed(sanitize(piece)):
            self._out(render(block, width=self.look.width, colour=self._colour) + "\n")
        self.changed()

    def end_words(self) -> None:
        rest = self._splitter.finish()
        if rest.strip():
            self._out(render(rest, width=self.look.width, colour=self._colour) + "\n")

    def print(self, *lines: Line) -> None:
        if lines:
            self._out(joined(lines, self._palette))

    def changed(self) -> None:
        self._app.invalidate()

    def begin(self, call: Call) -> None:
        self._app.invalidate()

    def give_back(self, text: str) -> None:
        self._buffer.insert_text(text)

    def echo(self, typed: str) -> None:
        """What the person has said, as it stays in the scrollback."""
        first, *rest = sanitize(typed).splitlines()
        self.print(
            *([] if self.after_blank else [()]),
            (bold(f"{self.look.signs.prompt} "), ink(first)),
            *((ink(f"  {line}"),) for line in rest),
        )
        self._after_echo = True

    async def ask(self, question: Question, call: Call | None) -> object:
        """Cancellation: nothing was answered."""
        request = Request.of(question.payload)
        self._question, self._confirm, self._editing = (question, request), None, False
        self._answer = asyncio.get_running_loop().create_future()
        self.changed()
        try:
            answer = await self._answer
        finally:
            self._question = self._answer = None
            self.changed()
        self.print(_trace(question, request, answer, self.look))
        return answer

    # -- running -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def shown(self) -> AsyncGenerator[None]:
        """While it lasts the terminal is ours. Cancellation: the terminal is as it was before."""
        async with asyncio.TaskGroup() as group:
            drawing = group.create_task(self._app.run_async(handle_sigint=True, set_exception_handler=False))
            printing = group.create_task(self._print_pending())
            ticking = group.create_task(self._tick())
            try:
                yield
            finally:
                ticking.cancel()
                printing.cancel()
                if self._app.is_running:
                    self._app.exit()
                await asyncio.wait([drawing])
                self._write()

    async def _print_pending(self) -> None:
        while True:
            await self._printed.wait()
            self._printed.clear()
            # `run_in_terminal` would switch the terminal to its line mode for a moment: what a person types just then
            # would be echoed into the text, and their Enter would arrive as another key.
            self._app.output.write_raw(_HOLD)
            self._app.renderer.erase(leave_alternate_screen=False)
            self._write()
            # At once, and not with the next tick: until then the block would be missing, which is seen as a flicker.
            # The counter is what the controls keep their last lines by.
            self._app.render_counter += 1
            with set_app(self._app):
                self._app.renderer.render(self._app, self._app.layout)
            self._app.output.write_raw(_SHOW)
            self._app.output.flush()

    def _write(self) -> None:
        pending, self._pending = self._pending, []
        if pending:
            self._app.output.write_raw("\n".join(pending).replace("\n", "\r\n") + "\r\n")
            self._app.output.flush()

    async def _tick(self) -> None:
        """Something moves while it works."""
        while True:
            await asyncio.sleep(REDRAW)
            if self.conversation is not None and self.conversation.working:
                self._app.invalidate()

    def _out(self, text: str) -> None:
        self._pending.append(text)
        self._after_echo = False
        self.after_blank = text.endswith("\n") or not text
        self._printed.set()

    # -- the block -----------------------------------------------------------------------------------------------------

    def _above(self) -> list[str]:
        """The lines above the input, already with the terminal's codes."""
        talk, look = self.conversation, self.look
        if talk is None:
            return []
        lines: list[Line] = []
        texts: list[str] = []
        if self._splitter.tail.strip():
            texts = render(self._splitter.tail, width=look.width, colour=self._colour).split("\n")
        if self._question is not None:
            lines = _question_lines(*self._question, look)
        elif talk.working and talk.activity is not None:
            now = talk.clock()
            if self._tree is not None:
                lines = tree_lines(talk.activity, now, look, self._tree)
            else:
                lines = working_lines(talk.activity, now, look, _TAILS[self._tail])
            if talk.activity.waiting_since is not None and not texts and talk.level is Level.NONE:
                lines.append(thinking_line(talk.activity.waiting_since, now, look))
            lines += talk.stop_lines()
            lines += [
                (dim(f"{look.signs.dots} joins before its next step: {each.message.text}   /take-back"),)
                for each in talk.steers
            ]
            lines += [(dim(f"{look.signs.dots} queued: {text}   /take-back"),) for text in talk.queue]
            if talk.level is Level.NONE:
                lines.append(status_line(talk.activity, now, look, talk.activity.usage, "Ctrl-C stops · /tree"))
        texts += [joined([fit(line, look.width)], self._palette) for line in lines]
        rows = self._app.output.get_size().rows
        return texts[-max(1, rows - 4) :]

    def _below(self) -> list[Line]:
        """The lines below the input: what the keys do now."""
        talk, text = self.conversation, self._buffer.text
        if talk is None:
            return []
        if self._confirm is not None:
            return [(bold("  Send this as your no?"), dim("   Enter sends it   Esc goes back"))]
        if self._tree is not None:
            return [(dim("  arrows move   s stop this one   S stop all   Enter output   q close"),)]
        if self._question is not None:
            return []
        if text.startswith("/") and "\n" not in text:
            return [(bold(f"  {name.ljust(12)}"), dim(help)) for name, help in completions(text)]
        if talk.working and text.strip():
            return [(dim("  Enter steer: joins before its next step   Tab queue   Ctrl-X stop, then this"),)]
        if self.hint is not None and not text:
            return [self.hint] if self.hint else []
        if not talk.working and self._sent < 3 and (not text or "\n" in text):
            return [(dim("  Enter send   Alt-Enter new line   Up history   Ctrl-R search   / command"),)]
        return []

    def _application(self, input: Input | None, output: Output | None) -> Application[None]:
        search = SearchToolbar()
        above = FormattedTextControl(lambda: ANSI("\n".join(self._above())))
        below = FormattedTextControl(
            lambda: ANSI(joined([fit(line, self.look.width) for line in self._below()], self._palette))
        )
        prompt = BeforeInput(lambda: ANSI(f"\x1b[1m{UNICODE.prompt} \x1b[0m"))
        control = BufferControl(self._buffer, input_processors=[prompt], search_buffer_control=search.control)
        root = HSplit(
            [
                ConditionalContainer(
                    Window(above, dont_extend_height=True, wrap_lines=False), Condition(lambda: bool(self._above()))
                ),
                Window(control, dont_extend_height=True, wrap_lines=True, get_line_prefix=_indent),
                search,
                ConditionalContainer(Window(below, dont_extend_height=True), Condition(lambda: bool(self._below()))),
            ],
            align=VerticalAlign.TOP,  # what is not needed stays free below, and nothing is stretched
        )
        app: Application[None] = Application(
            layout=Layout(root, focused_element=control),
            key_bindings=self._keys(),
            erase_when_done=True,
            min_redraw_interval=REDRAW / 2,
            input=input,
            output=output or _output(),
        )
        app.ttimeoutlen = ESCAPE_WAIT
        app.timeoutlen = 4 * ESCAPE_WAIT
        return app

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        typing = has_focus(self._buffer) & Condition(lambda: self._tree is None)
        in_tree = Condition(lambda: self._tree is not None)
        busy = Condition(lambda: self.conversation is not None and self.conversation.working)
        bind: tuple[tuple[tuple[str, ...], Callable[[KeyPressEvent], None], object], ...] = (
            (("enter",), self._enter, typing),
            (("escape", "enter"), lambda event: self._buffer.insert_text("\n"), typing),
            (("c-j",), self._enter, typing),
            (("c-c",), self._interrupt, Condition(lambda: True)),
            (("<sigint>",), self._interrupt, Condition(lambda: True)),
            (("escape",), self._escape, has_focus(self._buffer)),
            (("c-d",), self._end, typing & Condition(lambda: not self._buffer.text)),
            (("c-x",), self._instead, typing & busy),
            (("tab",), self._tab, typing),
            (("c-o",), self._more, busy),
            (("c-z",), lambda event: event.app.suspend_to_background(), Condition(lambda: True)),
            (("<bracketed-paste>",), self._paste, typing),
            (("up",), lambda event: self._move(-1), in_tree),
            (("down",), lambda event: self._move(1), in_tree),
            (("<any>",), self._tree_key, in_tree),
            (("enter",), self._more, in_tree),
        )
        for names, handler, when in bind:
            keys.add(*names, filter=when, eager=names in (("c-c",), ("c-x",)))(handler)  # type: ignore[arg-type]  # a Filter each
        return keys

    def _enter(self, event: KeyPressEvent) -> None:
        typed, talk = self._buffer.text, self.conversation
        for mark, text in self._pastes.items():
            typed = typed.replace(mark, text)
        if self._question is not None:
            self._answer_with(typed)
            return
        if not typed.strip():
            if talk is None or not talk.go_on():
                self.on_empty()
            return
        self._buffer.append_to_history()
        self._buffer.reset()
        self._pastes.clear()
        self._sent += 1
        if talk is not None and talk.working and not typed.startswith("/"):
            talk.steer(typed)
            return
        if talk is None or not talk.working:
            self.echo(typed)  # a command while it works leaves no trace between the lines of the work
        self._submit(typed)

    def _answer_with(self, typed: str) -> None:
        assert self._question is not None
        question, request = self._question
        if not typed.strip() or self._answer is None or self._answer.done():
            return
        answer: object | None
        if self._editing:
            answer = {"edit": typed.strip()}
        elif request is None and question.kind == "interrupt":
            answer = typed.strip()
        elif request is not None and typed.strip().lower() in ("e", "edit"):
            self._editing = True
            self._buffer.reset()
            self._buffer.insert_text(request.text)
            return
        else:
            answer = read_answer(typed)
            if request is None and answer == {"always": True}:
                answer = None
            if answer is None and self._confirm != typed:
                self._confirm = typed
                return
            answer = typed.strip() if answer is None else answer
        self._confirm = None
        self._buffer.reset()
        self._answer.set_result(answer)

    def _interrupt(self, event: KeyPressEvent) -> None:
        self._press("Ctrl-C")

    def _escape(self, event: KeyPressEvent) -> None:
        if self._confirm is not None:
            self._confirm = None
        elif self._tree is not None:
            self._tree = None
        elif (self.conversation is not None and self.conversation.working) or self._question is not None:
            self._press("Esc")

    def _press(self, how: str) -> None:
        talk = self.conversation
        if talk is None:
            self._leave(130)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_exception(QuestionLeft())
        elif self._buffer.text and not talk.working:
            self._buffer.reset()
        else:
            match talk.press(how):
                case Press.LEAVE:
                    self._leave(130)
                case Press.IDLE:
                    self.print((dim("Nothing runs. Ctrl-C again, Ctrl-D or /quit ends the chat."),))
                case Press.STOPS | Press.REPEATED:
                    pass
        self.changed()

    def _end(self, event: KeyPressEvent) -> None:
        if self.conversation is None or not self.conversation.working:
            self._leave(0)
        else:
            self.print((dim("It is at work: Ctrl-C stops it, then Ctrl-D ends the chat."),))

    def _instead(self, event: KeyPressEvent) -> None:
        talk, typed = self.conversation, self._buffer.text.strip()
        if talk is not None and typed:
            self._buffer.append_to_history()
            self._buffer.reset()
            talk.stop_for(typed)

    def _tab(self, event: KeyPressEvent) -> None:
        talk, text = self.conversation, self._buffer.text
        if text.startswith("/"):
            names = [name for name, _ in completions(text)]
            if names:
                self._buffer.reset()
                self._buffer.insert_text(common_beginning(names) + (" " if len(names) == 1 else ""))
        elif talk is not None and talk.working and text.strip():
            self._buffer.append_to_history()
            self._buffer.reset()
            talk.queue.append(text.strip())

    def _more(self, event: KeyPressEvent) -> None:
        self._tail = (self._tail + 1) % len(_TAILS)
        self._tree = None

    def _paste(self, event: KeyPressEvent) -> None:
        text = sanitize(event.data.replace("\r\n", "\n").replace("\r", "\n"))
        lines = text.count("\n") + 1
        if lines <= FOLDED:
            self._buffer.insert_text(text)
            return
        mark = f"[pasted {lines} lines]"
        while mark in self._pastes:
            mark = f"{mark[:-1]}, again]"
        self._pastes[mark] = text
        self._buffer.insert_text(mark)

    # -- the tree ------------------------------------------------------------------------------------------------------

    def open_tree(self, chosen: int = 0) -> None:
        self._tree = chosen
        self.changed()

    def close_tree(self) -> None:
        self._tree = None
        self.changed()

    def _move(self, by: int) -> None:
        talk = self.conversation
        if talk is not None and talk.activity is not None and self._tree is not None and talk.activity.calls:
            self._tree = (self._tree + by) % len(talk.activity.calls)

    def _tree_key(self, event: KeyPressEvent) -> None:
        talk, key = self.conversation, event.data
        if key == "q" or talk is None or talk.activity is None:
            self._tree = None
        elif key == "s" and self._tree is not None:
            calls = tree_order(talk.activity)
            if self._tree < len(calls):
                talk.stop_call(calls[self._tree])
        elif key == "S":
            self._tree = None
            talk.press("Ctrl-C")

    @property
    def status(self) -> str:
        talk = self.conversation
        return tokens_of(talk.activity.usage, self.look) if talk is not None and talk.activity is not None else ""


def _output() -> Output:
    """The terminal, never asked where its cursor is.

    The answer would come after the next line was printed, and the block would be drawn for a place that has moved.
    """
    output = create_output()
    if isinstance(output, Vt100_Output):
        output.enable_cpr = False
    return output


def _indent(line: int, wrapped: int) -> str:
    return "" if line == 0 and wrapped == 0 else "  "


def _question_lines(question: Question, request: Request | None, look: Look) -> list[Line]:
    mark: Line = ((Role.VIOLET, f"{look.signs.question} "),)
    if request is None:
        words = (
            "y yes   n no   or say why not"
            if question.kind != "interrupt"
            else "Write your answer.   Ctrl-C answers later"
        )
        payload = question.payload
        text = (
            cast("dict[str, Any]", payload).get("question", payload) if isinstance(payload, dict) else payload
        )  # Any: JSON
        return [(*mark, bold(f"{question.tool} asks")), (ink(f"    {text}"),), (dim(f"  {words}"),)]
    shown = [(ink(f"    {line}"),) for line in sanitize(request.text).splitlines()[:8]]
    always = f'"{request.always}"' if request.always != request.text else "exactly this"
    return [
        (*mark, bold(f"{request.tool} wants to {request.verb}")),
        *shown,
        (dim(f"  {request.note.partition(';')[0]};"), amber(request.note.partition(";")[2])),
        (dim(f"  y once   a always for {always} in this chat   n no   e edit   or say why not"),),
    ]


def _trace(question: Question, request: Request | None, answer: object, look: Look) -> Line:
    what = request.text if request is not None else question.tool
    done: tuple[Role, str] = (Role.GREEN, f"{look.signs.done} ")
    match answer:
        case True:
            return (done, dim(f"you allowed: {what} (once)"))
        case {"always": True}:
            return (done, dim(f"you allowed: {request.always if request is not None else what} (always in this chat)"))
        case {"edit": str(text)}:
            return (done, dim(f"you changed it and allowed: {text}"))
        case False:
            return ((Role.RED, f"{look.signs.failed} "), dim(f"you said no: {what}"))
        case _ if request is None and question.kind == "interrupt":
            return (done, dim(f"you answered: {answer}"))
        case _:
            return ((Role.RED, f"{look.signs.failed} "), dim(f"you said no: {answer}"))
