"""Bad input: every refusal comes where the mistake was made, names the value, and says what to write instead."""

from __future__ import annotations

import asyncio
import gc
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from safepoint import Agent, CancelToken, Hooks, Ladder, ModelSettings, Run, SafePoint, ToolContext, tool
from safepoint.errors import CheckpointError, HistoryError, NotEnded, ToolDefinitionError, UsageError
from safepoint.history.parts import File, Image, Message, Text
from safepoint.sessions import MemoryStore, Session
from safepoint.testing import ScriptedModel, call, fail, say
from safepoint.tools import mcp_tools
from tests.virtual import virtual


@tool
async def echo(text: str) -> str:
    """Say the same."""
    return text


@tool(grace=5)
async def graceful() -> None:
    """Take its time."""


async def plain() -> None:
    """Do nothing."""


def agent(**options: Any) -> Agent[None]:  # Any: right and wrong ones
    everything: dict[str, Any] = dict(options)  # Any: as above
    everything.setdefault("name", "a")
    everything.setdefault("model", ScriptedModel(say("hi")))
    return Agent(**everything)


def untyped(value: object) -> Any:  # Any: what a caller without a type checker passes
    return value


def refused(make: Callable[[], object], *words: str) -> None:
    """A ValueError that has all these words in it."""
    with pytest.raises(ValueError, match=r".") as caught:
        make()
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in {str(caught.value)!r}"


def test_another_event_loop_than_asyncios_is_refused_with_the_right_one() -> None:
    """Nobody runs these coroutines but this function, as trio would."""
    with pytest.raises(UsageError, match=r"needs asyncio's event loop: start it inside asyncio\.run\(…\)"):
        agent().run("hi").send(None)
    with pytest.raises(UsageError, match="not trio"):
        agent().start("hi").__aenter__().send(None)


# -- an agent ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "   ", None, 7])
def test_an_agent_needs_a_name(name: object) -> None:
    refused(lambda: agent(name=name), f"Agent({name!r})", "an agent needs a name, as in Agent('writer', model=…)")


@pytest.mark.parametrize("model", [None, 4, object(), ScriptedModel])
def test_a_model_is_something_that_streams(model: object) -> None:
    refused(lambda: agent(model=model), f"model={model!r}", "stream(request)")
    refused(lambda: agent(fallback=[model]), f"{model!r}", "stream(request)")


@pytest.mark.parametrize("bad", [lambda: 1, "echo", None])
def test_a_tool_is_made_with_the_decorator(bad: object) -> None:
    refused(lambda: agent(tools=[bad]), repr(bad), "is not a tool: write @tool above the function, or agent.as_tool()")


def test_a_list_among_the_tools_and_a_connection_that_was_not_opened_are_refused_with_the_right_form() -> None:
    refused(lambda: agent(tools=[[echo]]), "is not a tool: write a star before a list of tools")
    refused(lambda: agent(tools=[mcp_tools(["server"])]), "is not a tool: write `async with … as tools:` around it")


@pytest.mark.parametrize(("option", "value"), [("tools", echo), ("hooks", Hooks()), ("fallback", ScriptedModel())])
def test_what_is_a_list_is_written_as_a_list(option: str, value: object) -> None:
    refused(lambda: agent(**{option: value}), f"{option}={value!r}", f"write {option}=[…]")


def test_two_tools_do_not_share_a_name() -> None:
    refused(lambda: agent(tools=[echo, echo]), "two tools are named 'echo'", "@tool(name='…')")


@pytest.mark.parametrize("value", [-1, 1.5, "2", True, None])
def test_retries_is_a_whole_number_from_zero_up(value: object) -> None:
    refused(lambda: agent(retries=value), f"retries={value!r}", "a whole number from 0 up")
    assert agent(retries=0).retries == 0


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_max_parallel_tools_is_a_whole_number_from_one_up(value: object) -> None:
    refused(lambda: agent(max_parallel_tools=value), f"max_parallel_tools={value!r}", "a whole number from 1 up")
    assert agent(max_parallel_tools=1).max_parallel_tools == 1
    assert agent(max_parallel_tools=None).max_parallel_tools is None


