"""What is particular to PostgreSQL: order under cancellation, transactions, strings, addresses, the schema."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from safepoint import Agent
from safepoint.agent.journal import Said
from safepoint.errors import SessionBusy, StoreError, Superseded
from safepoint.history.parts import user_message
from safepoint.sessions.session import Session
from safepoint.storage import operations as op
from safepoint.storage.postgres import schema
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.storage.postgres.text_codec import escape, unescape
from safepoint.storage.run_records import RunState
from safepoint.storage.session_data import LateResult, StateSet
from safepoint.testing import ScriptedModel, say
from safepoint.testing.conformance.storage_maker import record
from tests.storage.postgres.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres

ODD = ["", "\0", "\0\0", "\1", "\1\1", "a", "a\0", "a\1", "é", "\ud7ff", "\ud7ff\1", "\ud800", "\udfff", "\ue000", "😀"]


def stored(url: str, body: Callable[[PostgresStorage], Awaitable[None]], **options: float) -> None:
    async def main() -> None:
        storage = PostgresStorage(url, **options)  # type: ignore[arg-type]  # numbers only
        try:
            await body(storage)
        finally:
            await storage.aclose()

    asyncio.run(main())


def sql(url: str, text: str, *given: object) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text.encode(), given or None)
        return cursor.fetchall() if cursor.description else []


# -- strings -----------------------------------------------------------------------------------------------------------


def test_escaped_strings_come_back_and_sort_as_python_sorts_them() -> None:
    pairs = [one + other for one in ODD for other in ODD]
    assert [unescape(escape(each)) for each in pairs] == pairs
    assert sorted(pairs, key=escape) == sorted(pairs)
    assert not any(b"\0" in escape(each).encode() for each in pairs)
    assert all(escape(one + other) == escape(one) + escape(other) for one in ODD for other in ODD)


def test_any_string_survives_as_an_id_a_state_a_message_and_a_late_result(url: str) -> None:
    async def body(storage: PostgresStorage) -> None:
        ids = [id for id in ODD if id]
        for id in ids:
            await storage.sessions.create(id, {"text": id, id: 1})
            epoch = await storage.sessions.claim(id, id)
            said = user_message(f"hello {id}")
            await storage.sessions.append(id, epoch, [Said(0, said)])
            await storage.sessions.add_late(id, LateResult(id, id, id))
            found = await storage.sessions.load(id)
            assert (found.state, found.messages, found.late) == (
                {"text": id, id: 1},
                (said,),
                (LateResult(id, id, id),),
            )
        assert await storage.sessions.list_ids() == sorted(ids)
        assert await storage.sessions.list_ids("a") == ["a", "a\0", "a\1"]

    stored(url, body)


def test_a_string_of_eight_megabytes_survives(url: str) -> None:
    long = "x\0é\ud800" * (2 << 20)

    async def body(storage: PostgresStorage) -> None:
        await storage.sessions.create("s", {"long": long})
        assert (await storage.sessions.load("s")).state == {"long": long}

    stored(url, body)


# -- order -------------------------------------------------------------------------------------------------------------


def test_calls_take_effect_in_their_order_also_when_callers_were_cancelled(url: str) -> None:
    async def body(storage: PostgresStorage) -> None:
        await storage.sessions.create("s", {})
        for number in range(30):
            claim = asyncio.ensure_future(storage.sessions.claim("s", "me"))
            await asyncio.sleep(0)
            claim.cancel()
            release = asyncio.ensure_future(storage.sessions.release("s", "me"))
            await asyncio.sleep(0)
            release.cancel()
            await storage.sessions.claim("s", f"another {number}")  # the release did not overtake its claim
            await storage.sessions.release("s", f"another {number}")

    stored(url, body)


def test_a_read_sees_what_a_cancelled_caller_has_written(url: str) -> None:
    async def body(storage: PostgresStorage) -> None:
        await storage.sessions.create("s", {})
        epoch = await storage.sessions.claim("s", "me")
        for number in range(20):
            write = asyncio.ensure_future(storage.sessions.append("s", epoch, [StateSet({"n": number})]))
            await asyncio.sleep(0)
            write.cancel()
            assert (await storage.sessions.load("s")).state == {"n": number}

    stored(url, body)


def test_a_move_waits_for_the_accept_of_its_run_and_an_accept_for_the_end_before_it(url: str) -> None:
    async def body(storage: PostgresStorage) -> None:
        for number in range(20):
            id = f"run_{number}"
            accept = asyncio.ensure_future(storage.commit(op.AcceptRun(record(storage, id), 0.0, only_first=True)))
            await asyncio.sleep(0)
            accept.cancel()
            end = asyncio.ensure_future(storage.runs.move(id, RunState.ENDED, epoch=0))
            await asyncio.sleep(0)
            end.cancel()
        found = await storage.runs.find()
        assert [each.state for each in found] == [RunState.ENDED] * 20

    stored(url, body)


def test_units_of_one_pass_of_the_loop_for_one_session_are_one_transaction_and_fail_alone(url: str) -> None:
    async def body(storage: PostgresStorage) -> None:
        await storage.sessions.create("s", {})
        epoch = await storage.sessions.claim("s", "me")
        before = storage.transactions
        done = await asyncio.gather(
            storage.sessions.append("s", epoch, [StateSet({"n": 1})]),
            storage.sessions.append("s", epoch - 1, [StateSet({"n": 2})]),
            storage.sessions.claim("s", "another"),
            storage.sessions.append("s", epoch, [StateSet({"n": 3})]),
            return_exceptions=True,
        )
        assert storage.transactions - before == 1
        assert [type(each) for each in done] == [type(None), Superseded, SessionBusy, type(None)]
        assert (await storage.sessions.load("s")).state == {"n": 3}

    stored(url, body)


def test_a_storage_is_used_from_several_loops(url: str) -> None:
    storage = PostgresStorage(url)
    for number in range(3):
        asyncio.run(storage.sessions.create(f"s{number}", {}))
    assert asyncio.run(storage.sessions.list_ids()) == ["s0", "s1", "s2"]
    asyncio.run(storage.aclose())


# -- transactions ------------------------------------------------------------------------------------------------------


def commits(url: str) -> int:
    """As the database counts them."""
    sql(url, "SELECT pg_stat_force_next_flush()")
    [(found,)] = sql(url, "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
    assert isinstance(found, int)
    return found


def test_a_plain_run_is_two_transactions_as_the_database_counts_them(url: str) -> None:
    runs = 20

    async def body(storage: PostgresStorage) -> None:
        session = await Session.create(storage, "s")
        agent = Agent("worker", model=ScriptedModel(say("done"), repeat=True))
        for _ in range(runs):
            await agent.run("hi", session=session)

    async def nothing(storage: PostgresStorage) -> None:
        await Session.create(storage, "t")

    before = commits(url)
    stored(url, nothing)
    between = commits(url)
    stored(url, body)
    assert commits(url) - between - (between - before) == 2 * runs + 1  # and the worker that retires


# -- addresses and schema ----------------------------------------------------------------------------------------------


def refused(address: str) -> str:
    async def main() -> str:
        storage = PostgresStorage(address)
        try:
            with pytest.raises(StoreError) as told:
                await storage.check()
        finally:
            await storage.aclose()
        return str(told.value)

    text = asyncio.run(main())
    assert "\n" not in text
    assert "secret" not in text
    return text


def test_a_database_that_cannot_be_used_is_told_in_one_line(server: PostgresServer, url: str) -> None:
    empty = server.new_database()
    assert refused(empty) == "the database has no tables of Safepoint yet: run `safepoint db upgrade`"
    assert "Connection refused" in refused("postgresql://safepoint:secret@127.0.0.1:1/postgres")
    assert 'database "no_such" does not exist' in refused(server.url("no_such"))
    sql(url, "UPDATE safepoint.schema_version SET version = 99")
    assert "has version 99 of the tables, this Safepoint has 4: update it" in refused(url)
    sql(url, "UPDATE safepoint.schema_version SET version = 0")
    assert refused(url).endswith("run `safepoint db upgrade`")


def test_a_role_without_rights_and_a_read_only_database_are_told_in_one_line(server: PostgresServer, url: str) -> None:
    sql(url, "DROP ROLE IF EXISTS guest")
    sql(url, "CREATE ROLE guest LOGIN")
    assert "permission denied" in refused(url.replace("safepoint@", "guest@"))
    name = url.rpartition("/")[2]
    sql(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    assert refused(url) == "the database is a read-only replica: give the address of its primary"


def test_another_isolation_level_is_refused(url: str) -> None:
    sql(url, f"ALTER DATABASE {url.rpartition('/')[2]} SET default_transaction_isolation = 'serializable'")

    async def body(storage: PostgresStorage) -> None:
        with pytest.raises(StoreError, match="read committed"):
            await storage.sessions.create("s", {})

    stored(url, body)


def test_an_address_that_cannot_be_read_is_refused_without_showing_it() -> None:
    with pytest.raises(StoreError) as told:
        PostgresStorage("postgresql://me:secret@[host/x?y=z")
    assert str(told.value) == "the address can't be read: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"


def test_the_address_is_never_logged_and_one_that_is_not_verified_gives_a_warning(
    caplog: pytest.LogCaptureFixture, url: str
) -> None:
    caplog.set_level(logging.DEBUG)
    far = PostgresStorage("postgresql://me:secret@db.example/x")
    assert "sslmode=verify-full" in caplog.text
    caplog.clear()
    PostgresStorage("postgresql://me:secret@db.example/x?sslmode=verify-full")
    PostgresStorage(url)
    assert caplog.text == ""
    assert "secret" not in repr(far)


def test_an_upgrade_may_be_repeated_and_run_by_many_at_once(server: PostgresServer) -> None:
    address = server.new_database()

    async def main() -> None:
        assert (await schema.status(address)).version is None
        done = await asyncio.gather(*(schema.upgrade(address) for _ in range(4)))
        assert all(each.is_current for each in done)
        assert (await schema.status(address)).is_current

    asyncio.run(main())


def test_the_sql_of_an_upgrade_makes_the_same_schema(server: PostgresServer) -> None:
    address = server.new_database()
    sql(address, schema.upgrade_sql())
    assert asyncio.run(schema.status(address)).is_current

    async def body(storage: PostgresStorage) -> None:
        await storage.sessions.create("s", {})

    stored(address, body)


def test_pruning_deletes_old_sessions_in_batches_and_leaves_open_runs_alone(url: str) -> None:
    async def body(storage: PostgresStorage) -> None:
        for number in range(25):
            await storage.sessions.create(f"old {number:02}", {})
        await storage.runs.accept(record(storage, "run_1", "old 03"), since=0)
        await storage.sessions.claim("old 04", "me")
        sql(url, "UPDATE safepoint.sessions SET changed_at = clock_timestamp() - interval '91 days'")
        await storage.sessions.create("new", {})
        assert await schema.prune(url, older_than=90 * 86400, batch=7) == 23
        assert await storage.sessions.list_ids() == ["new", "old 03", "old 04"]

    stored(url, body)


def test_the_cost_of_a_write_does_not_grow_with_the_history(url: str) -> None:
    """Counted in pages that the database looks at, not in time."""

    def pages() -> int:
        sql(url, "SELECT pg_stat_force_next_flush()")
        [(found,)] = sql(
            url, "SELECT sum(blks_hit + blks_read)::bigint FROM pg_stat_database WHERE datname = current_database()"
        )
        assert isinstance(found, int)
        return found

    def cost(id: str) -> int:
        async def body(storage: PostgresStorage) -> None:
            for _ in range(10):
                epoch = await storage.sessions.claim(id, "me")
                await storage.sessions.append(id, epoch, [StateSet({"n": 1})])

        before = pages()
        stored(url, body)
        return pages() - before

    async def fill(storage: PostgresStorage) -> None:
        for id in ("short", "long"):
            await storage.sessions.create(id, {})
        sql(
            url,
            "INSERT INTO safepoint.messages SELECT 'long', n, '{}', 0 FROM generate_series(0, 20000) n",
        )
        sql(
            url,
            "INSERT INTO safepoint.runs (session, number, run_id, agent, place, ended, state_before, origin) "
            "SELECT 'long', n, 'run' || n, 'a', n, true, '{}', 'run' || n FROM generate_series(1, 20000) n",
        )
        sql(url, "ANALYZE")

    stored(url, fill)
    cost("short")
    assert cost("long") <= 2 * cost("short")
