"""The chat in a real terminal: what a person sees after each key."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.terminal.terminal import CTRL_C, CTRL_D, CTRL_X, DOWN, ENTER, ESC, PATIENCE, TAB, UP, Terminal

pytestmark = pytest.mark.terminal

ROOT = Path(__file__).parents[2]
ENV = {"PYTHONPATH": str(ROOT), "COLUMNS": "", "LINES": ""}
BETWEEN_PRESSES = 0.4
QUIET = 0.4
AGENT = "tests.terminal.playground:agent"


@contextmanager
def chat(folder: Path, *more: str, env: dict[str, str] | None = None) -> Generator[Terminal]:
    with Terminal(["chat", AGENT, *more], cwd=folder, env={**ENV, **(env or {})}) as terminal:
        terminal.wait_for("Ctrl-C stops it")
        yield terminal


def idle(terminal: Terminal) -> None:
    """Wait until nothing runs. While something does, the spinner moves; a picture that is half drawn soon changes."""
    terminal.wait_for(gone="─ working")
    while terminal.read(QUIET):
        terminal.wait_for(gone="─ working")


def test_an_answer_is_markdown_and_ctrl_d_leaves_with_0(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("hello")
        terminal.wait_for("You said hello.", "  │ print('code')")
        assert "**" not in terminal.all_text
        idle(terminal)
        terminal.send(CTRL_D)
        assert terminal.exit_code() == 0


def test_ctrl_c_in_a_stream_stops_at_once_keeps_the_words_and_the_chat_goes_on(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("story")
        terminal.wait_for("word5")
        terminal.send(CTRL_C)
        terminal.wait_for("■ Stopped by you in", "text kept", "/resume")
        assert "word0 word1" in terminal.all_text
        terminal.line("hello")
        terminal.wait_for("You said hello.")


def test_esc_stops_as_ctrl_c_does(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("story")
        terminal.wait_for("word5")
        terminal.send(ESC)
        terminal.wait_for("■ Stopped by you in")
        terminal.line("/why")
        terminal.wait_for("Esc: stop now")


def test_the_first_ctrl_c_waits_for_a_tool_and_says_what_the_second_would_cut(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("slow here")
        terminal.wait_for("│ line 3 here")
        terminal.send(CTRL_C)
        terminal.wait_for("■ Stopping when these have ended.", "Ctrl-C again: now. Cuts slow (in doubt).")
        (tmp_path / "go").touch()
        terminal.wait_for("■ Stopped by you in", "✓ slow", "1 finished")
        assert "in doubt" not in terminal.screen.rpartition("■ Stopped")[2]


def test_enter_takes_the_first_ctrl_c_back(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("slow here")
        terminal.wait_for("│ line 3 here")
        terminal.send(CTRL_C)
        terminal.wait_for("Enter: go on after all.")
        terminal.send(ENTER)
        terminal.wait_for("The stop was taken back.", "─ working")
        (tmp_path / "go").touch()
        terminal.wait_for("The tool said: went through")


def test_the_second_ctrl_c_cuts_and_the_receipt_names_what_is_in_doubt(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("slow here")
        terminal.wait_for("│ line 3 here")
        terminal.send(CTRL_C)
        terminal.wait_for("Stopping when")
        _press_until(terminal, "■ Stopped by you in")
        terminal.wait_for("1 in doubt", "! slow           in doubt: cut after", "/resume   /rewind   /why")
        terminal.line("/why")
        terminal.wait_for("Ctrl-C: stop at the next safe point", "Ctrl-C: stop now", "took effect is not known")


def test_a_cut_effect_is_undone_and_the_receipt_says_so(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("undo room")
        terminal.wait_for("undo           room")
        terminal.send(CTRL_C)
        terminal.wait_for("Ctrl-C again: now. Undoes undo.")
        _press_until(terminal, "1 undone")
        terminal.wait_for("↶ undo           undone: room")


def test_a_thread_that_does_not_react_is_let_go_and_named(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("deaf ears")
        terminal.wait_for("deaf           ears")
        terminal.send(CTRL_C)
        terminal.wait_for("Stopping when", "Ctrl-C again: now. Tells deaf (may not react).")
        _press_until(terminal, "■ Stopped by you in")
        terminal.wait_for("! deaf           in doubt, still running: it did not react")


def test_the_third_ctrl_c_forces_and_the_fourth_leaves_and_says_what_was_let_go(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("stubborn mule")
        terminal.wait_for("stubborn       mule")
        terminal.send(CTRL_C)
        terminal.wait_for("■ Stopping when these have ended.", "Cuts stubborn (in doubt). At most 10 s.")
        _press_again(terminal)
        terminal.wait_for("■ Stopping now,", "s at the latest.   Ctrl-C again: force", "cleaning up")
        assert "Forced" not in terminal.all_text
        _press_again(terminal)
        terminal.wait_for("■ Forced after", "1 in doubt", "! stubborn       in doubt, still running")
        assert "Stopped by you" not in terminal.all_text
        _press_until(terminal, "■ Left. Still running until now: stubborn.")
        assert terminal.exit_code() == 130


def test_a_key_that_is_held_down_is_one_press_and_does_not_end_the_chat(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("story")
        terminal.wait_for("word5")
        for _ in range(8):
            terminal.send(CTRL_C)
            terminal.read(0.03)
        terminal.wait_for("■ Stopped by you in")
        terminal.line("hello")
        terminal.wait_for("You said hello.")
        assert "Forced" not in terminal.all_text


def test_ctrl_c_at_the_prompt_clears_the_line_then_warns_then_leaves_with_130(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.send("half a sen")
        terminal.wait_for("› half a sen")
        terminal.send(CTRL_C)
        terminal.wait_for(gone="half a sen")
        terminal.send(CTRL_C)
        terminal.wait_for("Nothing runs. Ctrl-C again, Ctrl-D or /quit ends the chat.")
        _press_again(terminal)
        assert terminal.exit_code() == 130


def test_an_answer_or_an_error_cannot_steer_the_screen(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("evil")
        terminal.wait_for("]52;c;cm0gLXJmred[2J1m and more")
        terminal.line("broken")
        terminal.wait_for("■ Failed: gone[8m away   /resume tries again")
        for code in (b"\x1b]52", b"\x1b[8m", b"\x9b", b"\x07"):
            assert code not in terminal.raw.replace("›".encode(), b"")


def _press_again(terminal: Terminal) -> None:
    """Press Ctrl-C once more, late enough to count as another press."""
    until = time.monotonic() + BETWEEN_PRESSES
    while (left := until - time.monotonic()) > 0:
        terminal.read(left)
    terminal.send(CTRL_C)


def _press_until(terminal: Terminal, text: str) -> None:
    """Press Ctrl-C as an impatient person does, until the text is there."""
    while text not in terminal.all_text:
        terminal.send(CTRL_C)
        until = time.monotonic() + BETWEEN_PRESSES
        while text not in terminal.all_text and (left := until - time.monotonic()) > 0:
            terminal.read(left)


def test_typing_while_it_works_steers_and_the_model_hears_it_before_its_next_step(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("slow here")
        terminal.wait_for("│ line 3 here")
        terminal.send("only tests")
        terminal.wait_for("Enter steer: joins before its next step   Tab queue   Ctrl-X stop, then this")
        terminal.send(ENTER)
        terminal.wait_for("… joins before its next step: only tests")
        (tmp_path / "go").touch()
        terminal.wait_for("✓ joined: only tests", "You said only tests.")
        assert terminal.all_text.index("✓ slow") < terminal.all_text.index("✓ joined")


def test_a_message_is_taken_back_before_it_has_joined(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("slow here")
        terminal.wait_for("│ line 3 here")
        terminal.line("only tests")
        terminal.wait_for("… joins before its next step: only tests")
        terminal.line("/take-back")
        terminal.wait_for("Taken back: only tests", gone="… joins")
        (tmp_path / "go").touch()
        terminal.wait_for("The tool said: went through")
        assert "joined: only tests" not in terminal.all_text


def test_a_message_that_is_queued_runs_after_the_answer(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("slow here")
        terminal.wait_for("│ line 3 here")
        terminal.send("hello later" + TAB)
        terminal.wait_for("… queued: hello later")
        (tmp_path / "go").touch()
        terminal.wait_for("went through", "› hello later", "You said hello later.")


def test_ctrl_x_stops_and_sends_the_line_instead(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("story")
        terminal.wait_for("word5")
        terminal.send("hello instead")
        terminal.wait_for("Ctrl-X stop")
        terminal.send(CTRL_X)
        terminal.wait_for("■ Stopped by you", "› hello instead", "You said hello instead.")
        text = terminal.all_text
        assert text.index("■ Stopped by you") < text.index("› hello instead") < text.index("You said hello instead.")


def test_what_was_steered_comes_back_to_the_prompt_after_a_stop(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("slow here")
        terminal.wait_for("│ line 3 here")
        terminal.line("wait a moment")
        terminal.wait_for("joins before its next step: wait a moment")
        _press_until(terminal, "■ Stopped by you")
        terminal.wait_for("› wait a moment")


def test_a_command_is_asked_about_and_always_covers_the_next_one(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("danger echo one")
        terminal.wait_for("? shell wants to run", "    echo one", 'a always for "echo" in this chat')
        terminal.line("a")
        terminal.wait_for("✓ you allowed: echo (always in this chat)", "The tool said: one")
        idle(terminal)
        terminal.line("danger echo two")
        terminal.wait_for("The tool said: two")
        assert terminal.all_text.count("? shell wants to run") == 0  # the first question is answered and gone
        assert terminal.all_text.count("you allowed:") == 1
        idle(terminal)
        terminal.line("danger ls -d .")
        terminal.wait_for("? shell wants to run", 'a always for "ls" in this chat')
        terminal.line("n")
        terminal.wait_for("✗ you said no: ls -d .", "it was denied")
        idle(terminal)
        terminal.line("danger echo three; echo four")
        terminal.wait_for("a always for exactly this")


def test_a_sentence_is_a_no_with_a_reason_once_it_is_confirmed(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("danger rm file")
        terminal.wait_for("? shell wants to run")
        terminal.line("use git rm instead")
        terminal.wait_for("Send this as your no?")
        terminal.send(ENTER)
        terminal.wait_for("✗ you said no: use git rm instead", "it was denied: the user")


def test_a_command_can_be_edited_before_it_runs(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("danger echo old")
        terminal.wait_for("? shell wants to run")
        terminal.line("e")
        terminal.wait_for("› echo old")
        terminal.send("er" + ENTER)
        terminal.wait_for("you changed it and allowed: echo older", "The tool said: older")


def test_a_stopped_turn_is_resumed_by_another_process(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("slow here")
        terminal.wait_for("│ line 3 here")
        terminal.process.kill()  # as a power cut would
    (tmp_path / "go").touch()
    with chat(tmp_path, "--continue") as terminal:
        terminal.wait_for("Goes on with: slow here", "Its last turn was stopped.")
        terminal.line("/resume")
        terminal.wait_for("slow is in doubt:")
        terminal.line("r")
        terminal.wait_for("The tool said: went through")


def test_a_turn_that_ctrl_c_has_cut_is_resumed_by_another_process_and_the_model_is_told(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("slow here")
        terminal.wait_for("│ line 3 here")
        _press_until(terminal, "1 in doubt")
        idle(terminal)
        terminal.line("/quit")
        assert terminal.exit_code() == 0
    with chat(tmp_path, "--continue") as terminal:
        terminal.wait_for("Goes on with: slow here, 1 message so far.", "Its last turn was stopped.")
        terminal.line("/resume")
        terminal.wait_for("slow is in doubt:  t tell the model   r run it again   a ask me each time")
        terminal.line("t")
        terminal.wait_for("The tool said:")
        idle(terminal)
        assert "went through" not in terminal.all_text  # it was told, and did not run again


def test_an_open_question_outlives_the_program(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("danger echo kept")
        terminal.wait_for("? shell wants to run")
        terminal.send(CTRL_C)
        terminal.wait_for("The question stays open.")
        terminal.send(CTRL_D)
        assert terminal.exit_code() == 0
    with chat(tmp_path, "--continue") as terminal:
        terminal.wait_for("Its last turn was stopped.")
        terminal.line("/resume")
        terminal.wait_for("? shell wants to run")
        terminal.line("y")
        terminal.wait_for("The tool said: kept")


def test_the_tree_shows_the_agent_inside_and_s_stops_that_call_alone(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("nested slow inside")
        terminal.wait_for("slow: line 3 inside")
        terminal.line("/tree")
        terminal.wait_for("s stop this one", "  └ ")
        terminal.send(DOWN)
        terminal.send(UP)
        terminal.send(DOWN)
        terminal.send("s")
        terminal.wait_for("The tool said:")
        idle(terminal)
        assert "■ Stopped" not in terminal.all_text  # the run itself went on


def test_rewind_takes_a_turn_back_and_lists_what_stays_done(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    with chat(tmp_path) as terminal:
        terminal.line("slow effect")
        terminal.wait_for("The tool said: went through")
        idle(terminal)
        terminal.line("/rewind")
        terminal.wait_for("  1  slow effect")
        terminal.line("/rewind 1")
        terminal.wait_for("Back to before: slow effect", "not taken back: slow effect")


def test_help_model_and_sessions_answer(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("hello")
        terminal.wait_for("You said hello.")
        idle(terminal)
        for command, text in (("/help", "/take-back"), ("/model", "changes it"), ("/sessions", "  1  hello")):
            terminal.line(command)
            terminal.wait_for(text)
        terminal.line("/nonsense")
        terminal.wait_for("There is no command /nonsense.")


def test_a_long_paste_folds_and_is_sent_whole(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.wait_for("Enter send")
        lines = "\n".join(f"row {number}" for number in range(9))
        terminal.send(f"\x1b[200~{lines}\x1b[201~")
        terminal.wait_for("[pasted 9 lines]")
        terminal.send(ENTER)
        terminal.wait_for("You said row 0", "row 8")


def test_a_resize_redraws_the_block_and_leaves_the_scrollback(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.line("quick first")
        terminal.wait_for("The tool said: quick first")
        idle(terminal)
        terminal.line("slow here")
        terminal.wait_for("│ line 3 here", "Ctrl-C stops · /tree")
        terminal.resize(50, 24)  # as many rows: for fewer, pyte drops the top ones and leaves the cursor where it was
        _wait_for_new_lines(terminal)
        status = [line for line in terminal.screen.splitlines() if line.startswith("─ working")]
        assert len(status) == 1
        assert re.fullmatch(r"─ working [\d.]+ s · ≈[\d.k]+ tokens ─+", status[0])  # the keys are left out, not cut
        assert "The tool said: quick first" in terminal.all_text
        terminal.resize(100, 24)
        terminal.wait_for("Ctrl-C stops · /tree ─")
        terminal.send(CTRL_C)
        terminal.wait_for("■ Stopping when these have ended.")
        (tmp_path / "go").touch()
        terminal.wait_for("■ Stopped by you in", "1 finished")
        assert terminal.all_text.count("The tool said: quick first") == 1


def _wait_for_new_lines(terminal: Terminal) -> None:
    """Wait until the block was drawn again: the tool has printed more than was there."""
    last = _last(terminal)
    deadline = time.monotonic() + PATIENCE
    while _last(terminal) < last + 4 or "here\n─ working" not in terminal.screen:
        assert time.monotonic() < deadline, terminal.screen
        terminal.read(1.0)


def _last(terminal: Terminal) -> int:
    return max((int(number) for number in re.findall(r"line (\d+) here", terminal.screen)), default=-1)


def test_no_color_leaves_out_colour(tmp_path: Path) -> None:
    with Terminal(["chat", AGENT], cwd=tmp_path, env={**ENV, "NO_COLOR": "1"}) as terminal:
        terminal.line("quick x")
        terminal.wait_for("The tool said: quick x", "✓ quick")
        assert not re.search(rb"\x1b\[(?:\d+;)*3[1-7]m", terminal.raw)


def test_a_dumb_terminal_gets_lines_without_any_escape_and_ctrl_c_stops(tmp_path: Path) -> None:
    with Terminal(["chat", AGENT], cwd=tmp_path, env={**ENV, "TERM": "dumb"}) as terminal:
        terminal.wait_for("Ctrl-C stops it")
        terminal.send("quick x\n")
        terminal.wait_for("ok quick", "The tool said: quick x")
        terminal.send("story\n")
        terminal.wait_for("word5")
        terminal.send(CTRL_C)
        terminal.wait_for("# Stopped by you in")
        terminal.send("danger echo yes\n")
        terminal.wait_for("? shell wants to run: echo yes")
        terminal.send("y\n")
        terminal.wait_for("The tool said: yes")
        _press_again(terminal)
        terminal.wait_for("Nothing runs. Ctrl-C again, Ctrl-D or /quit ends the chat.")
        assert b"\x1b" not in terminal.raw
        terminal.send(CTRL_D)
        assert terminal.exit_code() == 0


def test_a_dumb_terminal_says_what_each_ctrl_c_would_do(tmp_path: Path) -> None:
    with Terminal(["chat", AGENT], cwd=tmp_path, env={**ENV, "TERM": "dumb"}) as terminal:
        terminal.wait_for("Ctrl-C stops it")
        terminal.send("stubborn mule\n")
        terminal.wait_for("* stubborn       mule")
        terminal.send(CTRL_C)
        terminal.wait_for("# Stopping when these have ended.", "Cuts stubborn (in doubt). At most 10 s.")
        _press_again(terminal)
        terminal.wait_for("# Stopping now")
        _press_again(terminal)
        terminal.wait_for("# Forced after", "! stubborn       in doubt, still running")
        _press_until(terminal, "# Left. Still running until now: stubborn.")
        assert terminal.exit_code() == 130


def piped(folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "safepoint", "chat", AGENT, "--data", str(folder / "data")]
    env = {**os.environ, **ENV}
    return subprocess.run(command, input=words, capture_output=True, text=True, timeout=PATIENCE, cwd=folder, env=env)


def test_a_pipe_gets_the_answer_on_stdout_and_the_rest_on_stderr(tmp_path: Path) -> None:
    done = piped(tmp_path, "quick one\nquick two\n")
    assert done.returncode == 0
    assert done.stdout == "The tool said: quick one\nThe tool said: quick two\n"
    assert done.stderr.count("ok quick") == 2


def test_a_question_in_a_pipe_is_answered_no_and_said(tmp_path: Path) -> None:
    done = piped(tmp_path, "danger echo hi\n")
    assert done.returncode == 0
    assert "there is no terminal to ask at, so the answer is no" in done.stderr
    assert "denied: the user said no" in done.stdout


def test_ctrl_c_in_a_pipe_stops_the_run_and_exits_with_130(tmp_path: Path) -> None:
    chat = f"{sys.executable} -m safepoint chat {AGENT} --data data"
    script = f"printf 'story\\n' | {chat} > out; echo code ${{PIPESTATUS[1]}}"
    with Terminal([], cwd=tmp_path, env=ENV, command=["bash", "-ic", script]) as terminal:
        while not (tmp_path / "out").exists() or "word5" not in (tmp_path / "out").read_text():
            terminal.read(0.1)
        terminal.send(CTRL_C)
        terminal.wait_for("# Stopped by you in", "code 130")
