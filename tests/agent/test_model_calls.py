"""Model calls: trying again, the next model, time-outs, what they cost, and replies that are nonsense."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import pairwise

import pytest

from safepoint import Agent, ModelSettings, Run, RunFailed, SafePoint, Usage, check_history, tool
from safepoint._core.pace import MOST_AT_ONCE
from safepoint.agent.events import ModelCallEnded, ModelCallStarted, RetryScheduled
from safepoint.agent.model import CallDelta, Chunk, Finish, ModelRequest, ReasoningDelta, TextDelta
from safepoint.errors import ModelError, ModelMisbehaved, ModelUnavailable
from safepoint.history.estimate import estimate_messages, estimate_tokens
from safepoint.testing import ScriptedModel, call, fail, raw, say, stall, think
from safepoint.testing.models import Act, Reply
from tests.agent.oracle import check_left_behind, notices, results, states
from tests.agent.workshop import HeldModel
from tests.virtual import now, passes, virtual

BUSY = fail(ModelUnavailable("busy"))


@tool(effect="pure")
async def double(x: int) -> int:
    """Double a number."""
    return 2 * x


async def ended(agent: Agent[None]) -> Run[None]:
    async with agent.start("go") as run:
        await run.wait()
    check_left_behind(run)
    return run


def delays(run: Run[None]) -> list[float]:
    return [event.delay for event in run.kept_events() if isinstance(event, RetryScheduled)]


# -- a stream that never waits -----------------------------------------------------------------------------------------


class Cached(ScriptedModel):
    """Has its whole reply at hand, and gives it without ever waiting."""

    def __init__(self, chunks: int) -> None:
        super().__init__(name="cached")
        self._length = chunks
        self.given = 0

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        yield self._given()

    async def _given(self) -> AsyncGenerator[Chunk]:
        for _ in range(self._length):
            self.given += 1
            yield TextDelta("x")
        yield Finish("end_turn")


@virtual
async def test_the_loop_has_its_turn_while_a_stream_is_read_that_never_waits() -> None:
    model = Cached(10 * MOST_AT_ONCE)
    given: list[int] = []
    async with Agent("a", model=model).start("go") as run:
        while not run.ended:
            given.append(model.given)
            await asyncio.sleep(0)
    assert max(after - before for before, after in pairwise(given)) <= MOST_AT_ONCE
    assert run.result.text == "x" * (10 * MOST_AT_ONCE)


@virtual
@pytest.mark.parametrize("at", [SafePoint.NOW, SafePoint.FORCE])
async def test_now_cuts_a_stream_that_never_waits_where_the_loop_has_its_turn(at: SafePoint) -> None:
    model = Cached(100_000)
    async with Agent("a", model=model).start("go") as run:
        while not model.given:  # noqa: ASYNC110  # the model says nothing while it is not read
            await asyncio.sleep(0)
        run.cancel(at)
    assert model.given <= 2 * MOST_AT_ONCE
    assert run.result.stop_reason == "cancelled"
    assert run.result.text == "x" * model.given, "what was received is kept"
    check_left_behind(run)


@virtual
async def test_the_loop_has_its_turn_while_a_long_backlog_of_events_is_read() -> None:
    async with Agent("a", model=ScriptedModel(say("x"))).start("go") as run:
        for _ in range(4 * MOST_AT_ONCE):
            run.cancel(SafePoint.named("elsewhere"))
        await run.wait()
    read, seen = list[object](), [0]

    async def reads() -> None:
        async for event in run.events():
            read.append(event)

    task = asyncio.ensure_future(reads())
    while not task.done():
        await asyncio.sleep(0)
        seen.append(len(read))
    assert seen[-1] > 4 * MOST_AT_ONCE
    assert max(after - before for before, after in pairwise(seen)) <= MOST_AT_ONCE


# -- trying again ------------------------------------------------------------------------------------------------------


@virtual
async def test_a_model_that_is_busy_is_tried_again_after_a_growing_wait() -> None:
    model = ScriptedModel(BUSY, BUSY, say("here"))
    began = now()
    run = await ended(Agent("a", model=model))
    assert run.result.text == "here"
    assert delays(run) == [0.5, 1.0]
    assert now() == began + 1.5
    assert model.calls == 3
    steps = [event.step for event in run.kept_events() if isinstance(event, ModelCallStarted)]
    assert steps == [1, 1, 1], "a step that is tried again is one step"


@virtual
@pytest.mark.parametrize(("retries", "calls"), [(0, 1), (1, 2), (3, 4)])
async def test_it_is_tried_again_as_often_as_declared(retries: int, calls: int) -> None:
    model = ScriptedModel(BUSY, repeat=True)
    with pytest.raises(RunFailed, match=r"^the run failed: ModelUnavailable: busy$") as caught:
        await Agent("a", model=model, retries=retries).run("go")
    assert model.calls == calls
    assert isinstance(caught.value.__cause__, ModelUnavailable)
    result = caught.value.result
    assert (result.stop_reason, result.text) == ("error", "")
    check_history(result.messages)


@virtual
@pytest.mark.parametrize(
    ("wish", "wait"), [(7.0, 7.0), (90.0, 30.0), (None, 0.5), (0.0, 0.5), (-3.0, 0.5), (math.nan, 0.5)]
)
async def test_the_providers_own_wish_is_honoured_within_reason(wish: float | None, wait: float) -> None:
    run = await ended(Agent("a", model=ScriptedModel(fail(ModelUnavailable("busy", retry_after=wish)), say("here"))))
    assert delays(run) == [wait]


@virtual
async def test_the_wait_never_grows_beyond_half_a_minute() -> None:
    model = ScriptedModel(*[BUSY] * 9, say("here"))
    run = await ended(Agent("a", model=model, retries=9))
    assert delays(run) == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


@virtual
@pytest.mark.parametrize("first", [say("Hel"), think("hm"), call("double", x=1)], ids=["text", "thought", "call"])
async def test_once_anything_has_arrived_nothing_is_tried_again(first: Act) -> None:
    model = ScriptedModel([first, BUSY], say("again"))
    run = await ended(Agent("a", model=model, tools=[double], fallback=[ScriptedModel(say("other"))]))
    assert model.calls == 1
    assert run.result.stop_reason == "error"
    assert isinstance(run.result.error, ModelUnavailable)
    assert states(run) == {}


@virtual
async def test_words_that_came_before_an_error_are_kept_and_marked() -> None:
    run = await ended(Agent("a", model=ScriptedModel([say("Once upon"), BUSY])))
    assert run.result.text == "Once upon"
    last = run.result.messages[-1]
    assert [part.incomplete for part in last.parts if part.kind == "text"] == [True]
    assert notices(run.result.messages) == [
        '[Safepoint: This run failed before it was done: "ModelUnavailable: busy".]'
    ]


@virtual
@pytest.mark.parametrize("error", [ModelError("no"), ModelMisbehaved("odd"), ValueError("bug")], ids=repr)
async def test_other_errors_are_not_tried_again(error: Exception) -> None:
    model = ScriptedModel(fail(error), say("again"))
    run = await ended(Agent("a", model=model))
    assert model.calls == 1
    assert run.result.error is error


@virtual
async def test_a_model_that_raises_cancelled_error_by_itself_has_failed_and_is_not_cancelled() -> None:
    run = await ended(Agent("a", model=ScriptedModel(fail(asyncio.CancelledError()))))
    assert run.result.stop_reason == "error"
    assert isinstance(run.result.error, asyncio.CancelledError)


@virtual
async def test_now_cuts_the_wait_before_the_next_try() -> None:
    model = ScriptedModel(BUSY, say("never"))
    async with Agent("a", model=model).start("go") as run:
        await passes(0.25)
        assert await run.cancel().wait() == "stopped"
        assert now() == run.node.clock.now()
    assert model.calls == 1
    assert run.result.cancellation is not None
    assert run.result.cancellation.stopped_at == run.result.cancellation.asked_at
    check_left_behind(run)


@virtual
async def test_now_just_after_a_failure_starts_no_new_try() -> None:
    class Cancels(ScriptedModel):
        @asynccontextmanager
        async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
            runs[0].cancel()
            async with super().stream(request) as chunks:
                yield chunks

    model, runs = Cancels(BUSY, say("never")), list[Run[None]]()
    run = Agent("a", model=model).start("go")
    runs.append(run)
    async with run:
        pass
    assert model.calls == 1
    assert run.result.stop_reason == "cancelled"
    assert delays(run) == []
    check_left_behind(run)


# -- the next model ----------------------------------------------------------------------------------------------------


@virtual
async def test_the_next_model_is_asked_when_the_first_has_been_tried_enough() -> None:
    first, second = ScriptedModel(BUSY, repeat=True, name="first"), ScriptedModel(say("here"), name="second")
    run = await ended(Agent("a", model=first, fallback=[second], retries=1))
    assert (first.calls, second.calls) == (2, 1)
    models = [event.model for event in run.kept_events() if isinstance(event, ModelCallStarted)]
    assert models == ["first", "first", "second"]
    assert run.result.text == "here"


@virtual
async def test_the_next_model_is_asked_at_once_if_the_first_cannot_answer_at_all() -> None:
    first, second = ScriptedModel(fail(ModelError("no such model"))), ScriptedModel(say("here"))
    began = now()
    run = await ended(Agent("a", model=first, fallback=[second]))
    assert run.result.text == "here"
    assert now() == began


@virtual
async def test_if_every_model_fails_the_last_error_is_told() -> None:
    models = [ScriptedModel(fail(ModelError(name)), name=name) for name in ("a", "b", "c")]
    run = await ended(Agent("a", model=models[0], fallback=models[1:]))
    assert str(run.result.error) == "c"


@virtual
async def test_a_bug_in_the_users_own_model_is_not_hidden_by_the_next_one() -> None:
    second = ScriptedModel(say("here"))
    run = await ended(Agent("a", model=ScriptedModel(fail(ValueError("bug"))), fallback=[second]))
    assert second.calls == 0
    assert run.result.stop_reason == "error"


@virtual
async def test_the_next_step_begins_with_the_first_model_again() -> None:
    first = ScriptedModel(fail(ModelError("no")), say("done"), name="first")
    second = ScriptedModel(call("double", x=1), name="second")
    run = await ended(Agent("a", model=first, fallback=[second], tools=[double]))
    assert (run.result.text, first.calls, second.calls) == ("done", 2, 1)


@virtual
async def test_now_starts_no_fallback() -> None:
    second, runs = ScriptedModel(say("never")), list[Run[None]]()

    class Cancels(ScriptedModel):
        @asynccontextmanager
        async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
            runs[0].cancel()
            async with super().stream(request) as chunks:
                yield chunks

    run = Agent("a", model=Cancels(fail(ModelError("no"))), fallback=[second]).start("go")
    runs.append(run)
    async with run:
        pass
    assert second.calls == 0
    assert run.result.stop_reason == "cancelled"


# -- silence -----------------------------------------------------------------------------------------------------------


class Slow:
    """A model whose connection opens after `connects` seconds and whose chunks come every `between` seconds."""

    name = "slow"

    def __init__(self, *, connects: float = 0.0, between: float = 0.0, words: int = 3) -> None:
        self.calls = 0
        self.open = 0
        self._connects, self._between, self._words = connects, between, words

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[AsyncIterator[Chunk]]:
        self.calls += 1
        self.open += 1
        try:
            await passes(self._connects)
            yield self._chunks()
        finally:
            self.open -= 1

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        for _ in range(self._words):
            await passes(self._between)
            yield TextDelta("word ")
        yield Finish("end_turn")


@virtual
@pytest.mark.parametrize("make", [lambda: Slow(connects=5.5), lambda: Slow(between=5.5)], ids=["connection", "token"])
async def test_a_model_that_says_nothing_in_time_counts_as_unavailable(make: Callable[[], Slow]) -> None:
    model, began = make(), now()
    run = await ended(Agent("a", model=model, settings=ModelSettings(timeout_first_token=5), retries=1))
    assert run.result.stop_reason == "error"
    assert isinstance(run.result.error, ModelUnavailable)
    assert str(run.result.error) == "the model was silent for 5 s"
    assert (model.calls, model.open) == (2, 0)
    assert now() == began + 10.5


@virtual
async def test_the_first_token_may_take_its_time_in_all_and_not_twice() -> None:
    run = await ended(
        Agent("a", model=Slow(connects=3, between=3, words=1), settings=ModelSettings(timeout_first_token=5), retries=0)
    )
    assert run.result.stop_reason == "error"


@virtual
async def test_a_model_that_is_just_in_time_is_heard() -> None:
    settings = ModelSettings(timeout_first_token=5, timeout_idle=2)
    run = await ended(Agent("a", model=Slow(connects=2.9, between=1.9), settings=settings))
    assert run.result.text == "word word word "


@virtual
async def test_a_model_that_falls_silent_in_the_middle_has_failed_with_its_words_kept() -> None:
    model = ScriptedModel([say("Once"), stall()], say("again"))
    run = await ended(Agent("a", model=model, settings=ModelSettings(timeout_idle=4)))
    assert str(run.result.error) == "the model was silent for 4 s"
    assert (run.result.text, model.calls) == ("Once", 1)


class GoesOn(Slow):
    """Takes the end of its caller's patience for nothing, and goes on."""

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        with suppress(asyncio.CancelledError):
            await passes(100)
        yield TextDelta("as I was saying")
        yield Finish("end_turn")


