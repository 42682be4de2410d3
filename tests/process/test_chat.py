"""The chat without a screen, as a whole process: a pipe, an output that is gone, signals, and the embedded model."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from safepoint.models import LocalModel
from tests.signals import default_signals, sigint_ignored
from tests.terminal.terminal import CTRL_C, CTRL_D, PATIENCE, Terminal

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are a thing of Unix", allow_module_level=True)

ROOT = Path(__file__).parents[2]
AGENT = "tests.terminal.playground:agent"
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


def command(folder: Path, target: str = AGENT) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "safepoint", "chat", target, "--data", str(folder / "data")]


def piped(folder: Path, words: str, target: str = AGENT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, target), input=words, capture_output=True, text=True, timeout=PATIENCE, cwd=folder, env=ENV
    )


@contextmanager
def open_chat(folder: Path) -> Generator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command(folder), stdin=pipe, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=ENV
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def type_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    seen = ""
    while text not in seen:
        piece = process.stdout.read(1)
        assert piece, f"{text!r} did not come; there is {seen!r}"
        seen += piece


@pytest.mark.parametrize("last", ["/quit", "/exit"])
def test_each_line_is_answered_until_the_person_quits_and_blank_lines_are_not(tmp_path: Path, last: str) -> None:
    done = piped(tmp_path, f"quick one\n\n   \nquick two\n{last}\nquick three\n")
    assert done.stdout == "The tool said: quick one\nThe tool said: quick two\n"
    assert done.returncode == 0


def test_an_answer_or_an_error_cannot_steer_the_terminal(tmp_path: Path) -> None:
    done = piped(tmp_path, "evil\nbroken\n")
    assert done.stdout == "]52;c;cm0gLXJmred[2J1m and more\n"
    assert "Failed: gone[8m away" in done.stderr
    assert "\x1b" not in done.stderr
    assert done.returncode == 1


def test_a_failed_answer_does_not_end_the_chat_and_the_exit_code_tells(tmp_path: Path) -> None:
    done = piped(tmp_path, "broken\nquick two\n")
    assert done.stdout == "The tool said: quick two\n"
    assert done.returncode == 1


def test_an_output_that_is_gone_ends_the_chat_quietly(tmp_path: Path) -> None:
    with open_chat(tmp_path) as process:
        type_line(process, "story")
        read_until(process, "word3 ")
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE) == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_ctrl_c_while_a_line_is_awaited_ends_a_pipe_with_130(tmp_path: Path) -> None:
    with default_signals(), open_chat(tmp_path) as process:
        type_line(process, "quick one")
        read_until(process, "quick one\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130


def test_ctrl_c_during_an_answer_stops_it_and_ends_a_pipe_with_130(tmp_path: Path) -> None:
    with default_signals(), open_chat(tmp_path) as process:
        type_line(process, "story")
        read_until(process, "word3 ")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert process.stderr is not None
        assert "# Stopped by you in" in process.stderr.read()


def test_a_process_that_was_started_to_ignore_ctrl_c_goes_on_ignoring_it(tmp_path: Path) -> None:
    with sigint_ignored(), open_chat(tmp_path) as process:
        type_line(process, "quick one")
        read_until(process, "quick one\n")
        process.send_signal(signal.SIGINT)
        type_line(process, "quick two")
        read_until(process, "quick two\n")
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


def test_it_says_first_who_answers(tmp_path: Path) -> None:
    with Terminal(["chat", "script"], cwd=tmp_path, env={"TERM": "dumb"}) as terminal:
        terminal.wait_for("/help lists the rest")
        assert "a script, no language model" in terminal.all_text.splitlines()[0]
        terminal.send(CTRL_D)
        assert terminal.exit_code() == 0


def test_a_target_that_is_none_is_refused_with_what_to_write(tmp_path: Path) -> None:
    done = piped(tmp_path, "", "nobody")
    assert done.returncode == 2
    assert "'openai:NAME'" in done.stderr
    assert "`safepoint chat script` needs no model" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_the_embedded_model_is_stopped_in_the_middle_of_a_sentence_and_answers_again(tmp_path: Path) -> None:
    asyncio.run(LocalModel().prepare())  # the first time it is fetched, which takes longer than a screen may stay empty
    with Terminal(["chat", "local"], cwd=tmp_path) as terminal:
        terminal.wait_for("SmolLM2-135M", "Ctrl-C stops it")
        terminal.line("Write a long story about a dragon.")
        terminal.wait_for("─ working", gone="thinking")
        terminal.send(CTRL_C)
        terminal.wait_for("■ Stopped by you in", "text kept")
        terminal.line("What is the capital of France?")
        terminal.wait_for("› What is the capital", "Paris", gone="─ working")
        terminal.send(CTRL_D)
        assert terminal.exit_code() == 0
