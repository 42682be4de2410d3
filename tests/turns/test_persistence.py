"""The record of a loop: what is durable when, what a failing store costs, and what comes back."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from safepoint import Agent, SafePoint, TurnLoop, tool
from safepoint.errors import StoreCorrupt, StoreError, UsageError
from safepoint.history.parts import Message, Text
from safepoint.storage.lease import Process, _born  # pyright: ignore[reportPrivateUsage]  # of another process
from safepoint.storage.loop_codec import decode, encode
from safepoint.storage.loop_data import StoredItem, StoredLoop
from safepoint.testing import ScriptedModel, call, pass_time, say, stall
from safepoint.turns import ItemCodec, MemoryTurnStore, Plan, PlanContext, SqliteTurnStore, TurnStore
from tests.injection.parts import StepModel
from tests.turns.parts import ByteStore, Gate, TroubledStore, all_at_once, talker, texts, until
from tests.virtual import now, virtual

KEY: dict[str, Any] = {"checkpoint_id": "loop"}


class Order(BaseModel):
    number: int
    what: str


@dataclass(frozen=True)
class Point:
    x: int
    y: int


async def left_in(store: TurnStore, **options: Any) -> Any:
    loop: TurnLoop[Any] = TurnLoop(talker(), store=store, **options, **KEY)
    loop.stop()
    loop.start()
    return await loop.wait()


@virtual
async def test_an_item_is_durable_once_its_receipt_says_so_and_before_its_turn_begins() -> None:
    store = TroubledStore()
    agent = talker()
    async with TurnLoop(agent, store=store, **KEY) as loop:
        await loop.push("first").saved()
        await until(loop, lambda: model(agent).calls == 1)
        await pass_time(1)
        store.gate = asyncio.Event()
        receipt = loop.push("second")
        await store.waiting.wait()
        await pass_time(5)
        assert model(agent).calls == 1
        store.gate.set()
        await receipt.saved()
        assert texts(store.peek("loop")) == ['"second"']


@virtual
async def test_without_a_store_nothing_is_ever_saved() -> None:
    async with TurnLoop(talker()) as loop:
        with pytest.raises(UsageError, match="no store"):
            await loop.push("x").saved()
    assert (await loop.wait()).checkpoint == "none"


@virtual
async def test_what_waits_comes_back_in_front_of_what_was_pushed_before_the_start() -> None:
    store = MemoryTurnStore()
    loop = TurnLoop(talker(), store=store, **KEY)
    loop.push("one")
    loop.push("two")
    loop.stop()
    loop.start()
    assert (await loop.wait()).checkpoint == "saved"
    agent = talker()
    loop = TurnLoop(agent, store=store, **KEY)
    loop.push("three")
    async with loop:
        await until(loop, lambda: model(agent).calls == 1)
    assert model(agent).requests[0].messages[-1].text == "one\ntwo\nthree"


@virtual
async def test_the_conversation_comes_back_with_the_loop() -> None:
    store = MemoryTurnStore()
    first, second = talker("hello"), talker("again")
    async with TurnLoop(first, store=store, **KEY) as loop:
        loop.push("message 1")
        await until(loop, lambda: model(first).calls == 1)
    async with TurnLoop(second, store=store, **KEY) as loop:
        loop.push("message 2")
        await until(loop, lambda: model(second).calls == 1)
    assert [message.text for message in model(second).requests[0].messages] == ["message 1", "hello", "message 2"]


@virtual
async def test_a_burst_of_pushes_costs_a_few_writes() -> None:
    store = TroubledStore()
    agent = talker()
    async with TurnLoop(agent, store=store, **KEY) as loop:
        for number in range(1000):
            loop.push(str(number))
        await until(loop, lambda: model(agent).calls == 1)
    assert len(store.writes) <= 4


@virtual
async def test_the_record_is_deleted_when_nothing_is_left() -> None:
    store, agent = TroubledStore(), talker()

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        return Plan(None, [])  # everything is dropped

    async with TurnLoop(agent, plan=plan, store=store, **KEY) as loop:
        await loop.push("x").saved()
        loop.stop(idle_for=1)
    assert (await loop.wait()).checkpoint == "none"
    assert await store.load("loop") is None


@virtual
async def test_a_store_that_fails_ends_the_loop_before_a_turn_and_keeps_the_items_in_the_exit_state() -> None:
    store, agent = TroubledStore(), talker()
    loop = TurnLoop(agent, store=store, **KEY)
    loop.start()
    await until(loop, lambda: True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    store.fails = OSError("full")
    receipt = loop.push("first")
    exit = await loop.wait()
    assert (exit.reason, exit.unhandled, model(agent).calls) == ("error", ["first"], 0)
    assert exit.error is exit.checkpoint.error is store.fails
    assert exit.checkpoint == "failed"
    with pytest.raises(OSError, match="full"):
        await receipt.saved()


@virtual
async def test_a_store_that_fails_during_a_turn_ends_the_loop_after_it_and_is_tried_once_more() -> None:
    store, gate = TroubledStore(), Gate()
    loop = TurnLoop(gate.agent(), store=store, **KEY)
    loop.start()
    loop.push("first")
    await gate.reached.wait()
    store.fails = OSError("full")
    loop.push("second")
    await pass_time(1)
    store.fails = None
    gate.opened.set()
    exit = await loop.wait()
    assert isinstance(exit.error, OSError)
    assert (exit.reason, exit.unhandled, exit.checkpoint.state) == ("error", ["second"], "saved")
    assert (await left_in(store)).unhandled == ["second"]


@virtual
async def test_a_store_that_hangs_holds_the_end_no_longer_than_the_cap() -> None:
    for at, seconds in ((None, 10), (SafePoint.NOW, 10), (SafePoint.FORCE, 1)):
        store = TroubledStore()
        loop = TurnLoop(talker(), store=store, **KEY)
        loop.start()
        await loop.push("first").saved()
        store.gate = asyncio.Event()
        loop.push("second")
        await store.waiting.wait()
        begun = now()
        loop.stop(at)
        exit = await loop.wait()
        assert now() - begun <= seconds + 1
        assert exit.checkpoint == "failed"
        assert isinstance(exit.checkpoint.error, StoreError)
        assert "second" in exit.unhandled


@virtual
async def test_a_load_that_hangs_is_cut_by_now_and_its_record_is_left_alone() -> None:
    store = TroubledStore()
    kept = encode(StoredLoop((StoredItem(1, '"as it was"'),), last=1))
    await store.save("loop", kept)
    store.gate = asyncio.Event()
    loop = TurnLoop(talker(), store=store, **KEY)
    loop.push("first")
    loop.start()
    await store.waiting.wait()
    loop.stop(SafePoint.NOW)
    exit = await loop.wait()
    assert (exit.unhandled, exit.checkpoint.state) == (["first"], "failed")
    store.gate = None
    assert await store.load("loop") == kept


@virtual
async def test_skip_checkpoint_is_sticky_and_the_turn_that_was_cut_begins_anew() -> None:
    store = MemoryTurnStore()
    reached = asyncio.Event()
    agent = Agent("stuck", model=ScriptedModel(stall(on_reached=reached.set)))
    loop = TurnLoop(agent, store=store, **KEY)
    loop.start()
    loop.push("first")
    await reached.wait()
    loop.push("second")
    loop.stop(skip_checkpoint=True)
    loop.stop(SafePoint.NOW)
    exit = await loop.wait()
    assert (exit.checkpoint.state, exit.interrupted, exit.unhandled) == ("skipped", ["first"], ["second"])
    again = await left_in(store)
    assert (again.interrupted, again.unhandled) == ([], ["first", "second"])


@virtual
async def test_skip_checkpoint_leaves_alone_what_an_earlier_loop_has_left() -> None:
    store, gate = MemoryTurnStore(), Gate()
    loop = TurnLoop(gate.agent(), store=store, **KEY)
    loop.start()
    loop.push("first")
    await gate.reached.wait()
    loop.stop(SafePoint.NOW)
    await loop.wait()
    loop = TurnLoop(gate.agent(), store=store, **KEY)
    loop.stop(skip_checkpoint=True)
    loop.start()
    assert (await loop.wait()).checkpoint == "skipped"
    assert (await left_in(store)).interrupted == ["first"]


@virtual
async def test_a_turn_that_is_cut_can_go_on_and_is_saved_with_its_items() -> None:
    store, gate = MemoryTurnStore(), Gate()
    loop = TurnLoop(gate.agent(), store=store, **KEY)
    loop.start()
    loop.push("first")
    await gate.reached.wait()
    loop.stop(SafePoint.NOW)
    exit = await loop.wait()
    assert (exit.checkpoint.state, exit.interrupted) == ("saved", ["first"])
    resumed = Agent("desk", model=ScriptedModel(say("told that the gate was cut")), tools=[gate.tool])
    async with TurnLoop(resumed, store=store, **KEY) as loop:
        await until(loop, lambda: model(resumed).calls == 1)
    assert model(resumed).requests[0].messages[-1].role == "tool"
    assert (await left_in(store)).interrupted == []


@virtual
async def test_a_turn_that_is_stopped_again_goes_on_from_where_it_came_to() -> None:
    store = MemoryTurnStore()
    done: list[int] = []
    loops: list[TurnLoop[str]] = []

    @tool
    async def step(number: int) -> int:
        """One step, and then the loop is stopped."""
        done.append(number)
        loops[-1].stop(SafePoint.AFTER_TOOLS)
        return number

    model = StepModel(*(call("step", number=number) for number in range(3)), say("done"))
    agent = Agent("walker", model=model, tools=[step])
    for number in range(4):
        loops.append(TurnLoop(agent, store=store, **KEY))
        if number == 0:
            loops[-1].push("go")
        loops[-1].start()
        if number == 3:
            loops[-1].stop(idle_for=1)
        exit = await loops[-1].wait()
        assert exit.interrupted == (["go"] if number < 3 else [])
    assert done == [0, 1, 2]


@virtual
async def test_nothing_is_accepted_while_the_end_is_saved() -> None:
    store = TroubledStore()
    gates: list[asyncio.Event] = []

    def plan(ctx: PlanContext[str], items: list[str]) -> Plan[str]:
        store.gate = asyncio.Event()
        gates.append(store.gate)
        ctx.loop.push("second")  # there is something to write at the end
        raise KeyError("no plan")

    loop = TurnLoop(talker(), plan=plan, store=store, **KEY)
    loop.start()
    await loop.push("first").saved()
    await store.waiting.wait()
    assert not loop.push("third").accepted
    gates[0].set()
    assert (await loop.wait()).unhandled == ["first", "second"]
    assert loop.take_late_items() == ["third"]


@virtual
async def test_a_turn_of_another_agent_is_refused_and_kept() -> None:
    store, gate = MemoryTurnStore(), Gate()
    loop = TurnLoop(gate.agent(), store=store, **KEY)
    loop.start()
    loop.push("first")
    await gate.reached.wait()
    loop.stop(SafePoint.NOW)
    await loop.wait()
    loop = TurnLoop(talker(), store=store, **KEY)
    loop.start()
    exit = await loop.wait()
    assert (exit.reason, exit.interrupted) == ("error", ["first"])
    assert (await left_in(store)).interrupted == ["first"]


# -- items of other types --------------------------------------------------------------------------------------------


@virtual
async def test_items_of_other_types_come_back_through_their_codec() -> None:
    cases: list[tuple[ItemCodec[Any], Any]] = [
        (ItemCodec.of(Order), Order(number=1, what="tea")),
        (ItemCodec.of(Point), Point(1, 2)),
        (ItemCodec(lambda number: hex(number), lambda text: int(text, 16)), 255),
        (ItemCodec.plain(), {"a": [1, None, "b\udc80"]}),
    ]
    for codec, item in cases:
        store, found = MemoryTurnStore(), list[Any]()
        for _ in range(2):
            loop: TurnLoop[Any] = TurnLoop(talker(), plan=all_at_once, store=store, codec=codec, **KEY)
            loop.push(item)
            loop.stop()
            loop.start()
            exit = await loop.wait()
            assert exit.checkpoint == "saved"
            found = exit.unhandled
        assert found == [item, item]


@virtual
async def test_an_item_whose_type_has_no_codec_is_refused_at_the_push_and_is_not_late() -> None:
    agent = talker()
    async with TurnLoop(agent, plan=all_at_once, store=MemoryTurnStore(), **KEY) as loop:
        for item, name in ((object(), "object"), ((1, 2), "tuple"), (Order(number=1, what="tea"), "Order")):
            receipt = loop.push(item)
            assert not receipt.accepted
            assert f"type {name} has no codec" in str(receipt.error)
            assert "ItemCodec.of" in str(receipt.error)
            assert (await receipt.saved()).state == "refused"
            assert await receipt.result() == "refused"
    exit = await loop.wait()
    assert (exit.unhandled, exit.failed, exit.checkpoint.state, model(agent).calls) == ([], [], "none", 0)
    assert loop.take_late_items() == []


@virtual
async def test_an_item_of_another_type_than_the_codec_was_made_for_is_refused_at_the_push() -> None:
    codec: ItemCodec[Any] = ItemCodec.of(Order)
    loop: TurnLoop[Any] = TurnLoop(talker(), plan=all_at_once, store=MemoryTurnStore(), codec=codec, **KEY)
    receipt = loop.push("tea")
    assert not receipt.accepted
    assert "type str has no codec" in str(receipt.error)
    assert loop.push(Order(number=1, what="tea")).accepted
    loop.stop()
    loop.start()
    assert (await loop.wait()).unhandled == [Order(number=1, what="tea")]


@virtual
async def test_a_value_that_cannot_be_written_is_not_run_and_is_in_failed() -> None:
    store, agent = MemoryTurnStore(), talker()
    broken: list[Any] = ["tea", object()]
    async with TurnLoop(agent, plan=all_at_once, store=store, **KEY) as loop:
        receipt = loop.push(broken)
        assert receipt.accepted  # a list has a codec; what is in it is not known before it is written
        with pytest.raises(StoreError, match="can't be saved"):
            await receipt.saved()
        assert await receipt.result() == "failed"
        assert await loop.push("fine").saved() == "saved"
    exit = await loop.wait()
    ((items, error, checkpoint),) = exit.failed
    assert (items, checkpoint) == ((broken,), None)
    assert isinstance(error, StoreError)
    assert (exit.unhandled, exit.checkpoint.state) == ([], "failed")
    assert [message.text for message in model(agent).requests[0].messages] == ["fine"]


def test_a_record_is_read_as_it_was_written_or_not_at_all() -> None:
    stored = StoredLoop((StoredItem(1, '"a"'), StoredItem(2, '"b"')), (), (Message("user", (Text("hi"),)),), 2)
    data = encode(stored)
    assert decode(data) == stored
    for broken in (b"", b"x", data[:-1], data.replace(b"turns 3 ", b"turns 4 "), data.replace(b"hi", b"ho")):
        with pytest.raises(StoreCorrupt):
            decode(broken)


@virtual
async def test_a_record_whose_items_the_codec_refuses_is_left_as_it_is() -> None:
    store = MemoryTurnStore()
    kept = encode(StoredLoop((StoredItem(1, '"a"'),), last=1))
    await store.save("loop", kept)
    codec: ItemCodec[Any] = ItemCodec.of(Order)
    loop: TurnLoop[Any] = TurnLoop(talker(), plan=all_at_once, store=store, codec=codec, **KEY)
    loop.start()
    assert isinstance((await loop.wait()).error, StoreCorrupt)
    assert await store.load("loop") == kept


VERSION_1 = Path(__file__).parent / "record_1.bin"
"""Written by the first version: a turn of `first` that was stopped in a tool, and `second` that waits."""


@pytest.mark.parametrize("kind", ["memory", "sqlite", "bytes"])
def test_a_record_of_the_first_version_is_read_and_brought_up_to_date(kind: str, tmp_path: Path) -> None:
    data = VERSION_1.read_bytes()

    @virtual
    async def body() -> None:
        store: MemoryTurnStore | SqliteTurnStore | ByteStore
        if kind == "bytes":
            store = ByteStore()
            store.records["loop"] = data
        elif kind == "memory":
            store = MemoryTurnStore()
            await store.save("loop", data)
        else:
            store = SqliteTurnStore(tmp_path / "loop.db")
            await store.load("loop")  # makes the file
            fill = "INSERT INTO turn_loops VALUES ('loop', ?)"
            spoil(tmp_path / "loop.db", fill, data)
        resumed = Agent("desk", model=ScriptedModel(say("went on"), say("and on")), tools=[Gate().tool])
        async with TurnLoop(resumed, store=store, **KEY):
            pass
        told = [message.text for message in model(resumed).requests[1].messages if message.role == "user"]
        assert told == ["first", "second"]
        assert (await left_in(store)).interrupted == []
        if isinstance(store, SqliteTurnStore):
            await store.aclose()

    body()


@virtual
async def test_a_subclass_that_overrides_save_is_asked_to_save() -> None:
    saved: list[bytes] = []

    class Watched(MemoryTurnStore):
        async def save(self, id: str, record: bytes) -> None:
            saved.append(record)
            await super().save(id, record)

    store = Watched()
    loop = TurnLoop(talker(), store=store, **KEY)
    loop.push("one")
    loop.stop()
    loop.start()
    assert (await loop.wait()).checkpoint == "saved"
    assert texts(decode(saved[-1])) == ['"one"']


@virtual
async def test_a_record_in_a_sqlite_file_outlives_its_store(tmp_path: Path) -> None:
    found: list[str] = []
    for _ in range(2):
        store = SqliteTurnStore(tmp_path / "loop.db")
        loop = TurnLoop(talker(), store=store, **KEY)
        loop.push("one")
        loop.stop()
        loop.start()
        found = (await loop.wait()).unhandled
        await store.aclose()
    assert found == ["one", "one"]
    store = SqliteTurnStore(tmp_path / "loop.db")
    await store.delete("loop")
    await store.delete("loop")
    assert await store.load("loop") is None
    await store.aclose()
    assert (tmp_path / "loop.db").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="above 0"):
        SqliteTurnStore(tmp_path / "loop.db", timeout=0)


def model(agent: Agent) -> ScriptedModel:
    found = agent.models[0]
    assert isinstance(found, ScriptedModel)
    return found


def a_store(kind: str, folder: Path) -> MemoryTurnStore | SqliteTurnStore:
    return MemoryTurnStore() if kind == "memory" else SqliteTurnStore(folder / "loop.db")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_second_loop_with_the_same_id_is_refused_and_disturbs_nothing(kind: str, tmp_path: Path) -> None:
    @virtual
    async def body() -> None:
        store, agent = a_store(kind, tmp_path), talker("one", "two")
        async with TurnLoop(agent, store=store, **KEY) as first:
            await first.push("mine").saved()
            await until(first, lambda: model(agent).calls == 1)
            await pass_time(1)
            before = await store.load("loop")
            second = TurnLoop(talker(), store=store, **KEY)
            second.push("yours")
            second.start()
            exit = await second.wait()
            assert exit.reason == "error"
            assert "another loop uses the record 'loop' in this process" in str(exit.error)
            assert (exit.unhandled, exit.checkpoint.state) == (["yours"], "failed")
            assert await store.load("loop") == before
            other = TurnLoop(talker(), store=store, checkpoint_id="other")
            other.stop()
            other.start()
            assert (await other.wait()).reason == "clean"
        assert (await left_in(store)).reason == "clean"
        if isinstance(store, SqliteTurnStore):
            await store.aclose()

    body()


def spoil(path: Path, change: str, *values: object) -> None:
    with sqlite3.connect(path) as db:
        assert db.execute(change, values).rowcount == 1
    db.close()


def test_a_loop_that_was_taken_for_dead_cannot_replace_what_its_successor_has_saved(tmp_path: Path) -> None:
    @virtual
    async def body() -> None:
        store = SqliteTurnStore(tmp_path / "loop.db")
        loop = TurnLoop(talker(), store=store, **KEY)
        loop.start()
        await loop.push("one").saved()
        spoil(tmp_path / "loop.db", "UPDATE turn_claims SET claimant = 'somebody else', epoch = epoch + 1")
        before = await store.load("loop")
        with suppress(StoreError):  # unless the loop has noticed it before, and is over
            await loop.push("two").saved()
        exit = await loop.wait()
        assert (exit.reason, exit.checkpoint.state) == ("error", "failed")
        assert "another loop has taken the record 'loop' over" in str(exit.error)
        assert await store.load("loop") == before
        with pytest.raises(StoreError, match="another loop uses"):
            await store.claim("loop", "a third one")
        await store.aclose()

    body()


def test_a_record_is_free_when_the_process_of_its_loop_is_gone_and_not_before(tmp_path: Path) -> None:
    path, other = tmp_path / "loop.db", uuid.uuid4().hex
    parent = replace(Process.current(), pid=os.getppid(), born=_born(os.getppid()))

    @virtual
    async def body() -> None:
        store = SqliteTurnStore(path)
        await store.claim("loop", "another")
        spoil(path, "UPDATE turn_claims SET owner = ?", other)
        spoil(path, "INSERT INTO workers (id, process, counter) VALUES (?, ?, 0)", other, str(parent))
        exit = await left_in(store)
        assert f"in process {parent.pid}" in str(exit.error)
        spoil(path, "UPDATE turn_claims SET owner = 'rubbish'")
        assert isinstance((await left_in(store)).error, StoreCorrupt)
        spoil(path, "UPDATE turn_claims SET owner = ?", other)
        spoil(path, "UPDATE workers SET process = ? WHERE id = ?", str(replace(parent, born="long ago")), other)
        assert (await left_in(store)).reason == "clean"
        await store.aclose()

    body()