@virtual
async def test_a_model_that_goes_on_when_its_time_is_up_has_failed_all_the_same() -> None:
    model, began = GoesOn(), now()
    run = await ended(Agent("a", model=model, settings=ModelSettings(timeout_first_token=5), retries=0))
    assert str(run.result.error) == "the model was silent for 5 s"
    assert (now(), model.open) == (began + 5, 0)


@virtual
async def test_without_a_time_out_silence_lasts_until_somebody_stops_it() -> None:
    async with Agent("a", model=ScriptedModel(stall())).start("go") as run:
        await passes(86400)
        assert await run.cancel().wait() == "stopped"
    check_left_behind(run)


@virtual
async def test_the_providers_own_time_out_is_its_own_error() -> None:
    run = await ended(
        Agent("a", model=ScriptedModel(fail(TimeoutError("socket"))), settings=ModelSettings(timeout_idle=4))
    )
    assert isinstance(run.result.error, TimeoutError)
    assert str(run.result.error) == "socket"


@virtual
@pytest.mark.parametrize("moment", ["connecting", "silent"])
async def test_now_closes_the_connection_whatever_it_waits_for(moment: str) -> None:
    model = Slow(connects=100) if moment == "connecting" else Slow(between=100)
    async with Agent("a", model=model).start("go") as run:
        await passes(1)
        assert model.open == 1
        began = now()
        assert await run.cancel().wait() == "stopped"
        assert (model.open, now()) == (0, began)
    check_left_behind(run)


