"""One process looks after another: requests to cancel its runs, and runs whose owner is dead.

Two tasks. One listens: it takes up the cancel requests that other processes have stored for runs of this process, when
the storage says that a request may have come, and otherwise at each beat. The other sweeps, at each beat and when the
storage offers it a run: it looks for open records that are free, or whose owner is dead, and takes them over, starting
with the oldest of each session. The storage lets one process do that and refuses the others. The first sweep is over
before the server answers, so a client that comes back after a restart finds its session as busy as it was. Only time
shows that an owner has died, so this is the one place that looks again and again.

A request travels on three legs: its row, which is the truth; the push, which says "look"; the look at each beat. A push
that is lost costs a beat, and no request.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any

from safepoint._core.reasons import Source
from safepoint._core.receipts import Receipt
from safepoint._core.supervisor import Supervisor
from safepoint.errors import StoreError
from safepoint.serving.cancel_answers import receipt_json
from safepoint.serving.cancel_requests import StopRequest, decode_ask, stopping
from safepoint.serving.cancel_service import ask, clear_pause, outcome_of
from safepoint.serving.config import Role
from safepoint.serving.ids import SessionKey
from safepoint.serving.lease_guard import LeaseGuard
from safepoint.serving.managed_run import ManagedRun, Phase
from safepoint.serving.owner_requests import answer_owner_request, question_of
from safepoint.serving.principal import NotFound
from safepoint.serving.run_manager import NoSuchApp, RunManager, worker_info
from safepoint.serving.takeover import settle, take_over
from safepoint.storage.operations import AcknowledgeCancel
from safepoint.storage.placement import Engine, Placement, placement_of
from safepoint.storage.postgres.worker_lease import WorkerLease
from safepoint.storage.run_records import RecordMoved, RunRecord, RunState, StoredCancelRequest, is_in_line
from safepoint.storage.workers import workers_of

_log = logging.getLogger("safepoint.server")

# After that time a record of our own without a task is picked up: the request that was to start it was cancelled.
_FORGOTTEN = 60.0
_LONG_LOOK = 60.0
# A run that may start gets another job when it has had none for so long.
_LOST = 5.0
_GOODBYE = 1.0
# At the same time, of a storage that answers slowly; and longer than any read takes.
_BEATS = 4
_LONGEST_READ = 120.0
# How often a storage without pushes looks whether another process has written anything.
_LOOK = 0.05
# So many sessions are taken over at the same time: a connection each, where the storage has connections.
_AT_ONCE = 8


class LeaseSweeper:
    """`await start()` before the server answers, `await stop()` when it leaves. Without a durable storage: nothing."""

    def __init__(self, manager: RunManager) -> None:
        self._manager = manager
        self._tasks: set[asyncio.Task[None]] = set()
        # Requests that were delivered, and when they were acknowledged in the storage: a read that began before that
        # may still find them.
        self._heard: dict[int, float | None] = {}
        self._beats: set[asyncio.Task[None]] = set()
        # Those that are being delivered to a run that is not live here, by number.
        self._deliveries: dict[int, asyncio.Task[None]] = {}
        # Taken over, and not settled: the session was busy in another process, or the store failed.
        self._pending: set[str] = set()
        # What was looked at and is left alone for as long as it does not change, by epoch.
        self._left_alone: dict[str, int] = {}
        self._next_long_look = self._next_lost_look = 0.0
        self._drain: asyncio.Task[None] | None = None
        # Whether an engine starts free runs; None until the storage has told.
        self._has_engine: bool | None = None
        lease = getattr(manager.storage, "lease", None)
        self.guard = LeaseGuard(manager, lease) if isinstance(lease, WorkerLease) else None

    async def start(self) -> None:
        """Cancellation: some runs may be running already."""
        if self._manager.storage.durable:
            await self.once()
            work = {"hearing": self._hear_for_ever(), "recovery": self._sweep_for_ever()}
            if self.guard is not None:
                work["lease"] = self.guard.watch()
            self._tasks = {asyncio.create_task(each, name=f"safepoint: {name}") for name, each in work.items()}

    async def stop(self) -> None:
        """Cancellation: it may still be looking."""
        tasks = self._tasks | self._beats
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_GOODBYE)

    async def _hear_for_ever(self) -> None:
        storage, every = self._manager.storage, self._manager.config.heartbeat_seconds
        while True:
            with _logged_failures():
                async with storage.changes(worker=storage.worker, every=min(_LOOK, every)) as changes:
                    while True:
                        try:
                            async with asyncio.timeout(every):
                                await anext(changes)
                        except TimeoutError:
                            if self._beats:
                                continue
                        await self._begin_beat()
            await asyncio.sleep(every)  # the store failed

    async def _begin_beat(self) -> None:
        """A beat under way may have read before the change, so another one does not wait for its answer.

        Cancellation: begun, or not.
        """
        while len(self._beats) >= _BEATS:
            await asyncio.wait(self._beats, return_when=asyncio.FIRST_COMPLETED)

        async def beat() -> None:
            with _logged_failures():
                await self._beat()

        task = asyncio.create_task(beat(), name="safepoint: beat")
        self._beats.add(task)
        task.add_done_callback(self._beats.discard)

    async def _sweep_for_ever(self) -> None:
        workers, every = workers_of(self._manager.storage), self._manager.config.heartbeat_seconds
        while workers is None:
            await asyncio.sleep(every)
            with _logged_failures():
                await self._sweep()
        while True:
            with _logged_failures():
                await workers.announce(worker_info(self._manager), draining=self._manager.draining)
                async with workers.offers(await self._takes()) as offers:
                    while True:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(every):
                                await anext(offers)
                        await self._sweep()
            await asyncio.sleep(every)  # the store failed

    async def look_again(self) -> None:
        """Something was thawed: runs that it stopped go on, at the next look, or now if there is none.

        Cancellation: some were picked up.
        """
        if not self._manager.storage.durable:
            with _logged_failures():
                await self._sweep()

    async def once(self) -> None:
        """One beat and one look; what fails is tried again at the next. Cancellation: likewise."""
        with _logged_failures():
            await self._beat()
            if self._deliveries:
                await asyncio.wait(self._deliveries.values())
            await self._sweep()

    # -- our own runs --------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Cancellation: some requests were taken up."""
        manager = self._manager
        found = await manager.storage.runs.unheard_cancels(manager.storage.worker)
        unheard = [stored for stored in found if stored.number not in self._deliveries]
        for stored in unheard:
            if stored.number not in self._heard and self._deliver(stored):
                self._heard[stored.number] = None
        done = [stored.number for stored in unheard if self._heard.get(stored.number, 0.0) is None]
        if done:
            await manager.storage.commit(*map(AcknowledgeCancel, done))
            self._heard |= dict.fromkeys(done, time.monotonic())
        self._forget_heard()
        if len(self._beats) > 1:
            return
        for managed in [each for each in manager.runs.values() if each.phase is Phase.OWED and each.over.is_set]:
            await managed.record_end(manager.storage.runs)

    def _forget_heard(self) -> None:
        before = time.monotonic() - _LONGEST_READ
        for number in [number for number, at in self._heard.items() if at is not None and at < before]:
            del self._heard[number]

    def _deliver(self, stored: StoredCancelRequest) -> bool:
        """A live run is asked here and now, and no request waits for another. False: a task does it."""
        managed, number = self._manager.runs.get(stored.run_id), stored.number
        if managed is None or not managed.live:
            task = self._deliveries[number] = self._spawn(self._deliver_later(stored), stored)
            task.add_done_callback(lambda _: self._deliveries.pop(number))
            return False
        try:
            if question_of(stored) is not None:
                answer = answer_owner_request(self._manager, managed, stored)
            else:
                request, reason = decode_ask(stored)
                answer = self._tell(number, managed, ask(managed, request, reason, stored.ask.get("id")), request)
        except NotFound:  # that part of the run is over, or never was
            answer = self._manager.storage.runs.answer_cancel(number, {"outcome": None})
        except Exception:  # one bad request must not keep the others from being read
            _log.exception("the run %s could not be cancelled as requested", stored.run_id)
            return True
        self._spawn(answer, stored)
        return True

    def _spawn(self, work: Coroutine[Any, Any, None], stored: StoredCancelRequest) -> asyncio.Task[None]:  # Any: yields
        async def logged() -> None:
            try:
                await work
            except Exception:  # as above
                _log.exception("the run %s could not be cancelled as requested", stored.run_id)

        return Supervisor.current().spawn(logged(), f"request {stored.number}", None)

    async def _deliver_later(self, stored: StoredCancelRequest) -> None:
        """To a run that waits for a person, or is only just being picked up. Cancellation: delivered, or not."""
        runs = self._manager.storage.runs
        record = await runs.get(stored.run_id)
        if record is not None and is_in_line(record) and stored.run_id not in self._manager.runs:
            return  # it will be here at the next beat
        try:
            if record is not None and record.state is RunState.PAUSED:
                await self._clear_pause(record, stored)
        finally:
            await runs.acknowledge_cancel(stored.number)

    async def _clear_pause(self, record: RunRecord, stored: StoredCancelRequest) -> None:
        """Cancellation: cleared, or not; the request stays stored."""
        request, reason = decode_ask(stored)
        if request.node is None:
            key = SessionKey.parse(record.session)
            assert key is not None
            await clear_pause(self._manager, key, record, reason)

    async def _tell(self, number: int, managed: ManagedRun, receipt: Receipt | None, request: StopRequest) -> None:
        """Answer the request as a client here would be answered. Cancellation: its asker reads the record."""
        cancelled = await outcome_of(managed, receipt, request)
        known = cancelled.receipt
        receipt_fields = {} if known is None else receipt_json(known, is_over=cancelled.outcome is not None)
        with suppress(StoreError):
            await self._manager.storage.runs.answer_cancel(number, {"outcome": cancelled.outcome, **receipt_fields})

    # -- runs without an owner -----------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Cancellation: some were taken over."""
        # Many may wait for a person, for weeks, and hardly one of them is in need of anything.
        waiting = time.monotonic() >= self._next_long_look
        if waiting:
            self._next_long_look = time.monotonic() + _LONG_LOOK
        runs, me = self._manager.storage.runs, self._manager.storage.worker
        found = await self._orphans(waiting=waiting)
        if waiting:
            still = {record.run_id for record in found}
            self._left_alone = {run_id: epoch for run_id, epoch in self._left_alone.items() if run_id in still}
        in_need: dict[str, list[RunRecord]] = {}
        for record in [*found, *await runs.still_open(waiting=waiting, owner=me)]:
            if not await self._is_looked_after(record):
                in_need.setdefault(record.session, []).append(record)
        at_once = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for records in in_need.values():
                group.create_task(self._pick_up_all(records, at_once))

    async def _orphans(self, *, waiting: bool) -> list[RunRecord]:
        """Runs to be picked up here. Where an engine starts free runs, these are only those that wait for a person.

        Cancellation: nothing has changed.
        """
        manager, placement = self._manager, await self._placement()
        if placement is None:
            return [] if manager.config.role is Role.API else await manager.storage.runs.orphans(waiting=waiting)
        await placement.free_the_dead()
        if await placement.is_draining() and not manager.draining:
            _log.warning("this worker was told to drain: its runs are handed over, and it takes no others")
            self._drain = Supervisor.current().spawn(self._hand_all_over(), "drain", None)
        if time.monotonic() >= self._next_lost_look:
            self._next_lost_look = time.monotonic() + _LOST
            await placement.place_the_forgotten(_LOST)
        found = await manager.storage.runs.orphans(waiting=True) if waiting else []
        return [record for record in found if record.state is RunState.PAUSED]

    async def _hand_all_over(self) -> None:
        """Cancellation: the asks stand."""
        await self._manager.shut_down()

    async def _placement(self) -> Placement | None:
        """Where an engine starts free runs. Cancellation: nothing has changed."""
        placement = placement_of(self._manager.storage)
        if placement is not None and self._has_engine is None:
            self._has_engine = await placement.engine() is not Engine.NONE
        return placement if self._has_engine else None

    async def _takes(self) -> tuple[str, ...]:
        """The apps whose free runs this process looks for itself. Cancellation: nothing has changed."""
        is_left_to_others = self._manager.config.role is Role.API or await self._placement() is not None
        return () if is_left_to_others else tuple(self._manager.catalog.names)

    async def _pick_up_all(self, records: list[RunRecord], at_once: asyncio.Semaphore) -> None:
        """Those of one session, in the order in which they were accepted. Cancellation: some were taken over."""
        async with at_once:
            for record in records:
                if not self._manager.draining:
                    await self._pick_up(record)

    async def _is_looked_after(self, record: RunRecord) -> bool:
        """Does a run of this process work on it, or is it to be left alone? Cancellation: nothing has changed."""
        manager, run_id = self._manager, record.run_id
        if run_id in manager.settling:
            return True
        if record.owner == manager.storage.worker:
            return run_id not in self._pending and not self._is_dropped(record)
        managed = manager.runs.get(run_id)
        if record.state is RunState.SUSPENDED and self._is_frozen(record):
            return True
        if self._left_alone.get(run_id) == record.epoch or (managed is not None and not managed.over.is_set):
            return True
        stays = record.state is RunState.SUSPENDED and not manager.config.resume_on_start
        if record.state is RunState.PAUSED or stays:
            wanted = stopping(await manager.storage.runs.cancel_requests(run_id))
            if wanted is None:
                self._left_alone[run_id] = record.epoch
            return wanted is None
        return False

    def _is_frozen(self, record: RunRecord) -> bool:
        """Would it only stop again? What a freeze of one tool has stopped would, as soon as it goes on."""
        key = SessionKey.parse(record.session)
        if key is None:
            return False
        gate, by_freeze = self._manager.gate(key), (record.reason or {}).get("source") == Source.FREEZE
        return gate.of_run() is not None or (by_freeze and any(map(gate.is_covered_by, gate.switch.freezes)))

    def _is_dropped(self, record: RunRecord) -> bool:
        """Is it a record of this process, without a task?"""
        managed = self._manager.runs.get(record.run_id)
        if managed is not None:  # picked up while its session was busy elsewhere
            return managed.over.is_set and managed.refused is not None and managed.epoch == record.epoch
        waits = record.state in (RunState.PAUSED, RunState.SUSPENDED)
        return not waits and record.created_at < time.time() - _FORGOTTEN

    async def _pick_up(self, record: RunRecord) -> None:
        """Cancellation: it was taken over, or not."""
        manager, run_id = self._manager, record.run_id
        try:
            manager.agent(record.session.partition("/")[0])
            self._pending.add(run_id)
            done = await (settle if record.owner == manager.storage.worker else take_over)(manager, record)
        except RecordMoved:
            done = True  # another process was faster
        except NoSuchApp as error:
            _log.error("the run %s waits for its app: %s", run_id, error)
            self._left_alone[run_id] = record.epoch
            done = True
        except Exception:  # one bad run must not keep the others from being checked
            _log.exception("the run %s could not be picked up yet", run_id)
            done = False
        if done:
            self._pending.discard(run_id)


@contextmanager
def _logged_failures() -> Generator[None]:
    """What was to be done is done at the next beat."""
    try:
        yield
    except (StoreError, TimeoutError) as error:
        _log.error("runs of other processes could not be looked after: %s", error)
    except Exception:  # a process that reads no more cancel requests would be worse than any error here
        _log.exception("runs of other processes could not be looked after")
