"""The facts of a run inside another one as JSON, for a store that keeps them as a list.

Facts with a checkpoint or with the state of a call keep these in their stored form. They omit what only the process
that wrote them needs: how many messages a store may leave out, why the run was stopped, its error.
"""

from __future__ import annotations

from typing import TypeAlias

from safepoint._values import Value
from safepoint.agent.codec import StoredCheckpoint, StoredMemory, from_stored, to_stored
from safepoint.agent.journal import Called, Counted, Ended, Fact, Inside, Opened, Said
from safepoint.agent.ledger import LedgerEntry
from safepoint.agent.stop_reason import StopReason
from safepoint.agent.usage import Usage
from safepoint.history.json_codec import Codec
from safepoint.history.parts import Message


class StoredOpened(Value, frozen=True, tag_field="kind", tag="opened"):
    run_id: str
    agent: str
    index: int
    messages: tuple[Message, ...]
    continues: str | None
    ledger: tuple[LedgerEntry, ...]
    at: float
    base: StoredCheckpoint | None


class StoredCalled(Value, frozen=True, tag_field="kind", tag="called"):
    entry: LedgerEntry
    memory: StoredMemory | None


class StoredEnded(Value, frozen=True, tag_field="kind", tag="ended"):
    run_id: str
    stop_reason: StopReason
    index: int
    messages: tuple[Message, ...]
    ledger: tuple[LedgerEntry, ...]
    usage: Usage
    checkpoint: StoredCheckpoint | None
    at: float


class StoredInside(Value, frozen=True, tag_field="kind", tag="inside"):
    key: str
    fact: StoredFact


StoredFact: TypeAlias = StoredOpened | Said | StoredCalled | Counted | StoredInside | StoredEnded

COUNTED: Codec[Counted] = Codec(Counted)
_FACT: Codec[StoredFact] = Codec(StoredFact)


def encode_fact(fact: Fact) -> bytes:
    return _FACT.encode(_to_stored(fact))


def decode_fact(data: bytes | str) -> Fact:
    """Decode one fact. Raises ValueError."""
    return _from_stored(_FACT.decode(data))


def _to_stored(fact: Fact) -> StoredFact:
    match fact:
        case Opened(run_id, agent, index, messages, continues, ledger, at, base):
            stored = None if base is None else to_stored(base)
            return StoredOpened(run_id, agent, index, messages, continues, ledger, at, stored)
        case Ended(run_id, stop_reason, index, messages, ledger, usage, checkpoint, at):
            stored = None if checkpoint is None else to_stored(checkpoint)
            return StoredEnded(run_id, stop_reason, index, messages, ledger, usage, stored, at)
        case Called(entry, memory):
            return StoredCalled(entry, None if memory is None else StoredMemory.of(memory))
        case Inside(key, inner):
            return StoredInside(key, _to_stored(inner))
        case Said() | Counted():
            return fact


def _from_stored(stored: StoredFact) -> Fact:
    match stored:
        case StoredOpened(run_id, agent, index, messages, continues, ledger, at, base):
            checkpoint = None if base is None else from_stored(base)
            return Opened(run_id, agent, index, messages, continues, ledger, at, checkpoint)
        case StoredEnded(run_id, stop_reason, index, messages, ledger, usage, base, at):
            checkpoint = None if base is None else from_stored(base)
            return Ended(run_id, stop_reason, index, messages, ledger, usage, checkpoint, at)
        case StoredCalled(entry, memory):
            return Called(entry, None if memory is None else memory.restored())
        case StoredInside(key, inner):
            return Inside(key, _from_stored(inner))
        case Said() | Counted():
            return stored
