"""What "always" covers: the first words of one plain command, and nothing that could hide a second one."""

from __future__ import annotations

import asyncio

import pytest

from safepoint import Agent, StopReason, tool
from safepoint.cli.chat.approvals import Approvals, Request, covered_by_always, read_answer
from safepoint.testing import ScriptedModel, call, say


@pytest.mark.parametrize(
    ("command", "covers"),
    [
        ("ls -la", "ls"),
        ("git push origin main", "git push"),
        ("git --version", "git --version"),
        ("git", "git"),
        ("ls; rm -rf x", "ls; rm -rf x"),
        ("ls && rm x", "ls && rm x"),
        ("ls $(rm x)", "ls $(rm x)"),
        ("ls `rm x`", "ls `rm x`"),
        ("cat a > b", "cat a > b"),
        ("ls\nrm x", "ls\nrm x"),
        ("python -c 'x'", "python -c 'x'"),
        ("/usr/bin/env rm x", "/usr/bin/env rm x"),
        ("sudo ls", "sudo ls"),
        ("A=1 ls", "A=1 ls"),
        ("ls 'open", "ls 'open"),
    ],
)
def test_always_covers_the_first_words_of_a_plain_command(command: str, covers: str) -> None:
    assert covered_by_always(command) == covers


@pytest.mark.parametrize(
    ("typed", "answer"),
    [("y", True), ("OK", True), ("n", False), ("a", {"always": True}), ("yes please", None), ("not now", None)],
)
def test_a_word_is_an_answer_and_a_sentence_is_none(typed: str, answer: object) -> None:
    assert read_answer(typed) == answer


@tool(name="shell")
async def fake_shell(command: str) -> str:
    """Run nothing."""
    return f"ran {command}"


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (True, "ran git push"),
        ({"edit": "git status"}, "ran git status"),
        (False, "This call was not run, it was denied: the user said no"),
        ("use a branch", "This call was not run, it was denied: the user said no: use a branch"),
        ({"something": "else"}, "This call was not run, it was denied: the user said no"),
    ],
)
def test_an_answer_lets_the_command_run_changes_it_or_denies_it(answer: object, told: str) -> None:
    async def talk() -> str:
        model = ScriptedModel(call("shell", command="git push"), say("Done."))
        agent = Agent("a", model=model, tools=[fake_shell], hooks=[Approvals("here")])
        paused = await agent.run("go")
        assert paused.stop_reason is StopReason.INTERRUPTED
        assert paused.checkpoint is not None
        [question] = paused.questions
        request = Request.of(question.payload)
        assert request is not None
        assert (request.text, request.always) == ("git push", "git push")
        done = await agent.resume(paused.checkpoint, answers={question.id: answer})
        entry = done.ledger[-1]
        return entry.content or entry.error or ""

    assert asyncio.run(talk()) == told


def test_a_question_of_another_tool_is_no_request() -> None:
    assert Request.of("what?") is None
    assert Request.of({"question": "what?"}) is None
