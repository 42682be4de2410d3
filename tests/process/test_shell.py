"""What a command sees, and what the model is told of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from safepoint import Agent, Ladder, LedgerEntry
from safepoint.testing import ScriptedModel, call, say
from safepoint.tools import shell
from safepoint.tools.shell_tool import Shell


def ran(*commands: str, tool: Shell) -> tuple[LedgerEntry, ...]:
    calls = [call("shell", command=command) for command in commands]
    return asyncio.run(Agent("a", model=ScriptedModel(calls, say("done")), tools=[tool]).run("go")).ledger


TOLD = {
    "echo out; echo err >&2": "out\nerr",
    "exit 3": "(no output)\n[exit code 3]",
    "echo dying; kill -SEGV $$": "dying\n[the shell was killed by SIGSEGV]",
    "cat": "(no output)",
    "printf 'no newline'": "no newline",
    "no-such-program 2>/dev/null": "(no output)\n[exit code 127]",
    "printf '\\377'": "\ufffd",
    "head -c 500000 /dev/zero | tr '\\0' x": f"{'x' * 100}\n[499800 characters were left out here]\n{'x' * 100}",
}


def test_a_command_is_told_with_what_it_printed_and_how_it_ended() -> None:
    entries = ran(*TOLD, tool=shell(max_output=200))
    assert {entry.args["command"]: entry.content for entry in entries} == TOLD


def test_a_command_sees_its_folder_and_what_it_was_given_but_not_the_keys_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    tool = shell(cwd=tmp_path, env={"GREETING": "hello"})
    where, greeting, everything = ran("pwd", "echo $GREETING", "env", tool=tool)
    assert (where.content, greeting.content) == (str(tmp_path), "hello")
    assert "PATH=" in (everything.content or "")
    assert "secret" not in (everything.content or "")


def test_a_command_that_cannot_be_started_is_a_failed_tool(tmp_path: Path) -> None:
    (entry,) = ran("true", tool=shell(cwd=tmp_path / "gone"))
    assert (entry.state, "No such file or directory" in (entry.error or "")) == ("failed", True)
    (entry,) = ran("echo \x00", tool=shell())
    assert entry.state == "failed"


def test_a_command_that_takes_the_stop_well_has_finished() -> None:
    tool = shell(timeout=0.5, ladder=Ladder(term=5))
    script = "trap 'echo tidied; exit 0' TERM; echo begun; while :; do sleep 0.05; done"
    (entry,) = ran(script, tool=tool)
    words = (entry.content or "").split()
    assert (entry.state, words[0], words[-1]) == ("finished", "begun", "tidied")


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="max_output=1: write a whole number of characters from 100 up"):
        shell(max_output=1)
    with pytest.raises(ValueError, match="above the ladder's cap"):
        shell(grace=60)
    with pytest.raises(ValueError, match="must be a finite number of seconds above 0"):
        shell(timeout=-1)
    with pytest.raises(ValueError, match="cannot be a tool's name"):
        shell(name="my shell")