@pytest.mark.parametrize("value", [42, ["a"], b"x"])
def test_instructions_are_words_or_a_function(value: object) -> None:
    refused(lambda: agent(instructions=value), f"instructions={value!r}", "a str, or a function that takes the run")


@pytest.mark.parametrize("value", [{"temperature": 1}, 0.5, "hot"])
def test_settings_are_model_settings(value: object) -> None:
    refused(lambda: agent(settings=value), f"settings={value!r}", "ModelSettings(…)")


@pytest.mark.parametrize("value", [5, {"cap": 5}])
def test_a_ladder_is_a_ladder(value: object) -> None:
    with pytest.raises(ValueError, match=r"write ladder=Ladder\(…\)"):
        agent().run_sync("go", ladder=value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # as below
    refused(lambda: agent(ladder=value), f"ladder={value!r}", "Ladder(…)")
    refused(lambda: agent().start("go", ladder=value), f"ladder={value!r}", "Ladder(…)")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the point


@pytest.mark.parametrize("option", ["timeout_first_token", "timeout_idle"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "2", True])
def test_the_models_time_outs_are_seconds(option: str, value: object) -> None:
    refused(lambda: ModelSettings(**{option: value}), f"{option}={value!r}", "seconds above 0")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the point


def test_a_grace_above_the_cap_is_refused_where_it_is_declared() -> None:
    words = ("above the ladder's cap of",)
    refused(lambda: tool(grace=10.5)(plain), "grace=10.5", *words)
    refused(lambda: agent(tools=[graceful], ladder=Ladder(task=1, undo=1, cap=4)), "grace=5", *words, "4 s")
    refused(lambda: agent(tools=[graceful]).start("go", ladder=Ladder(cap=4)), "grace=5", *words, "4 s")
    assert agent(tools=[graceful], ladder=Ladder(cap=5)).ladder.cap == 5


@pytest.mark.parametrize("name", ["research agent", "ünder", "a" * 65, "a.b"])
def test_an_agents_name_as_a_tool_is_a_tools_name(name: str) -> None:
    refused(lambda: agent(name=name).as_tool(), repr(name), "1 to 64 of the characters A-Z a-z 0-9 _ -", "name='…'")
    assert agent(name=name).as_tool(name="helper").name == "helper"
    refused(lambda: agent().as_tool(name=name), repr(name))


# -- a run -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", ["", "  ", [], [Text(" ")], [Text("hi"), Text("")]])
def test_a_prompt_says_something(prompt: Any) -> None:  # Any: right and wrong ones
    refused(lambda: agent().start(prompt), "a prompt must not be empty: write at least one word")


@pytest.mark.parametrize(
    "prompt", [42, b"bytes", ["words"], [Message("user", (Text("hi"),))], {"text": "hi"}], ids=repr
)
def test_a_prompt_is_words_or_parts(prompt: Any) -> None:  # Any: as above
    refused(lambda: agent().start(prompt), "a prompt is a str or a list of Text, Image and File")


@pytest.mark.parametrize("kind", [Image, File])
def test_a_picture_or_file_is_data_or_an_address(kind: Any) -> None:  # Any: as above
    refused(kind, f"{kind.__name__} takes data=… or url=…, exactly one of them")
    refused(lambda: kind(data=b"x", url="http://example.org"), "exactly one of them")


def test_a_broken_history_is_refused_before_anything_runs() -> None:
    model = ScriptedModel(say("hi"))
    with pytest.raises(HistoryError, match=r"messages\[0\] \(assistant\)"):
        agent(model=model).start("go", history=[Message("assistant", (Text("hello"),))])
    assert model.calls == 0


@pytest.mark.parametrize("value", ["now", object(), ScriptedModel()])
def test_a_parent_is_a_run_or_none(value: Any) -> None:  # Any: as above
    refused(lambda: agent().start("go", parent=value), f"parent={value!r}", "parent=run, or parent=None")


@virtual
async def test_a_parent_is_live() -> None:
    before, child = agent().start("go"), agent()
    with pytest.raises(UsageError, match=r"parent=<Run .* of 'a', new> is not live"):
        child.start("go", parent=before)
    async with before:
        part = child.start("go", parent=before)
        part.discard()
        assert part.node.parent is before.node
    with pytest.raises(UsageError, match="ended> is not live, so nothing can be a part of it: write parent=None"):
        child.start("go", parent=before)


@pytest.mark.parametrize("value", ["stop", object()])
def test_a_token_is_a_token(value: Any) -> None:  # Any: as above
    refused(lambda: agent().start("go", token=value), f"token={value!r}", "CancelToken()")


@pytest.mark.parametrize("value", ["stop", None, "CANCEL", True])
def test_on_close_is_one_of_two_words(value: Any) -> None:  # Any: as above
    refused(lambda: agent().stream("go", on_close=value), f"on_close={value!r}", "write 'cancel' or 'detach'")
    gc.collect()  # and no handle was left unused on the way


# -- asking ------------------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize("at", ["now", "AFTER_TOOLS", None, 2])
async def test_a_cancel_at_no_safe_point_is_refused_everywhere(at: Any) -> None:  # Any: as above
    one, token = agent(), CancelToken()
    async with one.start("go", token=token) as run:
        asks: list[Callable[..., object]] = [run.cancel, one.cancel, token.cancel, run.node.cancel, run.preview_cancel]
        for ask in asks:
            refused(lambda ask=ask: ask(at), f"at={at!r} is not a safe point", "SafePoint.NOW")  # type: ignore[misc]  # a default
    assert run.result.stop_reason == "end_turn", "what was refused is no ask"


@virtual
async def test_a_deadline_with_now_or_of_no_time_is_refused() -> None:
    async with agent().start("go") as run:
        refused(lambda: run.cancel(within=1), "within=1 with SafePoint.NOW", "leave within out")
        refused(lambda: run.cancel(SafePoint.ANY, within=0), "within=0", "SafePoint.NOW to stop at once")
    assert run.result.stop_reason == "end_turn"


# -- the handle --------------------------------------------------------------------------------------------------------


def test_a_handle_that_is_dropped_unused_warns_and_runs_nothing() -> None:
    model = ScriptedModel(say("hi"))
    handles = [agent(model=model).start("go")]
    with pytest.warns(RuntimeWarning, match=r"of 'a' was never entered: write `async with agent.start\(…\) as run:`"):
        handles.clear()
    assert model.calls == 0


@virtual
async def test_the_result_before_the_end_raises() -> None:
    run = agent().start("go")
    with pytest.raises(NotEnded, match=r"the run of 'a' has not ended: write `await run.wait\(\)` first"):
        _ = run.result
    with pytest.raises(UsageError, match=r"the run has not started: write `async with agent.start\(…\) as run:` first"):
        await run.wait()
    async with run:
        with pytest.raises(NotEnded):
            _ = run.result
    assert run.result.text == "hi"


@virtual
async def test_a_handle_is_entered_once() -> None:
    run = agent().start("go")
    async with run:
        pass
    with pytest.raises(UsageError, match=r"this run has started already: call agent.start\(…\) again for another one"):
        await run.__aenter__()


@virtual
async def test_run_sync_inside_a_loop_names_await() -> None:
    with pytest.raises(UsageError, match=r"run_sync\(\) inside a running event loop .*: write `await agent.run\(…\)`"):
        agent().run_sync("go")


@virtual
async def test_a_run_does_not_wait_for_itself() -> None:
    @tool
    async def waits(ctx: ToolContext) -> str:
        """Wait for the own run."""
        await ctx.run.wait()
        return "never"

    result = await agent(model=ScriptedModel(call("waits"), say("done")), tools=[waits]).run("go")
    assert "waits for a, which it is part of: return, and wait from outside" in str(result.ledger[0].error)


# -- inside a tool -----------------------------------------------------------------------------------------------------


@virtual
@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "above 0"), (-1, "above 0"), (11, "above the ladder's cap of 10.0 s"), (math.inf, "above 0")],
)
async def test_a_shield_is_bounded_where_it_is_declared(seconds: float, words: str) -> None:
    @tool
    async def shielded(ctx: ToolContext) -> str:
        """Shield itself."""
        async with ctx.shield(seconds):
            return "never"

    result = await agent(model=ScriptedModel(call("shielded"), say("done")), tools=[shielded]).run("go")
    assert f"ctx.shield({seconds!r})" in str(result.ledger[0].error)
    assert words in str(result.ledger[0].error)


