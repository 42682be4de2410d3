"""One fault at a time, between real servers and a real database: who goes on, who stops, and what is told."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from safepoint.storage.postgres.schema import upgrade
from safepoint.storage.run_records import RunRecord
from tests.cluster.workers import (
    Moment,
    broken_histories,
    moments,
    open_runs,
    records,
    repeated,
    silence_pushes,
    sql,
    worker,
)
from tests.server.server_process import PATIENCE, Later, ServerProcess, message, session_path
from tests.server.test_namespaces import CONTAINER
from tests.storage.postgres.postgres_server import PostgresServer
from tests.storage.postgres.tcp_proxy import TcpProxy
from tests.storage.postgres.test_lost_answers import answers

pytestmark = pytest.mark.postgres

LEASE = 2.0  # a busy machine may renew one of 1 s too late, and then there are more take-overs than the fault made
SLACK = 0.4  # the specified times are those of a quiet machine


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def until_there_is(folder: Path, what: str) -> Moment:
    until(lambda: any(each.what == what for each in moments(folder)))
    return next(each for each in moments(folder) if each.what == what)


def send(server: ServerProcess, name: str, seconds: float) -> None:
    """A run of three effects that take so long each; it is live when this returns."""
    server.post(session_path(name, app="chain"))
    body = message(name, f"chain {name} {seconds}", appName="chain", onDisconnect="detach")
    connection = server.begin("POST", "/run_sse", body)
    assert connection.status == 200
    connection.close()


def all_over(url: str) -> list[RunRecord]:
    until(lambda: not open_runs(url))
    return records(url)


def effects(folder: Path) -> list[Moment]:
    return [each for each in moments(folder) if not each.what.endswith("cut")]


def check_taken_over_once(folder: Path, url: str, names: Sequence[str], old: int, since: float, *, back: float) -> None:
    """Each run went on at another worker, once, and the old one has started nothing since 2/3 of its lease."""
    found = all_over(url)
    assert {record.outcome for record in found} == {"end_turn"}
    # One epoch to free a run of its dead owner, and one to take it.
    assert {record.epoch for record in found} in ({1}, {2}), "taken over more than once, or not at all"
    done = effects(folder)
    assert repeated([each.what for each in done]) == []
    assert sorted(each.what for each in done) == sorted(f"{name} {step}" for name in names for step in range(3))
    late = [each for each in done if each.pid == old and each.at > since + LEASE * 2 / 3 + SLACK]
    assert late == [], f"the fault was from {since} to {back}"
    assert broken_histories(url) == []


def test_a_worker_that_cannot_reach_the_database_for_two_leases_loses_its_runs_once(
    tmp_path: Path, database: PostgresServer, url: str
) -> None:
    with TcpProxy(database.port).running() as proxy:
        through = database.url(url.rpartition("/")[2], proxy.port)
        here = worker(tmp_path, through, "--deadline", "1", "--patience", "2", "--lease", str(LEASE))
        with here, worker(tmp_path, url, "--lease", str(LEASE)):
            names = [f"cut{number}" for number in range(6)]
            for number, name in enumerate(names):
                send(here, name, 1.0 + number / 5)
            until(lambda: len(effects(tmp_path)) >= len(names))
            assert here.process is not None
            old, since = here.process.pid, time.monotonic()
            proxy.silent = True
            time.sleep(2 * LEASE)
            proxy.silent = False
            proxy.cut_all()
            check_taken_over_once(tmp_path, url, names, old, since, back=time.monotonic())
            send(here, "after", 0.05)  # and it works again
            assert all_over(url)


def test_a_worker_that_stands_still_for_three_leases_starts_nothing_when_it_goes_on(tmp_path: Path, url: str) -> None:
    here = worker(tmp_path, url, "--lease", str(LEASE))
    with here, worker(tmp_path, url, "--lease", str(LEASE)):
        names = [f"still{number}" for number in range(12)]
        for number, name in enumerate(names):
            send(here, name, 1.0 + number / 5)
        until(lambda: len(effects(tmp_path)) >= len(names))
        assert here.process is not None
        old, since = here.process.pid, time.monotonic()
        here.process.send_signal(signal.SIGSTOP)
        time.sleep(3 * LEASE)
        here.process.send_signal(signal.SIGCONT)
        check_taken_over_once(tmp_path, url, names, old, since, back=time.monotonic())


@pytest.mark.timeout(180)
@pytest.mark.parametrize("runs", [12, pytest.param(50, marks=pytest.mark.proof)])
def test_a_kill_of_the_database_fails_no_run_and_a_cancel_meanwhile_takes_milliseconds(
    tmp_path: Path, runs: int
) -> None:
    database = PostgresServer()
    try:
        url = database.new_database()
        asyncio.run(upgrade(url))
        with worker(tmp_path, url, "--lease", "60") as here:  # longer than the outage
            names = [f"out{number}" for number in range(runs)]
            for name in names:
                send(here, name, 2.0)
            last = names[-1]
            until_there_is(tmp_path, f"{last} 0")
            database.kill()
            until(lambda: not answers(url))
            began = time.monotonic()
            answer = here.cancel(last, app="chain", waitSeconds=0)
            asked = time.monotonic() - began
            cut = until_there_is(tmp_path, f"{last} cut").at
            assert cut - began < 0.5, "a stop waited for the database"
            assert answer.status == 200, answer
            assert (answer.body["runs"][0]["durable"], asked < 5) == (False, True), answer.body
            time.sleep(3.0)
            database.start_again()
            found = {record.session.rpartition("/")[2]: record.outcome for record in all_over(url)}
            assert found == {**dict.fromkeys(names, "end_turn"), last: "cancelled"}
            done = [each.what for each in effects(tmp_path)]
            assert repeated(done) == []
            assert broken_histories(url) == []
    finally:
        database.close()


@pytest.mark.parametrize("delay", [0.3, 3.0])
def test_a_database_that_answers_late_slows_a_stop_by_two_answers_and_fails_no_run(
    tmp_path: Path, database: PostgresServer, url: str, delay: float
) -> None:
    with TcpProxy(database.port).running() as proxy:
        through = database.url(url.rpartition("/")[2], proxy.port)
        with worker(tmp_path, through, "--lease", "20", "--deadline", "10") as here, worker(tmp_path, url) as there:
            send(here, "slow", 0.2)
            send(here, "long", 60.0)
            until_there_is(tmp_path, "long 0")
            until(lambda: there.get("/runs?state=live").body)
            proxy.delay = delay
            began = time.monotonic()
            asked = Later(lambda: there.cancel("long", app="chain", waitSeconds=60))
            cut = until_there_is(tmp_path, "long cut").at
            assert cut - began < 2 * delay + 0.05 + SLACK
            [run] = asked.answer().body["runs"]
            assert (run["durable"], run["outcome"]) == (True, "stopped"), run
            found = {record.session.rpartition("/")[2]: record.outcome for record in all_over(url)}
            assert found == {"slow": "end_turn", "long": "cancelled"}


def test_without_any_push_a_cancel_takes_a_third_of_the_lease(tmp_path: Path, url: str) -> None:
    silence_pushes(url)
    lease = 3.0
    with worker(tmp_path, url, "--lease", str(lease), "--heartbeat", "60") as here, worker(tmp_path, url) as there:
        for number in range(3):
            name = f"deaf{number}"
            send(here, name, 60.0)
            until_there_is(tmp_path, f"{name} 0")
            began = time.monotonic()
            there.cancel(name, app="chain", waitSeconds=0)
            cut = until_there_is(tmp_path, f"{name} cut").at
            assert cut - began < lease / 3 + 0.1 + SLACK
        assert {record.outcome for record in all_over(url)} == {"cancelled"}


def test_workers_with_one_host_name_in_two_pid_namespaces_leave_each_other_s_runs_alone(
    tmp_path: Path, url: str
) -> None:
    here, there = (worker(tmp_path, url, inside=CONTAINER) for _ in range(2))
    with here, there:
        names = [f"ns{number}" for number in range(8)]
        for number, name in enumerate(names):
            send((here, there)[number % 2], name, LEASE)
        found = all_over(url)
        assert {(record.outcome, record.epoch) for record in found} == {("end_turn", 0)}
        assert repeated([each.what for each in effects(tmp_path)]) == []


def disk_full(url: str) -> Callable[[], object]:
    """As the server says it, at each insert of a record."""
    sql(
        url,
        "CREATE FUNCTION safepoint.full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$",
    )
    sql(url, "CREATE TRIGGER no_space BEFORE INSERT ON safepoint.messages EXECUTE FUNCTION safepoint.full_disk()")
    return lambda: sql(url, "DROP TRIGGER no_space ON safepoint.messages")


def no_connections(url: str) -> Callable[[], object]:
    """The limit of the role is reached, and the connections that it had are gone."""
    sql(url, "ALTER ROLE clerk CONNECTION LIMIT 0")
    sql(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'clerk'")
    return lambda: sql(url, "ALTER ROLE clerk CONNECTION LIMIT -1")


def no_rights(url: str) -> Callable[[], object]:
    sql(url, "REVOKE safepoint FROM clerk")
    return lambda: sql(url, "GRANT safepoint TO clerk")


@pytest.mark.parametrize("fault", [disk_full, no_connections, no_rights])
def test_a_database_that_refuses_is_told_with_503_and_works_again_without_a_restart(
    tmp_path: Path, database: PostgresServer, url: str, fault: Callable[[str], Callable[[], object]]
) -> None:
    with suppress(psycopg.errors.DuplicateObject):
        sql(url, "CREATE ROLE clerk LOGIN")
    sql(url, "GRANT safepoint TO clerk")
    # The engine's functions are found by this alone; for a role that is called `safepoint`, by "$user".
    sql(url, "ALTER ROLE clerk SET search_path = safepoint, public")
    as_clerk = url.replace("safepoint@", "clerk@")
    with worker(tmp_path, as_clerk, "--patience", "1", "--lease", "10") as here:
        send(here, "before", 0.01)
        assert all_over(url)
        here.post(session_path("meanwhile", app="chain"))
        mend = fault(url)
        body = message("meanwhile", "chain meanwhile 0.01", appName="chain")
        answer = here.post("/run", body)
        assert answer.status == 503, answer
        assert answer.body["detail"], answer
        mend()
        until(lambda: here.post("/run", body).status == 200)
        assert {record.outcome for record in all_over(url)} <= {"end_turn", "refused"}
        assert broken_histories(url) == []
