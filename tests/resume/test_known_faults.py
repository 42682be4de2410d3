"""Faults of other runtimes, one test each, showing what happens here instead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from safepoint import (
    Agent,
    BaseAgent,
    Budget,
    CancelToken,
    Checkpoint,
    Handoff,
    Loop,
    Parallel,
    SafePoint,
    Sequential,
    ToolContext,
    check_history,
    tool,
)
from safepoint.errors import TokenCancelled
from safepoint.history.parts import Message, ToolResult
from safepoint.sessions import MemoryStore, Session
from safepoint.sessions.store import Change
from safepoint.testing import ScriptedModel, call, run_virtual, say, stall

A_SECOND = 1.0  # on the virtual clock: when everything that can happen has happened


def results_of(messages: Sequence[Message]) -> list[ToolResult]:
    return [part for message in messages for part in message.parts if isinstance(part, ToolResult)]


def test_strands_a_cancel_that_comes_too_late_does_not_touch_the_next_run() -> None:
    async def main() -> None:
        agent = Agent("chat", model=ScriptedModel(say("one"), say("two")))
        await agent.run("first")
        receipt = agent.cancel(reason="a moment too late")
        assert not receipt.accepted
        assert await receipt.wait() == "finished_first"
        assert (await agent.run("second")).text == "two"

    run_virtual(main)


def test_strands_a_cancelled_task_leaves_no_call_unanswered_and_no_finished_result_lost() -> None:
    inside = asyncio.Event()

    @tool
    async def quick() -> str:
        """Return at once."""
        return "kept"

    @tool
    async def slow() -> str:
        """Never return."""
        inside.set()
        await asyncio.get_running_loop().create_future()
        return "never"

    async def main() -> None:
        store = MemoryStore()
        session = await Session.create(store, "s")
        agent = Agent("worker", model=ScriptedModel([call("quick"), call("slow")], say("go on")), tools=[quick, slow])
        task = asyncio.ensure_future(agent.run("work", session=session))
        await inside.wait()
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        loaded = await Session.load(store, "s")
        check_history(loaded.messages)
        assert [(part.name, part.state) for part in results_of(loaded.messages)] == [
            ("quick", "finished"),
            ("slow", "cut"),
        ]
        assert results_of(loaded.messages)[0].content == "kept"
        assert (await agent.run("and now", session=session)).text == "go on"

    run_virtual(main)


def test_strands_a_tool_that_raises_cancelled_error_by_itself_fails_and_the_run_goes_on() -> None:
    @tool
    async def gives_up() -> str:
        """Raise what nobody asked for."""
        raise asyncio.CancelledError

    async def main() -> None:
        agent = Agent("worker", model=ScriptedModel(call("gives_up"), say("fine")), tools=[gives_up])
        result = await agent.run("work")
        assert (result.stop_reason, result.text) == ("end_turn", "fine")
        assert [part.state for part in results_of(result.messages)] == ["failed"]

    run_virtual(main)


def test_strands_a_resume_that_is_cancelled_never_gives_one_call_two_results() -> None:
    inside = asyncio.Event()
    done: list[str] = []

    @tool
    async def pay(context: ToolContext) -> str:
        """Ask, then pay."""
        answer: str = await context.interrupt("may I?")
        if not done:
            done.append("tried")
            inside.set()
            await asyncio.get_running_loop().create_future()
        return answer

    async def main() -> None:
        agent = Agent("payer", model=ScriptedModel(call("pay"), say("paid")), tools=[pay])
        paused = await agent.run("pay it")
        assert paused.stop_reason == "interrupted"
        assert paused.checkpoint is not None
        answers = {paused.questions[0].id: "yes"}
        task = asyncio.ensure_future(agent.resume(paused.checkpoint, answers=answers))
        await inside.wait()
        agent.cancel(reason="changed my mind")
        stopped = await task
        check_history(stopped.messages)
        assert len(results_of(stopped.messages)) == 1
        assert stopped.checkpoint is not None
        final = await agent.resume(stopped.checkpoint, on_unknown="rerun")
        check_history(final.messages)
        assert [part.content for part in results_of(final.messages)] == ["yes"]
        assert final.text == "paid"

    run_virtual(main)


def test_eino_w1_a_receipt_is_settled_only_when_the_end_is_durable() -> None:
    written: list[str] = []
    reached = asyncio.Event()

    class SlowStore(MemoryStore):
        async def append(self, session_id: str, epoch: int, changes: Sequence[Change]) -> None:
            for _ in range(20):
                await asyncio.sleep(0)
            await super().append(session_id, epoch, changes)
            written.extend(type(change).__name__ for change in changes)

    async def main() -> None:
        session = await Session.create(SlowStore(), "s")
        agent = Agent("teller", model=ScriptedModel([say("Once"), stall(on_reached=reached.set)]))
        async with agent.start("tell", session=session) as run:
            await reached.wait()
            assert await run.cancel().wait() == "stopped"
            assert "Ended" in written
            assert run.result.save_error is None

    run_virtual(main)


def test_eino_w2_now_stops_the_last_child_of_a_sequence_a_parallel_and_a_transfer() -> None:
    def silent(name: str) -> Agent:
        return Agent(name, model=ScriptedModel(stall()))

    def shapes() -> list[BaseAgent[None, object]]:
        triage = Agent("triage", model=ScriptedModel(call("transfer_to_last")))
        first = Agent("first", model=ScriptedModel(say("found")))
        return [
            Sequential("sequence", first).then(silent("last")),
            Parallel("parallel", [silent("one"), silent("two")]),
            Handoff("transfer", triage, to={triage: [silent("last")]}),
        ]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for shape in shapes():
            async with shape.start("go") as run:
                await asyncio.sleep(A_SECOND)
                asked = loop.time()
                assert await run.cancel().wait() == "stopped"
                assert loop.time() == asked, f"{shape.name} waited for its child"

    run_virtual(main)


def test_eino_w5_a_child_that_was_stopped_inside_goes_on_inside_and_does_not_start_again() -> None:
    async def main() -> None:
        log: list[str] = []

        @tool
        async def post() -> str:
            """Post it."""
            log.append("posted")
            return "posted"

        def child() -> Agent:
            model = ScriptedModel(call("post"), stall(), say("done"), say("too often"))
            return Agent("child", model=model, tools=[post])

        roots: list[BaseAgent[None, str]] = [Sequential("root", child()), Loop("root", child(), max_rounds=1)]
        for root in roots:
            log.clear()
            async with root.start("go") as run:
                await asyncio.sleep(A_SECOND)
                run.cancel(recursive=True)
            assert run.result.checkpoint is not None
            async with root.start(checkpoint=Checkpoint.from_bytes(run.result.checkpoint.to_bytes())) as resumed:
                pass
            assert resumed.result.children[0].result.text == "done"
            assert log == ["posted"]

    run_virtual(main)


def test_eino_w6_a_parallel_that_was_cancelled_before_any_branch_began_can_be_continued() -> None:
    async def main() -> None:
        branches = [Agent(name, model=ScriptedModel(say(name))) for name in ("one", "two")]
        root = Parallel("root", branches)
        run = root.start("go")
        run.cancel()
        async with run:
            pass
        assert [str(entry.state) for entry in run.result.ledger] == ["not_started", "not_started"]
        assert run.result.checkpoint is not None
        result = await root.resume(Checkpoint.from_bytes(run.result.checkpoint.to_bytes()))
        assert result.output == {"one": "one", "two": "two"}

    run_virtual(main)


def test_eino_w7_a_run_that_was_cancelled_before_it_began_can_be_continued() -> None:
    async def main() -> None:
        model = ScriptedModel(say("hello"))
        agent = Agent("greeter", model=model)
        agent.cancel(reason="not yet")
        stopped = await agent.run("hi")
        assert (stopped.stop_reason, model.calls) == ("cancelled", 0)
        assert stopped.messages[0].text == "hi"
        assert stopped.checkpoint is not None
        assert (await agent.resume(stopped.checkpoint)).text == "hello"

    run_virtual(main)


def test_eino_w8_a_finished_tool_of_a_cut_batch_does_not_run_again() -> None:
    log: list[str] = []
    inside = asyncio.Event()

    @tool
    async def finished() -> str:
        """Be quick."""
        log.append("finished")
        return "ok"

    @tool(effect="idempotent")
    async def hangs_once() -> str:
        """Hang the first time."""
        log.append("hangs_once")
        if log.count("hangs_once") == 1:
            inside.set()
            await asyncio.get_running_loop().create_future()
        return "ok"

    async def main() -> None:
        model = ScriptedModel([call("finished"), call("hangs_once")], say("done"))
        agent = Agent("worker", model=model, tools=[finished, hangs_once])
        async with agent.start("work") as run:
            await inside.wait()
            run.cancel()
        assert run.result.checkpoint is not None
        result = await agent.resume(run.result.checkpoint)
        assert result.text == "done"
        assert log == ["finished", "hangs_once", "hangs_once"]

    run_virtual(main)


def test_eino_w12_a_model_call_that_is_made_again_is_not_charged_twice() -> None:
    reached = asyncio.Event()

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        return "seen"

    async def main() -> None:
        model = ScriptedModel(call("look"), stall(on_reached=reached.set), call("look"), say("done"))
        agent = Agent("worker", model=model, tools=[look], budget=Budget(steps=3))
        async with agent.start("work") as run:
            await reached.wait()
            run.cancel()
        assert run.result.checkpoint is not None
        assert run.result.checkpoint.step == 1
        result = await agent.resume(run.result.checkpoint)
        assert (result.stop_reason, result.text) == ("end_turn", "done")

    run_virtual(main)


def test_eino_w13_a_cancelled_token_refuses_a_second_run_loudly() -> None:
    async def main() -> None:
        token = CancelToken()
        agent = Agent("chat", model=ScriptedModel(stall(), say("never")))
        async with agent.start("first", token=token) as run:
            token.cancel(SafePoint.NOW, reason="enough")
        assert run.result.stop_reason == "cancelled"
        with pytest.raises(TokenCancelled, match="enough"):
            await agent.run("second", token=token)

    run_virtual(main)


def test_eino_w14_a_cancelled_agent_hands_nothing_over() -> None:
    async def main() -> None:
        target = ScriptedModel(say("never"))
        triage = Agent("triage", model=ScriptedModel([call("transfer_to_last"), stall()]))
        desk = Handoff("desk", triage, to={triage: [Agent("last", model=target)]})
        async with desk.start("go") as run:
            await asyncio.sleep(A_SECOND)
            run.cancel()
        assert run.result.stop_reason == "cancelled"
        assert target.calls == 0
        assert [str(entry.state) for entry in run.result.ledger] == ["stopped"]

    run_virtual(main)