@virtual
async def test_a_safe_point_needs_a_name_and_threads_have_their_own_word_for_it() -> None:
    @tool
    async def nameless(ctx: ToolContext) -> None:
        """Stop anywhere."""
        await ctx.safe_point(" ")

    @tool
    async def wrong_word(ctx: ToolContext) -> None:
        """Use the word for threads."""
        ctx.safe_point_sync("page")

    model = ScriptedModel([call("nameless"), call("wrong_word")], say("done"))
    result = await agent(model=model, tools=[nameless, wrong_word]).run("go")
    assert "a named point needs a name, as in SafePoint.named('page')" in str(result.ledger[0].error)
    assert "safe_point_sync() is for threads: write `await ctx.safe_point(…)` here" in str(result.ledger[1].error)


@virtual
async def test_a_loop_of_a_tools_own_is_no_place_for_a_safe_point_or_a_shield() -> None:
    @tool
    def point(ctx: ToolContext) -> None:
        """Stop in a thread."""
        asyncio.run(ctx.safe_point("page"))

    @tool
    def shield(ctx: ToolContext) -> None:
        """Be shielded in a thread."""

        async def shielded() -> None:
            async with ctx.shield(1):
                pass

        asyncio.run(shielded())

    model = ScriptedModel([call("point"), call("shield")], say("done"))
    result = await agent(model=model, tools=[point, shield]).run("go")
    assert "write ctx.safe_point_sync(…) in a thread" in str(result.ledger[0].error)
    assert "a thread is never cut; write @tool(grace=…)" in str(result.ledger[1].error)


