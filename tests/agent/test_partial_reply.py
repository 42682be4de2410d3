"""A reply while it comes in."""

from __future__ import annotations

from typing import NoReturn

from safepoint.agent.model import CallDelta, Finish
from safepoint.agent.partial_reply import PartialReply


class Piece(str):
    """A piece of text that can be joined with all others at once, and not added to what came before."""

    __slots__ = ()

    def __radd__(self, before: str) -> NoReturn:
        raise AssertionError(f"{str(self)!r} was added to {before!r}: a call of n pieces would cost n * n")


def test_a_call_in_many_pieces_is_joined_once() -> None:
    incoming = PartialReply()
    incoming.add(CallDelta(0, "a", "write", Piece('{"text": "')))
    for _ in range(1000):
        incoming.add(CallDelta(0, arguments=Piece("word ")))
    incoming.add(CallDelta(0, arguments=Piece('"}')))
    incoming.add(Finish("tool_calls"))
    reply = incoming.reply(frozenset())
    assert reply is not None
    assert reply.tool_calls[0].args == {"text": "word " * 1000}
