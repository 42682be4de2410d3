"""The part of a long conversation that a model sees: `Agent(…, trim=keep_last(20))`, or a function of your own.

A trim takes the messages and returns the ones to send. It changes only what the model sees: the run's history, its
checkpoint and its session keep every message. It must return a conversation that providers take. That is checked before
anything is sent: a provider would refuse a call without its result, or do something worse.

An async trim is part of the run's work, so NOW cuts it where it waits. A sync trim runs on the loop, like a sync hook,
so it must be short.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from safepoint.errors import HistoryError
from safepoint.history.check import check_history
from safepoint.history.estimate import price_messages
from safepoint.history.parts import Message

Trim: TypeAlias = Callable[[list[Message]], Sequence[Message] | Awaitable[Sequence[Message]]]
_Block: TypeAlias = tuple[Message, ...]


def keep_last(messages: int) -> Trim:
    """Keep about this many of the last messages: calls stay with their results, and a user's message comes first.

    The last step, and the user's message that it answers, are always kept.
    """
    if not _is_count(messages):
        raise ValueError(f"keep_last({messages!r}): write a number of messages, from 1 up")
    return lambda conversation: _kept(conversation, messages, len)


def keep_tokens(tokens: int) -> Trim:
    """Keep as many of the last messages as cost about this many tokens, by the estimate that budgets use.

    Otherwise as `keep_last`. Instructions and tools do not count: they are always sent.
    """
    if not _is_count(tokens):
        raise ValueError(f"keep_tokens({tokens!r}): write a number of tokens, from 1 up")
    return lambda conversation: _kept(
        conversation, 100 * tokens + 49, price_messages
    )  # the highest price that rounds to it


def checked_trim(trim: Trim | None) -> Trim | None:
    if trim is not None and not callable(trim):
        raise ValueError(f"trim={trim!r}: write trim=keep_last(20), or a function that takes the messages")
    return trim


async def trimmed(trim: Trim, messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages for the model. Cancellation: cuts an async trim where it waits; nothing is sent yet."""
    made = trim(list(messages))
    shown = await made if inspect.isawaitable(made) else made
    try:
        check_history(shown)
    except HistoryError as error:
        raise HistoryError(f"trim returned what no provider takes: {error}. Keep each call with its result") from error
    if not shown or shown[-1].role == "assistant":
        raise HistoryError(
            "trim left the model nothing to answer: keep the last message, which is a user's or a tool's"
        )
    return tuple(shown)


def _kept(messages: Sequence[Message], limit: int, cost: Callable[[_Block], int]) -> list[Message]:
    blocks = _blocks(messages)
    kept: list[_Block] = []
    spent = 0
    for block in reversed(blocks):
        spent += cost(block)
        if kept and spent > limit:
            break
        kept.append(block)
    kept.reverse()
    said = [place for place, block in enumerate(kept) if block[0].role == "user"]
    # In the middle of one long turn, the model still needs the message that began it.
    kept = kept[said[0] :] if said else [*_last_said(blocks), *kept]
    return [message for block in kept for message in block]


def _blocks(messages: Sequence[Message]) -> list[_Block]:
    """The units that must stay together: a message, or calls and their results."""
    blocks: list[_Block] = []
    for message in messages:
        if message.role == "tool" and blocks:
            blocks[-1] = (*blocks[-1], message)
        else:
            blocks.append((message,))
    return blocks


def _last_said(blocks: list[_Block]) -> list[_Block]:
    return [block for block in blocks if block[0].role == "user"][-1:]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
