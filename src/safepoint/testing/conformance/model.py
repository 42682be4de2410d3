"""`check_model`: what every model has to do, for any provider."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from safepoint.agent.model import CallDelta, Chunk, Finish, ReasoningDelta, TextDelta
from safepoint.agent.partial_reply import PartialReply
from safepoint.errors import ModelError, ModelUnavailable
from safepoint.testing.conformance.cutting import Cut, cut_everywhere
from safepoint.testing.conformance.model_setup import (
    REQUEST,
    MakeModel,
    ModelSetup,
    Situation,
    finish_of,
    text_of,
)
from safepoint.testing.conformance.rules import Check, Rules

# Seconds after which a silent stream counts as silent, and within which a cancelled stream has to be over.
_SILENCE = 1.0
_PROMPT = 0.5
_FAILURES = (Situation.BUSY, Situation.BREAKS, Situation.ENDS_EARLY)

_Rule: TypeAlias = Callable[[ModelSetup], Coroutine[Any, Any, None]]  # Any: what a coroutine yields


class _Needs:
    """The rules, and the situations that each needs."""

    def __init__(self) -> None:
        self.rules: Rules[MakeModel] = Rules()
        self.situations: dict[str, tuple[Situation, ...]] = {}

    def rule(self, name: str, advice: str, *situations: Situation) -> Callable[[_Rule], _Rule]:
        """Make a rule of a check of one setup; it is checked in each of these situations."""

        def add(check: _Rule) -> _Rule:
            self.situations[name] = situations
            self.rules.rule(name, advice)(_in_each(situations, check))
            return check

        return add

    def possible(self, situations: Sequence[Situation]) -> Rules[MakeModel]:
        return Rules(*(rule for rule in self.rules.all if set(self.situations[rule.name]) <= set(situations)))


def _in_each(situations: Sequence[Situation], check: _Rule) -> Check[MakeModel]:
    async def checked(make: MakeModel) -> None:
        for situation in situations:
            async with make(situation) as setup:
                await check(setup)

    return checked


RULES = _Needs()


def check_model(make: MakeModel, *, situations: Sequence[Situation] = tuple(Situation), virtual: bool = True) -> None:
    """Hold a model to every rule, and raise one AssertionError that lists the rules it breaks.

    `make(situation)` is an async context manager that returns a `ModelSetup`: the model, connected to a provider that
    behaves as the situation says, and a function that counts the open connections. Rules that need a situation which
    is not in `situations` are skipped. `virtual=False`: for a real provider.
    """
    wanted = [Situation(situation) for situation in situations]
    rules = RULES.possible(wanted)
    if not rules.all:
        raise ValueError(f"situations={situations!r}: no rule can be checked with these alone; add Situation.ANSWER")
    rules.hold("model", make, virtual=virtual)


# -- what it says ----------------------------------------------------------------------------------------------------


@RULES.rule("it has a name", "give it a `name`: prices, events and errors call it by that", Situation.ANSWER)
async def _named(setup: ModelSetup) -> None:
    name: object = setup.model.name
    assert isinstance(name, str), f"its name is {name!r}"
    assert name.strip(), "its name is empty"


@RULES.rule(
    "a reply is made of chunks",
    "yield TextDelta, ReasoningDelta, CallDelta and Finish, and nothing else",
    Situation.ANSWER,
    Situation.TOOL_CALL,
)
async def _chunks(setup: ModelSetup) -> None:
    for chunk in await setup.read():
        assert isinstance(chunk, TextDelta | ReasoningDelta | CallDelta | Finish), f"it sent {chunk!r}"  # pyright: ignore[reportUnnecessaryIsInstance]  # untyped models


@RULES.rule(
    "a reply ends with one Finish",
    "yield exactly one Finish, as the last chunk, once the provider has said that the reply is complete",
    Situation.ANSWER,
    Situation.TOOL_CALL,
)
async def _finished(setup: ModelSetup) -> None:
    chunks = await setup.read()
    places = [place for place, chunk in enumerate(chunks) if isinstance(chunk, Finish)]
    assert places == [len(chunks) - 1], f"in a reply of {len(chunks)} chunks, Finish is at {places}"


@RULES.rule("an answer in words is an end_turn", "Finish('end_turn') for a reply without calls", Situation.ANSWER)
async def _end_turn(setup: ModelSetup) -> None:
    chunks = await setup.read()
    assert text_of(chunks).strip(), f"there are no words in {chunks!r}"
    reason = finish_of(chunks).reason
    assert reason == "end_turn", f"it ended with {reason!r}"


@RULES.rule(
    "a tool call has an id, a name and JSON arguments",
    "CallDelta(index, id, name) first, then its arguments in pieces; and Finish('tool_calls')",
    Situation.TOOL_CALL,
)
async def _calls(setup: ModelSetup) -> None:
    incoming = PartialReply()
    chunks = await setup.read()
    for chunk in chunks:
        if not isinstance(chunk, Finish):
            incoming.add(chunk)
    incoming.add(finish_of(chunks))
    ids = [chunk.id for chunk in chunks if isinstance(chunk, CallDelta) and chunk.id]
    message = incoming.reply(frozenset())
    calls = list(message.tool_calls) if message is not None else []
    assert [call.name for call in calls] == ["look"], f"it was to call `look` once: {chunks!r}"
    assert ids[:1] == [calls[0].id], f"the call has no id of the provider's: {chunks!r}"
    assert calls[0].invalid is None, f"its arguments: {calls[0].invalid}"
    assert finish_of(chunks).reason == "tool_calls", f"the reply ended with {finish_of(chunks).reason!r}"


@RULES.rule(
    "token counts are whole numbers, or None",
    "put the provider's own counts into Finish; None where it does not say, never a guess or a text",
    Situation.ANSWER,
    Situation.TOOL_CALL,
)
async def _usage(setup: ModelSetup) -> None:
    finish = finish_of(await setup.read())
    for count in (finish.input_tokens, finish.output_tokens):
        whole = isinstance(count, int) and not isinstance(count, bool) and count >= 0
        assert count is None or whole, f"it counted {count!r} tokens"


@RULES.rule("words are passed on as they come", "yield each piece at once; do not gather the reply", Situation.STALLS)
async def _at_once(setup: ModelSetup) -> None:
    chunks = await setup.read_until(TextDelta)
    assert text_of(chunks), f"the provider said a few words, and the model {chunks!r}"


@RULES.rule(
    "two streams at once do not mix", "keep what belongs to a reply in its stream, not in the model", Situation.ANSWER
)
async def _two(setup: ModelSetup) -> None:
    alone = await setup.read()
    both = await asyncio.gather(setup.read(), setup.read())
    for chunks in both:
        assert text_of(chunks) == text_of(alone), (
            f"alone it says {text_of(alone)!r}, beside another {text_of(chunks)!r}"
        )
        assert sum(isinstance(chunk, Finish) for chunk in chunks) == 1, "beside another, a reply has not one Finish"


# -- connections -----------------------------------------------------------------------------------------------------


@RULES.rule("nothing is opened before the block is entered", "connect in __aenter__, not in stream()", Situation.ANSWER)
async def _lazy(setup: ModelSetup) -> None:
    setup.model.stream(REQUEST)
    assert setup.open_connections() == 0, "stream(…) has opened a connection, which may never be closed"


@RULES.rule(
    "leaving the block closes the connection",
    "close it in a `finally` around the yield; an async generator needs `aclosing` or `try/finally` too",
    Situation.ANSWER,
)
async def _left(setup: ModelSetup) -> None:
    await setup.read_until(TextDelta)
    await setup.check_closed("after leaving in the middle of the reply")
    with suppress(_Leaves):
        async with setup.model.stream(REQUEST):
            raise _Leaves
    await setup.check_closed("after leaving by an exception")


@RULES.rule(
    "an exception in the block goes on",
    "let __aexit__ return None: what the reader raised is not yours",
    Situation.ANSWER,
)
async def _goes_on(setup: ModelSetup) -> None:
    try:
        async with setup.model.stream(REQUEST):
            raise _Leaves
    except _Leaves:
        return
    raise AssertionError("the reader raised inside the block, and the model swallowed it")


@RULES.rule(
    "a cancel at any wait closes the connection",
    "close it in a `finally`; connecting can be cancelled too",
    Situation.ANSWER,
    Situation.TOOL_CALL,
)
async def _cut(setup: ModelSetup) -> None:
    async def closed(cut: Cut) -> None:
        await setup.check_closed(str(cut))

    await cut_everywhere(setup.read, closed)


@RULES.rule("a cancellation is never swallowed", "let CancelledError out, after cleaning up", Situation.ANSWER)
async def _swallowed(setup: ModelSetup) -> None:
    async def let_out(cut: Cut) -> None:
        cancelled = isinstance(cut.ending, asyncio.CancelledError)
        assert not cut.reached or cancelled, f"{cut}, it ended with {cut.ending!r}"

    await cut_everywhere(setup.read, let_out)


@RULES.rule(
    "it is usable at once after a cancel",
    "keep no lock, no half-read reply and no broken connection in the model",
    Situation.ANSWER,
)
async def _usable(setup: ModelSetup) -> None:
    alone = text_of(await setup.read())

    async def whole(cut: Cut) -> None:
        text = text_of(await setup.read())
        assert text == alone, f"{cut}, the next reply is {text!r} and not {alone!r}"

    await cut_everywhere(setup.read, whole)


@RULES.rule(
    "a silent stream is cut at once",
    "wait for the network itself, so that a cancel interrupts it; do not poll, and do not finish reading first",
    Situation.SILENT,
    Situation.STALLS,
)
async def _silent(setup: ModelSetup) -> None:
    loop = asyncio.get_running_loop()
    reading = loop.create_task(setup.read())
    await asyncio.wait([reading], timeout=_SILENCE)
    assert not reading.done(), f"the provider is silent, and yet the reply ended: {reading!r}"
    reading.cancel()
    await asyncio.wait([reading], timeout=_PROMPT)
    assert reading.done(), f"{_PROMPT} s after the cancel it still reads"
    await setup.check_closed("after a cancel in a silent stream")


# -- errors ----------------------------------------------------------------------------------------------------------


@RULES.rule(
    "a provider that is busy is ModelUnavailable",
    "raise ModelUnavailable(…, retry_after=…) for what is worth another try, before any chunk",
    Situation.BUSY,
)
async def _busy(setup: ModelSetup) -> None:
    chunks, error = await _failing(setup)
    assert not chunks, f"before the error came {chunks!r}"
    assert isinstance(error, ModelUnavailable), f"it raised {error!r}"


@RULES.rule(
    "a connection that breaks is a ModelError",
    "turn the client's own errors into ModelError, after passing on the words that came",
    Situation.BREAKS,
)
async def _broken(setup: ModelSetup) -> None:
    chunks, error = await _failing(setup)
    assert text_of(chunks), "the words that came before the break are lost"
    assert isinstance(error, ModelError), f"it raised {error!r}"


@RULES.rule(
    "a stream that ends early is no complete reply",
    "yield Finish only for the provider's own end mark; otherwise raise a ModelError, or just end",
    Situation.ENDS_EARLY,
)
async def _early(setup: ModelSetup) -> None:
    chunks, error = await _failing(setup)
    assert not any(isinstance(chunk, Finish) for chunk in chunks), "it claims that the reply is complete"
    assert error is None or isinstance(error, ModelError), f"it raised {error!r}"


@RULES.rule("an error closes the connection", "close it in a `finally`, also while connecting", *_FAILURES)
async def _closed_by_error(setup: ModelSetup) -> None:
    await _failing(setup)
    await setup.check_closed("after an error")


class _Leaves(Exception):
    """The reader leaves the stream."""


async def _failing(setup: ModelSetup) -> tuple[list[Chunk], Exception | None]:
    chunks: list[Chunk] = []
    try:
        async with setup.model.stream(REQUEST) as stream:
            async for chunk in stream:
                chunks.append(chunk)
    except Exception as error:
        return chunks, error
    return chunks, None
