"""An agent in an editor, seen by the client of the protocol's own Python package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import acp
import pytest
from acp import schema

from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.history.parts import ToolResult
from safepoint.serving.ids import SessionKey
from safepoint.serving.run_manager import RunManager
from safepoint.storage.memory import MemoryStorage
from safepoint.storage.run_records import RunState
from tests.protocols.editor import Editor, facts_of, in_process
from tests.protocols.editor_app import agent

Scene = Callable[[Editor, RunManager], Awaitable[None]]


def play(scene: Scene, **options: Any) -> None:  # Any: of `in_process`
    async def main() -> None:
        async with in_process(agent, **options) as (editor, manager):
            await scene(editor, manager)

    asyncio.run(main())


def chosen(option: str) -> Callable[[], Awaitable[schema.AllowedOutcome]]:
    async def permit() -> schema.AllowedOutcome:
        return schema.AllowedOutcome(outcome="selected", option_id=option)

    return permit


async def never() -> schema.AllowedOutcome:
    await asyncio.Event().wait()
    raise AssertionError


def key_of(session: str) -> SessionKey:
    return SessionKey("app", "editor", session)


async def results(manager: RunManager, session: str) -> list[ToolResult]:
    messages = (await manager.view(key_of(session))).messages
    return [part for message in messages for part in message.parts if isinstance(part, ToolResult)]


# -- turns -------------------------------------------------------------------------------------------------------------


def test_initialize_offers_what_works_and_answers_an_unknown_version_with_ours() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        for version in (1, 99):
            offered = await editor.agent.initialize(version)
            assert offered.protocol_version == 1
        capabilities = offered.agent_capabilities
        assert capabilities.load_session
        assert capabilities.prompt_capabilities.image
        assert not capabilities.prompt_capabilities.audio
        sessions = capabilities.session_capabilities
        assert sessions.list is not None
        assert sessions.resume is not None
        assert sessions.close is not None
        assert sessions.fork is None

    play(scene)


def test_words_and_thoughts_are_streamed_once_and_the_answer_is_the_last_frame() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        answer = await editor.prompt(await editor.open(), "think hard")
        assert answer.stop_reason == "end_turn"
        assert editor.text("agent_thought_chunk") == "hm, well"
        assert editor.text() == "so be it: hard"
        assert editor.nothing_follows_the_answer()

    play(scene)


def test_a_call_is_shown_as_it_runs_and_ends_and_its_tool_knows_the_folder() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        await editor.prompt(await editor.open("/home/me/project"), "folder")
        assert (editor.statuses()[0], editor.statuses()[-1]) == ("pending", "completed")
        assert editor.last_words_of_a_call() == "/home/me/project"

    play(scene)


@pytest.mark.parametrize(
    ("prompt", "stop_reason"),
    [("say hi", "end_turn"), ("long", "max_tokens"), ("refuse", "refusal"), ("loop", "max_turn_requests")],
)
def test_a_run_that_ends_by_itself_says_how(prompt: str, stop_reason: str) -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        assert (await editor.prompt(await editor.open(), prompt)).stop_reason == stop_reason

    play(scene)


def test_a_run_that_fails_is_answered_with_an_internal_error_that_says_why() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        with pytest.raises(acp.RequestError) as failed:
            await editor.prompt(await editor.open(), "fail")
        assert failed.value.code == -32603
        assert "the model is broken" in str(failed.value)

    play(scene)


# -- stopping ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "seen"),
    [("silence", "I begin"), ("nap", "napping"), ("block", "blocking")],
    ids=["stream", "task", "thread"],
)
def test_a_cancel_is_answered_cancelled_after_the_last_update(prompt: str, seen: str) -> None:
    async def scene(editor: Editor, manager: RunManager) -> None:
        session = await editor.open()
        turn = editor.begin(session, prompt)
        await editor.until(editor.has_seen(seen))
        await editor.agent.cancel(session)
        answer = await turn
        assert answer.stop_reason == "cancelled"
        assert editor.nothing_follows_the_answer()
        [record] = await manager.storage.runs.find(session=key_of(session).stored_as)
        assert (record.state, record.outcome) == (RunState.ENDED, "cancelled")
        assert record.reason is not None
        assert record.reason["source"] == "user"
        facts = facts_of(answer)
        assert facts["outcome"] == "stopped"
        assert [each["name"] for each in facts["orphans"]] == (["block"] if prompt == "block" else [])

    play(scene)


@pytest.mark.parametrize("prompt", ["nap", "block"])
def test_a_cut_call_is_shown_as_failed_in_the_words_of_the_conversation(prompt: str) -> None:
    async def scene(editor: Editor, manager: RunManager) -> None:
        session = await editor.open()
        turn = editor.begin(session, prompt)
        await editor.until(lambda: "in_progress" in editor.statuses())
        await editor.agent.cancel(session)
        await turn
        [result] = await results(manager, session)
        assert result.state == "cut"
        assert editor.statuses()[-1] == "failed"
        assert editor.last_words_of_a_call() == result.content

    play(scene)


def test_a_cancel_that_follows_its_prompt_in_the_same_packet_stops_it() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        session = await editor.open()
        turn = editor.begin(session, "silence")
        await asyncio.sleep(0)  # the prompt is written
        await editor.agent.cancel(session)
        assert (await turn).stop_reason == "cancelled"

    play(scene)


def test_a_cancel_of_an_idle_or_unknown_session_changes_nothing() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        session = await editor.open()
        await editor.agent.cancel(session)
        await editor.agent.cancel("acp_unknown")
        assert (await editor.prompt(session, "say one")).stop_reason == "end_turn"
        await editor.agent.cancel(session)
        await editor.agent.cancel(session)
        assert (await editor.prompt(session, "say two")).stop_reason == "end_turn"
        assert editor.text() == "you said oneyou said two"

    play(scene)


def test_a_prompt_stops_the_live_turn_and_runs_after_its_answer() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        session = await editor.open()
        first = editor.begin(session, "silence")
        await editor.until(lambda: "I begin" in editor.text())
        second = editor.begin(session, "say hi")
        assert (await first).stop_reason == "cancelled"
        assert (await second).stop_reason == "end_turn"
        answers = [n for n, frame in enumerate(editor.frames) if "stopReason" in frame.get("result", {})]
        words = [n for n, frame in enumerate(editor.frames) if "said hi" in str(frame)]
        assert answers[0] < words[0] < answers[1]

    play(scene)


def test_a_prompt_may_wait_for_the_live_turn() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        session = await editor.open()
        first = editor.begin(session, "silence")
        await editor.until(lambda: "I begin" in editor.text())
        second, third = editor.begin(session, "say hi"), editor.begin(session, "say ho")
        await asyncio.sleep(0)
        assert not first.done()
        await editor.agent.cancel(session)  # stops what the session does, and what waits there
        assert [(await each).stop_reason for each in (first, second, third)] == ["cancelled"] * 3
        assert (await editor.prompt(session, "say now")).stop_reason == "end_turn"
        assert editor.text() == "I begin and you said now"

    play(scene, if_busy="queue")


def test_a_stop_by_another_than_the_client_is_an_error_that_says_who_it_was() -> None:
    async def scene(editor: Editor, manager: RunManager) -> None:
        session = await editor.open()
        turn = editor.begin(session, "silence")
        await editor.until(lambda: "I begin" in editor.text())
        [managed] = manager.live()
        managed.ask(SafePoint.NOW, Reason("too dear", Source.POLICY))
        with pytest.raises(acp.RequestError) as stopped:
            await turn
        assert stopped.value.code == -32800
        assert "policy" in str(stopped.value)
        assert "too dear" in str(stopped.value)

    play(scene)


def test_a_request_that_is_taken_back_is_a_cancel_and_an_unknown_one_is_ignored() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        session = await editor.open()
        turn = editor.begin(session, "silence")
        await editor.until(lambda: "I begin" in editor.text())
        send = editor.agent._conn.send_notification
        await send("$/cancel_request", {"requestId": 4711})
        await send("$/cancel_request", {"requestId": "none"})
        await send("$/cancel_request", {"requestId": 2})  # initialize, session/new, session/prompt
        assert (await turn).stop_reason == "cancelled"

    play(scene)


# -- questions ---------------------------------------------------------------------------------------------------------


def test_an_approval_that_is_given_lets_the_call_run() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        editor.permit = chosen("allow_once")
        answer = await editor.prompt(await editor.open(), "delete")
        assert answer.stop_reason == "end_turn"
        assert editor.text() == "As you wish. deleted"
        [asked] = editor.asked
        assert asked.tool_call.title == "Delete it?"
        assert [each.kind for each in asked.options] == ["allow_once", "allow_always", "reject_once", "reject_always"]
        shown = {each["toolCallId"] for each in editor.updates if "toolCallId" in each}
        assert shown == {asked.tool_call.tool_call_id}
        assert editor.statuses()[-1] == "completed"

    play(scene)


def test_an_approval_that_is_refused_fails_the_call_and_the_model_is_told() -> None:
    async def scene(editor: Editor, manager: RunManager) -> None:
        editor.permit = chosen("reject_once")
        session = await editor.open()
        assert (await editor.prompt(session, "delete")).stop_reason == "end_turn"
        assert "deleted" not in editor.text()
        assert editor.statuses()[-1] == "failed"
        [result] = await results(manager, session)
        assert "a person said no" in result.content

    play(scene)


@pytest.mark.parametrize(("option", "said"), [("allow_always", "deleted"), ("reject_always", "a person said no")])
def test_always_is_remembered_for_the_session_and_for_no_other(option: str, said: str) -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        editor.permit = chosen(option)
        session = await editor.open()
        for _turn in range(2):
            await editor.prompt(session, "delete")
        assert len(editor.asked) == 1
        assert editor.text().count(said) == 2
        await editor.prompt(await editor.open(), "delete")
        assert len(editor.asked) == 2

    play(scene)


def test_a_permission_request_that_the_client_cancels_stops_the_turn_and_is_no_refusal() -> None:
    async def cancelled() -> schema.DeniedOutcome:
        return schema.DeniedOutcome(outcome="cancelled")

    async def scene(editor: Editor, manager: RunManager) -> None:
        editor.permit = cancelled
        session = await editor.open()
        assert (await editor.prompt(session, "delete")).stop_reason == "cancelled"
        assert editor.statuses()[-1] == "failed"
        [result] = await results(manager, session)
        assert "said no" not in result.content
        [record] = await manager.storage.runs.find(session=key_of(session).stored_as)
        assert (record.state, record.outcome) == (RunState.ENDED, "cancelled")

    play(scene)


def test_a_cancel_takes_the_permission_request_back_and_a_late_choice_is_dropped() -> None:
    async def scene(editor: Editor, manager: RunManager) -> None:
        decided = asyncio.Event()

        async def late() -> schema.AllowedOutcome:
            await decided.wait()
            return schema.AllowedOutcome(outcome="selected", option_id="allow_once")

        editor.permit = late
        session = await editor.open()
        turn = editor.begin(session, "delete")
        await editor.until(lambda: editor.asked)
        await editor.agent.cancel(session)
        assert (await turn).stop_reason == "cancelled"
        [request] = [each for each in editor.frames if each.get("method") == "session/request_permission"]
        [taken_back] = [each for each in editor.frames if each.get("method") == "$/cancel_request"]
        assert taken_back["params"] == {"requestId": request["id"]}
        decided.set()
        editor.permit = never
        assert (await editor.prompt(session, "say hi")).stop_reason == "end_turn"
        [result] = await results(manager, session)
        assert "deleted" not in result.content
        assert "said no" not in result.content

    play(scene)


def test_a_question_with_options_is_a_permission_request_with_these() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        editor.permit = chosen("1")
        await editor.prompt(await editor.open(), "pick")
        assert [each.name for each in editor.asked[0].options] == ["red", "blue"]
        assert editor.text().endswith("they picked blue")

    play(scene)


def test_a_question_in_words_ends_the_turn_and_the_next_prompt_answers_it() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        session = await editor.open()
        answer = await editor.prompt(session, "ask")
        assert answer.stop_reason == "end_turn"
        assert facts_of(answer)["stopReason"] == "interrupted"
        assert "Which colour?" in editor.text()
        assert (await editor.prompt(session, "green")).stop_reason == "end_turn"
        assert editor.text().endswith("they said green")
        assert editor.statuses()[-1] == "completed"

    play(scene)


def test_a_cancel_of_a_question_in_words_clears_the_pause() -> None:
    async def scene(editor: Editor, manager: RunManager) -> None:
        session = await editor.open()
        await editor.prompt(session, "ask")
        await editor.agent.cancel(session)
        assert (await editor.prompt(session, "say green")).stop_reason == "end_turn"
        assert editor.text().endswith("you said green")
        assert editor.statuses()[-1] == "failed"
        records = await manager.storage.runs.find(session=key_of(session).stored_as)
        assert [each.outcome for each in records] == ["end_turn", "cancelled"]

    play(scene)


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_load_replays_the_conversation_with_cut_words_and_cut_calls_as_they_were() -> None:
    storage = MemoryStorage()

    async def before(editor: Editor, _: RunManager) -> None:
        session = await editor.open()
        await editor.prompt(session, "think hard")
        for prompt, seen in (("silence please", "I begin"), ("nap", "napping")):
            turn = editor.begin(session, prompt)
            await editor.until(editor.has_seen(seen))
            await editor.agent.cancel(session)
            await turn
        live = (editor.text(), editor.text("agent_thought_chunk"), editor.last_words_of_a_call())
        editor.frames.clear()
        await editor.agent.load_session("/project", session, mcp_servers=[])
        assert (editor.text(), editor.text("agent_thought_chunk"), editor.last_words_of_a_call()) == live
        assert editor.text("user_message_chunk") == "think hardsilence pleasenap"
        assert editor.statuses() == ["pending", "failed"]
        cut = [each for each in editor.updates if each.get("_meta") == {"safepoint": {"incomplete": True}}]
        assert [each["content"]["text"] for each in cut] == ["I begin and "]
        assert editor.nothing_follows_the_answer()

    play(before, storage=storage)


def test_sessions_are_listed_newest_first_with_folder_and_title_and_resumed_after_a_close() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        one, two = await editor.open("/one"), await editor.open("/two")
        await editor.prompt(one, "say  something\nlong")
        found = (await editor.agent.list_sessions()).sessions
        assert [(each.session_id, each.cwd, each.title) for each in found] == [
            (one, "/one", "say something long"),
            (two, "/two", None),
        ]
        assert [each.session_id for each in (await editor.agent.list_sessions(cwd="/two")).sessions] == [two]
        await editor.agent.close_session(one)
        with pytest.raises(acp.RequestError):
            await editor.prompt(one, "say hi")
        before = len(editor.updates)
        await editor.agent.resume_session(one, "/one", mcp_servers=[])
        assert len(editor.updates) == before
        assert (await editor.prompt(one, "say hi")).stop_reason == "end_turn"

    play(scene)


def test_close_stops_the_live_turn() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        session = await editor.open()
        turn = editor.begin(session, "silence")
        await editor.until(lambda: "I begin" in editor.text())
        await editor.agent.close_session(session)
        assert (await turn).stop_reason == "cancelled"

    play(scene)


def test_an_unknown_session_is_refused_by_its_name() -> None:
    async def scene(editor: Editor, _: RunManager) -> None:
        await editor.agent.initialize(1)
        for id in ("acp_unknown", "../etc", ""):
            with pytest.raises(acp.RequestError) as refused:
                await editor.agent.load_session("/project", id, mcp_servers=[])
            assert (refused.value.code, repr(id) in str(refused.value)) == (-32602, True)
            with pytest.raises(acp.RequestError) as refused:
                await editor.prompt(id, "say hi")
            assert (refused.value.code, repr(id) in str(refused.value)) == (-32602, True)

    play(scene)


def test_a_client_that_goes_away_stops_its_runs_and_they_are_recorded() -> None:
    storage = MemoryStorage()

    async def main() -> None:
        async with in_process(agent, storage=storage) as (editor, manager):
            session = await editor.open()
            turn = editor.begin(session, "nap")
            await editor.until(editor.has_seen("napping"))
        assert manager.live() == []
        turn.cancel()
        [record] = await manager.storage.runs.find(session=key_of(session).stored_as)
        assert (record.state, record.outcome) == (RunState.ENDED, "cancelled")
        assert record.reason is not None
        assert record.reason["source"] == "disconnect"

    asyncio.run(main())
