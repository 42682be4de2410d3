"""Units of work in order: those that touch the same session, run or loop happen one after the other, as they came.

    submitted ──nothing before it is open──▶ sent ──answered──▶ done
                                               │ ▲
                                               └─┘ answer lost, or a deadlock: sent again

A caller that is cancelled stops waiting and nothing else: a claim that was left is still ahead of its release. Units
that wait for the same session are sent together, as one statement and one transaction, in which each that is refused
takes only itself back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import psycopg
from msgspec.structs import replace

from safepoint.errors import StoreError
from safepoint.storage import operations as op
from safepoint.storage.codec import dump_json
from safepoint.storage.lease import Lease
from safepoint.storage.loop_data import OpenedLoop
from safepoint.storage.operations import Query
from safepoint.storage.postgres.connections import Connection
from safepoint.storage.postgres.database import Database, code_of
from safepoint.storage.postgres.queries import run_query
from safepoint.storage.postgres.refusals import holder_is_gone, refusal
from safepoint.storage.postgres.schema import one_line
from safepoint.storage.postgres.statements import AnyStatement, UnitData, encode_unit, is_inline
from safepoint.storage.postgres.text_codec import escape
from safepoint.storage.postgres.worker_lease import WorkerLease
from safepoint.storage.reply import Answer, Reply, tell
from safepoint.storage.run_records import RunRecord

Results: TypeAlias = tuple[Any, ...]  # Any: of every statement
Outcome: TypeAlias = "Results | Exception"

# What shares one transaction at most: each has a subtransaction, and PostgreSQL keeps 64 of them close at hand.
_TOGETHER = 32
_COMMIT = (
    "SELECT safepoint.commit_units(%(units)s::jsonb, %(locks)s::text[], %(runs)s::text[],"
    " %(worker)s, %(process)s, %(lease)s)"
)


class WriteJob(Reply[Results]):
    """One unit of work. `unit`: None if the database has to be read in between. `left`: its caller no longer waits."""

    def __init__(self, statements: Sequence[AnyStatement]) -> None:
        self.statements = tuple(statements)
        inline = all(map(is_inline, statements))
        # Encoded before anything is promised: a value that has no JSON form is its caller's error.
        data = encode_unit(
            [each for each in statements if isinstance(each, op.Operation)] if not inline else statements
        )
        super().__init__("postgres")
        self.unit = data if inline else None
        self.names = data.names
        self.takes_ownership = data.takes_ownership
        self.left = False
        self.waits: set[WriteJob] = set()
        self.followers: list[WriteJob] = []
        self.started = False
        self.finished = asyncio.Event()
        # Of one with queries in it, by place: what is sent again is the same unit, with the same receipt.
        self.encoded: dict[int, UnitData] = {}


class Writer:
    """On the loop of the storage's thread."""

    def __init__(self, database: Database, lease: Lease, worker_lease: WorkerLease) -> None:
        self._database = database
        self._lease = lease
        self._worker_lease = worker_lease
        self._last: dict[str, WriteJob] = {}
        self._open: set[WriteJob] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        # The sessions of the runs of this process: a move names only its run, and is ordered with its session's calls.
        self._session_of: dict[str, str] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.transactions = 0

    def put(self, jobs: Iterable[WriteJob]) -> None:
        added = list(jobs)
        for job in added:
            job.names |= {self._session_of[name] for name in job.names if name in self._session_of}
            job.waits = {self._last[name] for name in job.names if name in self._last}
            for earlier in job.waits:
                earlier.followers.append(job)
            self._last.update(dict.fromkeys(job.names, job))
            self._open.add(job)
            self._idle.clear()
        for job in added:
            if not job.waits and not job.started:
                self._start(job)

    def ahead_of(self, names: set[str] | None) -> set[WriteJob]:
        """The open units that a read of these comes after. One of many sessions (None) waits for no caller's write,
        but for those whose callers are gone.
        """
        return {job for job in self._open if (job.left if names is None else names & job.names)}

    async def wait_for(self, jobs: set[WriteJob]) -> None:
        for job in jobs:
            await job.finished.wait()

    async def finish(self) -> None:
        await self._idle.wait()

    def _start(self, first: WriteJob) -> None:
        """With all that wait for nothing else: they come after it in the same transaction."""
        first.started = True
        batch, at_hand = [first], list(first.followers)
        while at_hand and first.unit is not None and len(batch) < _TOGETHER:
            job = at_hand.pop(0)
            if not job.started and job.unit is not None and job.waits <= set(batch):
                job.started = True
                batch.append(job)
                at_hand += job.followers
        task = asyncio.get_running_loop().create_task(self._write(batch), name="safepoint: postgres write")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write(self, batch: list[WriteJob]) -> None:
        try:
            outcomes = await self._send(batch)
        except Exception as error:
            outcomes = [error for _ in batch]
        tell([self._answer_to(job, outcome) for job, outcome in zip(batch, outcomes, strict=True)])
        for job in batch:
            self._release(job)
        if not self._open:
            self._idle.set()

    def _answer_to(self, job: WriteJob, outcome: Outcome) -> Answer:
        if isinstance(outcome, Exception):
            return job, None, outcome
        for result in outcome:
            if isinstance(result, RunRecord):
                name = "r:" + escape(result.run_id)
                if result.ended:
                    self._session_of.pop(name, None)
                else:
                    self._session_of[name] = "s:" + escape(result.session)
        return job, outcome, None

    def _release(self, job: WriteJob) -> None:
        self._open.discard(job)
        for name in job.names:
            if self._last.get(name) is job:
                del self._last[name]
        for follower in job.followers:
            follower.waits.discard(job)
            if not follower.waits and not follower.started:
                self._start(follower)
        job.finished.set()

    # -- sending -------------------------------------------------------------------------------------------------------

    async def _send(self, batch: list[WriteJob]) -> list[Outcome]:
        owns, sent = any(job.takes_ownership for job in batch), self._worker_lease.clock()
        try:
            outcomes = await self._try(batch)
        except psycopg.Error as error:
            if len(batch) > 1:
                raise StoreError(f"the session store failed: {one_line(error)}") from error
            return [await self._answer(batch[0], code_of(error) or "", error.diag.message_detail, error)]
        self.transactions += 1
        if owns and not self._worker_lease.begun:
            self._worker_lease.renewed(sent)
        return outcomes

    async def _try(self, batch: list[WriteJob]) -> list[Outcome]:
        if batch[0].unit is None:
            return [await self._database.run(partial(self._in_transaction, batch[0]))]
        units = [job.unit for job in batch if job.unit is not None]
        answers = await self._database.run(partial(self._commit, units))
        found: list[Outcome] = []
        for job, unit, answer in zip(batch, units, answers, strict=True):
            if "code" in answer:
                error = StoreError(f"the session store failed: {answer['message']}")
                found.append(await self._answer(job, answer["code"], answer["detail"], error))
            else:
                found.append(unit.results(answer["results"]))
        return found

    async def _answer(self, job: WriteJob, code: str, detail: str | None, error: Exception) -> Outcome:
        """The outcome of a refused unit. If a dead process stood in its way, the unit is sent once more."""
        gone = holder_is_gone(code, detail, self._lease)
        if gone is not None:
            await self._database.call("SELECT safepoint.retire_worker(%(gone)s)", {"gone": escape(gone)})
        if gone is not None or code in ("40P01", "40001"):
            return (await self._send([job]))[0]
        failure = refusal(code, detail, self._lease)
        if failure is None:
            text = one_line(error) if isinstance(error, psycopg.Error) else str(error)
            failure = StoreError(f"the session store failed: {text}")
        failure.__cause__ = error
        return failure

    async def _commit(self, units: Sequence[UnitData], connection: Connection) -> list[Any]:  # Any: answers
        given = {
            "units": dump_json([unit.body for unit in units]),
            "locks": sorted({name for unit in units for name in unit.locks}),
            "runs": sorted({run for unit in units for run in unit.runs}),
            "worker": escape(self._lease.worker),
            "process": str(self._lease.process),
            "lease": self._worker_lease.seconds,
        }
        [(answers,)] = await self._database.fetch_on(connection)(_COMMIT, given)
        return list(answers)

    async def _in_transaction(self, job: WriteJob, connection: Connection) -> Results:
        """A unit with queries in it: they see what its operations before them have written."""
        fetch, results, epochs = self._database.fetch_on(connection), list[Any](), dict[str, int]()
        async with connection.transaction():
            for place, each in enumerate(job.statements):
                if isinstance(each, Query):
                    results.append(await run_query(each, fetch))
                    continue
                if place not in job.encoded:
                    job.encoded[place] = encode_unit([_with_epoch(each, epochs)])
                unit = job.encoded[place]
                [answer] = await self._commit([unit], connection)
                if answer["results"] is None:
                    return (None,) * len(job.statements)
                [result] = unit.results(answer["results"])
                if isinstance(each, op.ClaimSession):
                    epochs[each.session_id] = result
                if isinstance(each, op.OpenLoop):
                    result = OpenedLoop(result, await run_query(op.ReadLoop(each.id), fetch))
                results.append(result)
        return tuple(results)


def _with_epoch(statement: AnyStatement, epochs: Mapping[str, int]) -> AnyStatement:
    """Each operation is sent by itself: the epoch of a claim in the same unit is known here only."""
    if isinstance(statement, op.AppendChanges) and statement.epoch is None:
        return replace(statement, epoch=epochs[statement.session_id])
    return statement