# -- what it costs -----------------------------------------------------------------------------------------------------


@virtual
async def test_the_providers_own_count_is_taken() -> None:
    script = [raw(CallDelta(0, "c1", "double", '{"x": 1}'), Finish("tool_calls", 100, 10))]
    model = ScriptedModel(*script, raw(TextDelta("done"), Finish("end_turn", 130, 5)))
    run = await ended(Agent("a", model=model, tools=[double]))
    assert run.result.usage == Usage(230, 15, model_calls=2, estimated=False)
    calls = [event.usage for event in run.kept_events() if isinstance(event, ModelCallEnded)]
    assert calls == [Usage(100, 10, model_calls=1), Usage(130, 5, model_calls=1)]


@virtual
@pytest.mark.parametrize(("counted_in", "counted_out"), [(None, None), (100, None), (None, 10)])
async def test_what_the_provider_does_not_say_is_estimated_and_marked(
    counted_in: int | None, counted_out: int | None
) -> None:
    model = ScriptedModel(raw(TextDelta("some words"), Finish("end_turn", counted_in, counted_out)))
    usage = (await ended(Agent("a", model=model))).result.usage
    request = model.requests[0]
    assert usage.input_tokens == (estimate_messages(request.messages) if counted_in is None else counted_in)
    assert usage.output_tokens == (estimate_tokens("some words") if counted_out is None else counted_out)
    assert usage.estimated


