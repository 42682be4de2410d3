"""Whom a request reaches: a run's own work always, its sub-agents by recursion, and any part of the tree by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from safepoint import Agent, Hooks, Run, SafePoint, ToolContext, tool
from safepoint._core.endings import Touched
from safepoint._core.tree import Node
from safepoint.agent.events import RunEnded, RunStarted
from safepoint.testing import ScriptedModel, call, say, stall
from tests.agent.oracle import check_left_behind, results, states
from tests.agent.workshop import Gate
from tests.virtual import rounds, virtual

AFTER_TOOL, AFTER_TOOLS, AFTER_MODEL = SafePoint.AFTER_TOOL, SafePoint.AFTER_TOOLS, SafePoint.AFTER_MODEL


class Family:
    """Three agents deep: `parent` calls `child`, `child` calls `grandchild`, and each has a gate of its own to pass.

    Each model asks for what is below it and, in its second reply, for its own gate; in its third it answers.
    """

    def __init__(self) -> None:
        self.gates = {name: Gate(name, "pure") for name in ("deep", "middle", "top")}
        self.models = {
            "grandchild": ScriptedModel(call("deep"), say("grandchild is done")),
            "child": ScriptedModel(call("grandchild", input="go"), call("middle"), say("child is done")),
            "parent": ScriptedModel(call("child", input="go"), call("top"), say("parent is done")),
        }
        grandchild = Agent("grandchild", model=self.models["grandchild"], tools=[self.gates["deep"].tool])
        child = Agent("child", model=self.models["child"], tools=[grandchild.as_tool(), self.gates["middle"].tool])
        self.agent = Agent("parent", model=self.models["parent"], tools=[child.as_tool(), self.gates["top"].tool])

    async def reach(self) -> None:
        await self.gates["deep"].started.wait()

    def let_go(self) -> None:
        for gate in self.gates.values():
            gate.gate.set()

    def calls(self) -> dict[str, int]:
        return {name: model.calls for name, model in self.models.items()}


def endings(run: Run[None]) -> dict[str, str]:
    """How each run of the tree ended, by the name of its agent."""
    events = run.kept_events(nested=True)
    names = {event.run_id: event.agent for event in events if isinstance(event, RunStarted)}
    return {names[event.run_id]: event.stop_reason for event in events if isinstance(event, RunEnded)}


# -- three deep --------------------------------------------------------------------------------------------------------

ALONE = {
    # asked of the parent alone     how often each model was called: grandchild, child, parent
    AFTER_TOOLS: (2, 3, 1),
    AFTER_TOOL: (2, 3, 1),
    AFTER_MODEL: (2, 3, 2),
}


@virtual
@pytest.mark.parametrize("at", ALONE, ids=repr)
async def test_without_recursion_the_request_is_judged_at_the_runs_own_safe_points_and_children_run_on(
    at: SafePoint,
) -> None:
    family = Family()
    async with family.agent.start("go") as run:
        await family.reach()
        receipt = run.cancel(at)
        family.let_go()
    assert tuple(family.calls().values()) == ALONE[at]
    assert endings(run) == {"grandchild": "end_turn", "child": "end_turn", "parent": "cancelled"}
    assert receipt.outcome == "stopped"
    assert states(run)["child"] == "finished"
    check_left_behind(run)


@virtual
@pytest.mark.parametrize("at", [AFTER_TOOLS, AFTER_TOOL], ids=repr)
async def test_with_recursion_the_innermost_stops_first_and_then_nobody_starts_anything(at: SafePoint) -> None:
    family = Family()
    async with family.agent.start("go") as run:
        await family.reach()
        run.cancel(at, recursive=True, reason="lunch")
        family.let_go()
    assert tuple(family.calls().values()) == (1, 1, 1)
    assert endings(run) == {"grandchild": "cancelled", "child": "cancelled", "parent": "cancelled"}
    assert states(run) == {"child": "stopped"}
    assert [result.content for result in results(run.result.messages)] == [
        'This sub-agent was stopped before it was done; some of its work may be done. Reason: "lunch".'
    ]
    check_left_behind(run)


@virtual
@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.FORCE], ids=repr)
async def test_now_ends_everything_below_whatever_the_depth(at: SafePoint) -> None:
    family = Family()
    async with family.agent.start("go") as run:
        await family.reach()
        receipt = run.cancel(at)
        assert await receipt.wait() == "stopped"
    assert family.gates["deep"].cancels == 1
    assert tuple(family.calls().values()) == (1, 1, 1)
    assert endings(run) == {"grandchild": "cancelled", "child": "cancelled", "parent": "cancelled"}
    assert states(run) == {"child": "stopped"}
    check_left_behind(run)


@virtual
async def test_a_sub_agents_run_can_be_waited_for_like_any_other() -> None:
    begun: list[Run[Any, Any]] = []  # Any: as hooks are given it

    class Watched(Hooks):
        def before_run(self, run: Run[Any, Any]) -> None:  # Any: as above
            begun.append(run)

    gate = Gate("gate")
    inner = Agent("inner", model=ScriptedModel(call("gate"), say("inside")), tools=[gate.tool], hooks=[Watched()])
    outer = Agent("outer", model=ScriptedModel(call("inner", input="go"), say("done")), tools=[inner.as_tool()])
    async with outer.start("go"):
        await gate.started.wait()
        waiting = asyncio.ensure_future(begun[0].wait())
        await rounds(1)
        assert not waiting.done()
        gate.gate.set()
        assert (await waiting).text == "inside"
    assert (await begun[0].wait()).text == "inside"


@virtual
async def test_recursion_that_is_turned_on_late_reaches_the_children_that_run_now() -> None:
    family = Family()
    async with family.agent.start("go") as run:
        await family.reach()
        run.cancel(AFTER_TOOLS)
        await rounds(3)
        run.cancel(AFTER_TOOLS, recursive=True)
        family.let_go()
    assert tuple(family.calls().values()) == (1, 1, 1)
    check_left_behind(run)


@virtual
async def test_one_deadline_covers_all() -> None:
    family = Family()
    async with family.agent.start("go") as run:
        await family.reach()
        receipt = run.cancel(AFTER_TOOLS, recursive=True, within=3)
        assert await receipt.wait() == "escalated"
    assert endings(run) == {"grandchild": "cancelled", "child": "cancelled", "parent": "cancelled"}
    assert family.gates["deep"].cancels == 1
    assert run.result.cancellation is not None
    assert run.result.cancellation.stopped_at - run.result.cancellation.asked_at == 3.0
    check_left_behind(run)


@virtual
async def test_an_event_of_a_sub_agent_carries_its_own_run_and_path() -> None:
    family = Family()
    family.let_go()
    async with family.agent.start("go") as run:
        await run.wait()
    paths = {event.path for event in run.kept_events(nested=True) if isinstance(event, RunStarted)}
    (grandchild,) = (path for path in paths if path.endswith("/grandchild"))
    assert grandchild.startswith("parent/child:")
    assert grandchild.count("/") == 4
    assert len({event.run_id for event in run.kept_events(nested=True)}) == 3
    check_left_behind(run)


# -- side by side ------------------------------------------------------------------------------------------------------


class Siblings:
    """A parent with two sub-agents at once, `fast` and `slow`, and a queue of one more call behind them."""

    def __init__(self, *, limit: int | None) -> None:
        self.gates = {name: Gate(name, "pure") for name in ("fast_gate", "slow_gate", "more", "queued")}
        self.fast_model = ScriptedModel(call("fast_gate"), call("more"), say("fast is done"))
        self.slow_model = ScriptedModel([call("slow_gate"), call("more")], say("slow is done"))
        fast = Agent("fast", model=self.fast_model, tools=[self.gates["fast_gate"].tool, self.gates["more"].tool])
        slow = Agent(
            "slow",
            model=self.slow_model,
            tools=[self.gates["slow_gate"].tool, self.gates["more"].tool],
            max_parallel_tools=1,
        )
        self.agent = Agent(
            "parent",
            model=ScriptedModel([call("fast", input="go"), call("slow", input="go"), call("queued")], say("done")),
            tools=[fast.as_tool(), slow.as_tool(), self.gates["queued"].tool],
            max_parallel_tools=limit,
        )


@virtual
async def test_once_one_stops_no_new_work_starts_anywhere_and_the_others_run_to_their_next_safe_point() -> None:
    team = Siblings(limit=2)
    async with team.agent.start("go") as run:
        await team.gates["fast_gate"].started.wait()
        await team.gates["slow_gate"].started.wait()
        run.cancel(AFTER_TOOLS, recursive=True)
        team.gates["fast_gate"].gate.set()
        while "fast" not in endings(run):
            await rounds(1)
        assert endings(run) == {"fast": "cancelled"}
        for gate in team.gates.values():
            gate.gate.set()
    assert endings(run) == {"fast": "cancelled", "slow": "cancelled", "parent": "cancelled"}
    assert team.gates["more"].runs == 0, (
        "the slow one's own queue is not started either, although AFTER_TOOLS was asked"
    )
    assert team.gates["queued"].runs == 0
    assert team.slow_model.calls == 1
    assert states(run) == {"fast": "stopped", "slow": "stopped", "queued": "not_started"}
    check_left_behind(run)


# -- one node by itself ------------------------------------------------------------------------------------------------


def node(run: Run[None], name: str, kind: str | None = None) -> Node:
    return next(each for each in run.tree.walk() if each.name == name and kind in (None, each.kind))


def gates(*names: str) -> tuple[Agent[None], dict[str, Gate]]:
    found = {name: Gate(name) for name in names}
    model = ScriptedModel([call(name) for name in names], say("done"))
    return Agent("parent", model=model, tools=[gate.tool for gate in found.values()]), found


@virtual
async def test_the_live_nodes_are_listed_parents_first() -> None:
    family = Family()
    async with family.agent.start("go") as run:
        await family.reach()
        walked = list(run.tree.walk())
        family.let_go()
        await run.wait()
        assert list(run.tree.walk()) == []
    assert [(each.kind, each.name) for each in walked] == [
        ("run", "parent"),
        ("tool_call", "child"),
        ("run", "child"),
        ("tool_call", "grandchild"),
        ("run", "grandchild"),
        ("tool_call", "deep"),
    ]


@virtual
async def test_one_tool_call_is_stopped_alone_and_the_model_is_told_so() -> None:
    agent, found = gates("a", "b")
    async with agent.start("go") as run:
        await found["b"].started.wait()
        receipt = node(run, "a").cancel(reason="not this one")
        assert await receipt.wait() == "stopped"
        assert receipt.touched == (Touched("parent/a:call_1_1", "a", "cut"),)
        assert not run.ended, "a node's receipt returns when that node has ended"
        found["b"].gate.set()
    assert (run.result.stop_reason, run.result.text) == ("end_turn", "done")
    assert states(run) == {"a": "cut", "b": "finished"}
    assert [result.content for result in results(run.result.messages)] == [
        'This call was cut while running, outcome unknown. Reason: "not this one".',
        "b is done",
    ]
    check_left_behind(run)


@virtual
@pytest.mark.parametrize("kind", ["tool_call", "run"])
async def test_one_sub_agent_is_stopped_alone_and_its_parent_goes_on(kind: str) -> None:
    family = Family()
    async with family.agent.start("go") as run:
        await family.reach()
        receipt = node(run, "child", kind).cancel(reason="too slow")
        assert await receipt.wait() == "stopped"
        family.gates["top"].gate.set()
    assert endings(run) == {"grandchild": "cancelled", "child": "cancelled", "parent": "end_turn"}
    assert states(run) == {"child": "stopped", "top": "finished"}
    assert "too slow" in results(run.result.messages)[0].content
    check_left_behind(run)


@virtual
async def test_a_safe_point_ask_of_a_sub_agents_call_is_judged_inside() -> None:
    family = Family()
    async with family.agent.start("go") as run:
        await family.reach()
        receipt = node(run, "child", "tool_call").cancel(AFTER_TOOLS)
        family.let_go()
        assert await receipt.wait() == "stopped"
    assert endings(run) == {"grandchild": "end_turn", "child": "cancelled", "parent": "end_turn"}
    check_left_behind(run)


@virtual
async def test_a_node_that_ended_by_itself_finished_first() -> None:
    agent, found = gates("a", "b")
    async with agent.start("go") as run:
        await found["b"].started.wait()
        late = node(run, "a")
        found["a"].gate.set()
        while not late.ended.is_set:
            await rounds(1)
        receipt = late.cancel()
        assert not receipt.accepted
        assert await receipt.wait() == "finished_first"
        found["b"].gate.set()
    check_left_behind(run)


@virtual
async def test_all_but_one_are_stopped() -> None:
    agent, found = gates("a", "b", "c")
    async with agent.start("go") as run:
        await found["c"].started.wait()
        receipts = run.tree.cancel_all_but(node(run, "b"), reason="b has it")
        assert [await receipt.wait() for receipt in receipts] == ["stopped", "stopped"]
        found["b"].gate.set()
    assert states(run) == {"a": "cut", "b": "finished", "c": "cut"}
    assert run.result.stop_reason == "end_turn"
    check_left_behind(run)


@virtual
async def test_all_but_one_deep_inside_keeps_what_it_is_part_of() -> None:
    family = Family()
    async with family.agent.start("go") as run:
        await family.reach()
        assert run.tree.cancel_all_but(node(run, "deep")) == []
        assert run.tree.cancel_all_but(node(run, "parent")) == []
        family.let_go()
    assert run.result.stop_reason == "end_turn"


@virtual
async def test_all_but_one_that_has_just_ended_stops_the_others() -> None:
    agent, found = gates("a", "b")
    async with agent.start("go") as run:
        await found["b"].started.wait()
        keep = node(run, "a")
        found["a"].gate.set()
        while not keep.ended.is_set:
            await rounds(1)
        (receipt,) = run.tree.cancel_all_but(keep)
        assert await receipt.wait() == "stopped"
    assert states(run) == {"a": "finished", "b": "cut"}
    check_left_behind(run)


@virtual
async def test_all_but_a_node_of_another_run_is_refused() -> None:
    agent, found = gates("a")
    async with agent.start("go") as run, agent.start("go") as other:
        await found["a"].started.wait()
        with pytest.raises(ValueError, match=r"is not a node of this run: take one from run.tree.walk\(\)"):
            run.tree.cancel_all_but(other.node)
        run.cancel()
        other.cancel()


# -- runs inside hand-written tools ------------------------------------------------------------------------------------


class Joined:
    """A hand-written tool that runs an agent of its own inside itself."""

    def __init__(self, *, detached: bool = False) -> None:
        self.gate = Gate("gate", "pure")
        self.model = ScriptedModel(call("gate"), say("inner is done"))
        self.inner = Agent("inner", model=self.model, tools=[self.gate.tool])

        @tool
        async def delegate() -> str:
            """Run another agent."""
            result = await (self.inner.run("go", parent=None) if detached else self.inner.run("go"))
            return f"{result.stop_reason}: {result.text}"

        self.outer = Agent("outer", model=ScriptedModel(call("delegate"), say("outer is done")), tools=[delegate])


@virtual
async def test_an_agent_started_inside_a_hand_written_tool_joins_the_tree() -> None:
    joined = Joined()
    async with joined.outer.start("go") as run:
        await joined.gate.started.wait()
        assert [each.name for each in run.tree.walk()] == ["outer", "delegate", "inner", "gate"]
        joined.gate.gate.set()
    assert endings(run) == {"inner": "end_turn", "outer": "end_turn"}
    check_left_behind(run)


@virtual
@pytest.mark.parametrize("recursive", [False, True])
async def test_a_safe_point_ask_does_not_reach_it(recursive: bool) -> None:
    joined = Joined()
    async with joined.outer.start("go") as run:
        await joined.gate.started.wait()
        run.cancel(SafePoint.ANY, recursive=recursive)
        joined.gate.gate.set()
    assert joined.model.calls == 2
    assert endings(run) == {"inner": "end_turn", "outer": "cancelled"}
    assert states(run) == {"delegate": "finished"}
    check_left_behind(run)


@virtual
async def test_now_reaches_it_by_cancelling_the_tool() -> None:
    joined = Joined()
    async with joined.outer.start("go") as run:
        await joined.gate.started.wait()
        run.cancel()
    assert joined.gate.cancels == 1
    assert endings(run) == {"inner": "cancelled", "outer": "cancelled"}
    assert states(run) == {"delegate": "cut"}
    check_left_behind(run)


@virtual
async def test_a_detached_run_is_no_part_of_the_tree() -> None:
    joined = Joined(detached=True)
    async with joined.outer.start("go") as run:
        await joined.gate.started.wait()
        assert [each.name for each in run.tree.walk()] == ["outer", "delegate"]
        joined.gate.gate.set()
    assert endings(run) == {"outer": "end_turn"}
    check_left_behind(run)


@virtual
async def test_a_detached_run_outlives_the_tool_that_started_it() -> None:
    gate = Gate("gate", "pure")
    inner = Agent("inner", model=ScriptedModel(call("gate"), say("inner is done")), tools=[gate.tool])
    started: list[asyncio.Task[object]] = []

    @tool
    async def launch() -> str:
        """Start another agent and do not wait."""
        started.append(asyncio.create_task(inner.run("go", parent=None)))
        await gate.started.wait()
        return "launched"

    outer = Agent("outer", model=ScriptedModel(call("launch"), say("outer is done")), tools=[launch])
    assert (await outer.run("go")).text == "outer is done"
    gate.gate.set()
    result = await started[0]
    assert "inner is done" in str(result)


@virtual
async def test_a_joined_run_that_its_tool_leaves_behind_is_ended_with_the_tool() -> None:
    gate = Gate("gate", "pure")
    inner = Agent("inner", model=ScriptedModel(call("gate")), tools=[gate.tool])
    left: list[Run[None]] = []
    tasks: list[asyncio.Task[object]] = []

    @tool
    async def careless() -> str:
        """Start another agent and do not wait."""
        run = inner.start("go")
        left.append(run)
        tasks.append(asyncio.create_task(enter(run)))
        await gate.started.wait()
        return "left"

    async def enter(run: Run[None]) -> None:
        async with run:
            pass

    async with Agent("outer", model=ScriptedModel(call("careless"), say("done")), tools=[careless]).start("go") as run:
        pass
    assert run.result.text == "done"
    assert left[0].result.stop_reason == "cancelled"
    assert left[0].result.cancellation is not None
    assert left[0].result.cancellation.reason.text == "the tool that started it has ended"
    await asyncio.wait(tasks)
    check_left_behind(run)


# -- no new children while stopping ------------------------------------------------------------------------------------


async def stubborn_start(inner: Agent[None], seen: list[str], started: asyncio.Event) -> str:
    started.set()
    try:
        await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        result = await inner.run("go")
        seen.append(result.stop_reason)
    return "started one anyway"


@virtual
@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.FORCE], ids=repr)
async def test_a_child_that_is_started_after_now_makes_no_model_call(at: SafePoint) -> None:
    model, seen, started = ScriptedModel(stall()), list[str](), asyncio.Event()
    inner = Agent("inner", model=model)

    @tool
    async def stubborn() -> str:
        """Start another agent when cancelled."""
        return await stubborn_start(inner, seen, started)

    async with Agent("outer", model=ScriptedModel(call("stubborn")), tools=[stubborn]).start("go") as run:
        await started.wait()
        run.cancel(at)
    assert model.calls == 0
    await rounds(20)
    assert seen == ["cancelled"], "the child ends so soon that FORCE finds the tool in its last turns"
    check_left_behind(run)


@virtual
async def test_a_tool_that_cancels_its_own_run_keeps_its_result_if_it_returns_at_once() -> None:
    ran: list[str] = []

    @tool
    async def stop(ctx: ToolContext) -> str:
        """Cancel the run that this call is part of."""
        assert ctx.run.cancel(reason="I am done").accepted
        return "asked"

    @tool
    async def other() -> str:
        """Say that it ran."""
        ran.append("other")
        return "ran"

    model = ScriptedModel([call("stop"), call("other")], say("never"))
    async with Agent("a", model=model, tools=[stop, other]).start("go") as run:
        pass
    assert model.calls == 1
    assert states(run) == {"stop": "finished", "other": "not_started"}
    assert ran == [], "after NOW was recorded no tool call starts"
    assert run.result.stop_reason == "cancelled"
    check_left_behind(run)