def test_an_agent_works_without_any_of_these_options() -> None:
    assert asyncio.run(agent().run("go")).text == "hi"


# -- what is handed in as something else -------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["budget", "settings", "ladder"])
@pytest.mark.parametrize("value", [0, 5, "x", {}])
def test_an_option_of_another_kind_is_refused_also_if_it_is_empty(option: str, value: object) -> None:
    refused(lambda: agent(**{option: value}), f"{option}={value!r}", f"write {option}=", "(…)")
    if option != "settings":
        refused(lambda: agent().start("go", **untyped({option: value})), f"{option}={value!r}", f"write {option}=")


@pytest.mark.parametrize("history", [None, 5, "hello", Message("user", (Text("hi"),))])
def test_a_history_is_a_list(history: object) -> None:
    refused(
        lambda: agent().start("go", history=untyped(history)), f"history={history!r}", "write history=result.messages"
    )


@virtual
async def test_a_whole_result_as_the_history_is_refused_in_a_few_words() -> None:
    result = await agent().run("hi")
    with pytest.raises(ValueError, match=r"^history=RunResult\(…\) is not a list: write history=result\.messages$"):
        agent().start("go", history=untyped(result))


@pytest.mark.parametrize("session", ["s", 5, MemoryStore()])
def test_a_session_is_something_that_a_run_can_enter(session: object) -> None:
    refused(
        lambda: agent().start("go", session=untyped(session)), f"session={session!r}", "await Session.create(store)"
    )