@virtual
async def test_a_call_that_was_cut_is_estimated_input_and_words_so_far() -> None:
    model = HeldModel([say("Once upon a time"), stall()])
    async with Agent("a", model=model, instructions="Tell stories.", tools=[double]).start("go") as run:
        await model.reached.wait()
        run.cancel()
    request = model.requests[0]
    spent = estimate_messages(request.messages, request.instructions, request.tools)
    assert run.result.usage == Usage(spent, estimate_tokens("Once upon a time"), model_calls=1, estimated=True)
    assert spent > estimate_messages(request.messages)


@virtual
async def test_a_call_that_was_cut_before_its_first_token_has_cost_its_input() -> None:
    model = ScriptedModel(stall())
    async with Agent("a", model=model).start("go") as run:
        await passes(1)
        run.cancel()
    assert run.result.usage == Usage(estimate_messages(model.requests[0].messages), 0, model_calls=1, estimated=True)


@virtual
async def test_a_run_that_was_stopped_before_any_call_has_cost_nothing() -> None:
    run = Agent("a", model=ScriptedModel(say("never"))).start("go")
    run.cancel()
    async with run:
        pass
    assert run.result.usage == Usage()


@virtual
async def test_half_received_calls_and_thoughts_are_part_of_what_was_spent() -> None:
    model = ScriptedModel([raw(ReasoningDelta("thinking"), CallDelta(0, "c", "double", '{"x":')), stall()])
    async with Agent("a", model=model, tools=[double]).start("go") as run:
        await passes(1)
        run.cancel()
    assert run.result.usage.output_tokens == estimate_tokens('thinkingdouble{"x":')


