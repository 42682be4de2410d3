"""What a change does to a stored session, as far as no store is needed to see it."""

from __future__ import annotations

from safepoint import Checkpoint, Message, StopReason, Text, Usage
from safepoint.agent.journal import Ended, Opened, Said
from safepoint.sessions.store import Change, StateSet, Stored
from safepoint.storage.reducer import mark_known


def test_what_a_checkpoint_shares_with_its_session_is_known_only_if_it_is_the_same() -> None:
    ask, answer, other = (Message("user", (Text("ask"),)), Message("assistant", (Text("answer"),)), Message("user", ()))
    stored = Stored((ask, answer), {})
    own = (ask, answer)

    def known(messages: tuple[Message, ...], *before: Change) -> int:
        checkpoint = Checkpoint("c", "a", "r", StopReason.CANCELLED, messages, messages)
        ended = Ended("r", StopReason.CANCELLED, 2, own, (), Usage(), checkpoint)
        opened = Opened("r", "a", 2, own, "c", base=checkpoint)
        [*_, seen] = mark_known(stored, [*before, ended])
        [*_, begun] = mark_known(stored, [*before, opened])
        assert isinstance(seen, Ended)
        assert isinstance(begun, Opened)
        assert begun.known == min(seen.known, 2)  # from there on a run that goes on changes the conversation
        return seen.known

    assert known((ask, answer, *own)) == 4
    assert known((ask, answer, ask, other)) == 2
    assert known((ask, other, *own)) == 0
    assert known((ask,)) == 0
    assert known((ask, answer, *own), StateSet({})) == 4
    assert known((ask, answer, *own), Said(1, other)) == 0