@pytest.mark.parametrize("checkpoint", [b"{}", "{}", 5])
def test_a_checkpoint_is_no_bytes(checkpoint: object) -> None:
    refused(lambda: agent().start(checkpoint=untyped(checkpoint)), "is not a checkpoint: write ")


@virtual
async def test_a_run_that_has_its_answer_cannot_be_resumed_and_the_refusal_says_how_to_go_on() -> None:
    result = await agent().run("hi")
    with pytest.raises(CheckpointError, match=r"ended with an answer has none; go on with history=result\.messages"):
        await agent().resume(untyped(result.checkpoint))


@pytest.mark.parametrize("output", [{"a": 1}, 5, "City"])
def test_an_output_is_a_type(output: object) -> None:
    with pytest.raises(ToolDefinitionError, match="is no type with a JSON schema: use a pydantic model"):
        agent(output=output)


@pytest.mark.parametrize("option", ["name", "description"])
def test_an_agent_as_a_tool_has_words(option: str) -> None:
    refused(lambda: agent().as_tool(**untyped({option: 5})), f"{option}=5", f"write {option}='…'")


@pytest.mark.parametrize("reply", ["hi", ["hi"], 5, None])
def test_a_script_is_made_of_what_a_model_does(reply: object) -> None:
    refused(lambda: ScriptedModel(untyped(reply)), "is nothing that a model does: write say(")


def test_what_a_model_does_is_written_with_words_names_and_exceptions() -> None:
    refused(lambda: say(untyped(5)), "say(5)", "write say('…')")
    refused(lambda: fail(untyped("busy")), "fail('busy')", "write an exception, as in fail(ModelUnavailable('busy'))")
    refused(lambda: call(untyped(echo)), "<Tool 'echo'", "write call('name', …)")
    refused(lambda: call("echo", untyped([1])), "[1]", "write the arguments as a dict or as keywords")


def test_a_tool_is_made_once() -> None:
    with pytest.raises(ToolDefinitionError, match="is a tool already: write @tool once, with all its options"):
        tool(untyped(echo), name="again")


def test_a_handle_is_made_by_its_agent_and_a_broken_one_makes_no_further_noise() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(TypeError):
            untyped(Run)()
        gc.collect()
    assert caught == []


SETTINGS: dict[str, list[object]] = {
    "temperature": [-1, "hot", True, math.nan],
    "max_tokens": [0, -1, 1.5, "many", True],
    "tool_choice": ["", 5],
    "stop": ["END", 5, [""], [5]],
    "extra": [None, 5, "x", []],
}


@pytest.mark.parametrize(("option", "value"), [(name, value) for name, values in SETTINGS.items() for value in values])
def test_a_setting_that_no_provider_could_take_is_refused(option: str, value: object) -> None:
    refused(lambda: ModelSettings(**untyped({option: value})), f"{option}={value!r}: write ", "or leave it out")


def test_settings_take_what_providers_take() -> None:
    settings = ModelSettings(temperature=0, max_tokens=1, tool_choice="echo", stop=("END",), extra={"top_k": 1})
    assert (settings.temperature, settings.max_tokens, settings.stop) == (0, 1, ("END",))
    assert list(ModelSettings(stop=untyped(["END"])).stop) == ["END"]


@virtual
async def test_a_session_that_breaks_when_it_is_left_holds_nobody() -> None:
    class Broken(Session):
        def left(self, run: Any) -> None:  # Any: a run of any agent
            raise RuntimeError("I will not let go")

    store = MemoryStore()
    await store.create("s", {})
    session = Broken(store, "s", await store.load("s"))
    async with agent().start("go", session=session) as run:
        result = await run.wait()
    assert result.text == "hi"
    assert run.node.task is not None
    assert str(run.node.task.exception()) == "I will not let go"


def test_the_words_of_a_prompt_are_words() -> None:
    refused(lambda: agent().start([Text(untyped(5))]), "the words of a prompt are a str, not 5")