@virtual
async def test_a_call_that_failed_before_anything_arrived_has_cost_nothing_that_is_known() -> None:
    run = await ended(Agent("a", model=ScriptedModel(BUSY, say("here")), retries=1))
    assert run.result.usage.model_calls == 1


@virtual
async def test_a_sub_agents_usage_is_part_of_its_parents() -> None:
    inner = Agent("inner", model=ScriptedModel(raw(TextDelta("in"), Finish("end_turn", 7, 3))))
    script = [raw(CallDelta(0, "c1", "inner", '{"input": "go"}'), Finish("tool_calls", 10, 1))]
    model = ScriptedModel(*script, raw(TextDelta("out"), Finish("end_turn", 20, 2)))
    run = await ended(Agent("outer", model=model, tools=[inner.as_tool()]))
    assert run.result.usage == Usage(37, 6, model_calls=3)


def test_usage_adds_up_and_an_estimate_stays_one() -> None:
    assert Usage(1, 2, 1) + Usage(10, 20, 1, estimated=True) == Usage(11, 22, 2, estimated=True)
    assert (Usage(estimated=True) + Usage()).estimated


# -- replies -----------------------------------------------------------------------------------------------------------

NONSENSE: dict[str, tuple[Reply, str]] = {
    "nothing at all": (raw(Finish("end_turn")), "the model's reply is empty: no text and no tool call"),
    "only blanks": (say("  \n"), "the model's reply is empty"),
    "only a thought": (think("hm"), "the model's reply is empty"),
    "no end": (raw(TextDelta("hi")), "ended its stream without a Finish: the reply was cut by the provider"),
    "going on after the end": (raw(Finish("end_turn"), TextDelta("more")), "the model's reply is empty"),
    "a call without a name": (raw(CallDelta(0, "c1"), Finish("tool_calls")), "tool call 0 of the reply has no name"),
    "no chunk": (raw("hello"), "the model sent 'hello', which is no chunk"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the point
}


@virtual
@pytest.mark.parametrize("name", NONSENSE)
async def test_a_reply_that_is_nonsense_fails_the_run_and_leaves_a_valid_history(name: str) -> None:
    reply, words = NONSENSE[name]
    run = await ended(Agent("a", model=ScriptedModel(reply)))
    assert run.result.stop_reason == "error"
    assert isinstance(run.result.error, ModelMisbehaved)
    assert words in str(run.result.error)


@virtual
@pytest.mark.parametrize(
    ("reason", "stop", "notice"),
    [
        ("max_tokens", "max_tokens", "The answer was cut off: the limit of tokens was reached."),
        ("refused", "refused", "The model refused to answer."),
    ],
)
@pytest.mark.parametrize("words", ["Well, ", ""])
async def test_an_answer_that_ended_badly_says_so(reason: str, stop: str, notice: str, words: str) -> None:
    chunks: list[Chunk] = [TextDelta(words)] if words else []
    finish = replace(Finish("end_turn"), reason=reason)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # one of them
    run = await ended(Agent("a", model=ScriptedModel(raw(*chunks, finish))))
    assert (run.result.stop_reason, run.result.text) == (stop, words)
    assert notices(run.result.messages) == [f"[Safepoint: {notice}]"]


@virtual
async def test_calls_of_a_reply_that_was_cut_off_by_the_limit_are_not_run() -> None:
    chunks = (TextDelta("Let me see."), CallDelta(0, "c1", "double", '{"x": 1'), Finish("max_tokens"))
    run = await ended(Agent("a", model=ScriptedModel(raw(*chunks)), tools=[double]))
    assert (run.result.stop_reason, states(run)) == ("max_tokens", {})


@virtual
@pytest.mark.parametrize("name", ["functions.double", "no such tool", "ünknown", "x" * 70, "-"])
async def test_whatever_name_a_model_calls_the_history_stays_valid(name: str) -> None:
    run = await ended(Agent("a", model=ScriptedModel(call(name, x=1), say("sorry")), tools=[double]))
    assert run.result.text == "sorry"
    (result,) = results(run.result.messages)
    assert result.state == "failed"
    assert "There is no tool named" in result.content
    assert "The tools are: double." in result.content


@virtual
@pytest.mark.parametrize("id", ["", " ", "\n", "\ud800", None])
async def test_whatever_id_a_model_gives_a_call_the_history_stays_valid(id: str | None) -> None:
    chunks = (CallDelta(0, id, "double", '{"x": 1}'), CallDelta(1, id, "double", '{"x": 2}'), Finish("tool_calls"))
    run = await ended(Agent("a", model=ScriptedModel(raw(*chunks), say("done")), tools=[double]))
    assert [result.content for result in results(run.result.messages)] == ["2", "4"]


@virtual
async def test_ids_that_were_used_before_in_the_conversation_are_replaced() -> None:
    def reply(x: int) -> Reply:
        return raw(CallDelta(0, "same", "double", f'{{"x": {x}}}'), Finish("tool_calls"))

    run = await ended(Agent("a", model=ScriptedModel(reply(1), reply(2), say("done")), tools=[double]))
    ids = [result.call_id for result in results(run.result.messages)]
    assert ids == ["same", "same_"]


@virtual
@pytest.mark.parametrize("text", ["\ud83d", "a \ud83d\ude00 b", "\ude00\ud83d"])
async def test_half_a_character_in_words_or_thoughts_does_not_spoil_the_history(text: str) -> None:
    replies: list[list[Act]] = [[say("x" + text)], [think(text), say("ok")], [think(text, signature="sig"), say("ok")]]
    for reply in replies:
        run = await ended(Agent("a", model=ScriptedModel(reply)))
        assert run.result.stop_reason == "end_turn"


@virtual
async def test_a_seal_that_is_empty_is_no_seal() -> None:
    run = await ended(Agent("a", model=ScriptedModel([think("hm", signature=""), say("ok")])))
    assert run.result.text == "ok"


@virtual
@pytest.mark.parametrize("arguments", ["[1]", '{"x": 1', '"x"', '{"x": NaN}', '{"x": 1, "x": 2}'])
async def test_arguments_that_are_no_json_object_are_not_run_and_told(arguments: str) -> None:
    chunks = (CallDelta(0, "c1", "double", arguments), Finish("tool_calls"))
    run = await ended(Agent("a", model=ScriptedModel(raw(*chunks), say("sorry")), tools=[double]))
    (result,) = results(run.result.messages)
    assert result.state == "failed"
    assert result.content.startswith("This call cannot be made: ")
    assert run.result.messages[1].tool_calls[0].invalid is not None


# -- the request -------------------------------------------------------------------------------------------------------


@virtual
async def test_the_model_is_sent_instructions_settings_tools_and_the_conversation() -> None:
    model = ScriptedModel(call("double", x=1), say("done"))
    settings = ModelSettings(temperature=0.5, max_tokens=99, stop=("END",), extra={"seed": 1})
    agent = Agent("a", model=model, instructions="Be brief.", tools=[double], settings=settings)
    run = await ended(agent)
    first, second = model.requests
    assert (first.instructions, first.settings) == ("Be brief.", settings)
    assert [(spec.name, spec.description) for spec in first.tools] == [("double", "Double a number.")]
    assert first.messages == tuple(run.result.messages[:1])
    assert second.messages == tuple(run.result.messages[:3])


@virtual
@pytest.mark.parametrize("is_async", [False, True])
async def test_instructions_may_be_a_function_of_the_run(is_async: bool) -> None:
    def plain(run: Run[str]) -> str:
        return f"You help {run.deps}."

    async def waiting(run: Run[str]) -> str:
        await passes(1)
        return plain(run)

    model = ScriptedModel(say("hi"))
    agent: Agent[str] = Agent("a", model=model, instructions=waiting if is_async else plain)
    await agent.run("go", deps="Kim")
    assert model.requests[0].instructions == "You help Kim."


@virtual
async def test_instructions_that_raise_fail_the_run_and_those_that_hang_can_be_stopped() -> None:
    def broken(run: Run[None]) -> str:
        raise LookupError("no template")

    async def hangs(run: Run[None]) -> str:
        await asyncio.get_running_loop().create_future()
        return ""

    model = ScriptedModel(say("never"))
    failed = await ended(Agent("a", model=model, instructions=broken))
    assert isinstance(failed.result.error, LookupError)
    async with Agent("a", model=model, instructions=hangs).start("go") as run:
        await passes(1)
        run.cancel()
    assert run.result.stop_reason == "cancelled"
    assert model.calls == 0
    check_left_behind(run)


@virtual
async def test_instructions_that_are_no_words_fail_the_run_before_the_model_is_called() -> None:
    model = ScriptedModel(say("never"))
    agent: Agent[None] = Agent("a", model=model, instructions=lambda run: 42)  # type: ignore[arg-type,return-value]  # pyright: ignore[reportArgumentType]  # the point
    run = await ended(agent)
    assert model.calls == 0
    assert run.result.stop_reason == "error"
    assert "instructions returned 42, which is no str" in str(run.result.error)


@virtual
async def test_a_safe_point_ask_does_not_cut_a_model_call() -> None:
    model = HeldModel(say("The answer", pieces=3))
    async with Agent("a", model=model).start("go") as run:
        await model.reached.wait()
        run.cancel(SafePoint.AFTER_MODEL)
        await passes(60)
        assert model.open_streams == 1
        model.gate.set()
    assert run.result.text == "The answer"
