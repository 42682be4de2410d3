"""Procrastinate starts free runs: a worker of it inside this process, and one task, which calls `work_on`.

It decides nothing. A job that dies with its worker is deleted, because our own sweep has placed its run again by then;
a job that is aborted becomes a request to cancel its run. The worker inside is replaced whenever it ends by itself, as
it does when its database was away or one of its side tasks has died.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from hashlib import md5

from procrastinate import App, JobContext
from procrastinate.exceptions import JobAborted
from procrastinate.job_context import AbortReason
from procrastinate.worker import Worker as JobWorker

from safepoint._core.points import SafePoint
from safepoint._core.reasons import Reason, Source
from safepoint.cluster.connector import StorageConnector
from safepoint.cluster.work import AlreadyTaken, hand_over, work_for
from safepoint.errors import SafepointError
from safepoint.serving.cancel_requests import StopRequest, encode_ask
from safepoint.serving.managed_run import ManagedRun
from safepoint.serving.run_manager import RunManager
from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.storage.postgres.text_codec import escape, unescape

_log = logging.getLogger("safepoint.server")

TASK = "safepoint.work_on"
ABORTED = Reason("its job was aborted", Source.USER)
_POLL = 1.0
_HEARTBEAT = 3.0
_STALLED = 30.0
_PAUSE = 0.5
_GOODBYE = 5.0
_ABORTING = 60.0


class ProcrastinateEngine:
    """`await start()`, `await stop()`. A job is taken while there is room, and until the manager drains."""

    def __init__(self, manager: RunManager, storage: PostgresStorage) -> None:
        self._manager = manager
        self._storage = storage
        self._worker: JobWorker | None = None
        self._leaving = False
        self._task: asyncio.Task[None] | None = None
        self._app = App(connector=StorageConnector(storage))
        self._app.task(name=TASK, pass_context=True)(self._work_on)
        # Without any periodic task a heartbeat that has died goes unnoticed.
        clean_up = self._app.task(name="safepoint.clean_up", queue="safepoint")(self._clean_up)
        self._app.periodic(cron="* * * * *")(clean_up)
        self.restarts = 0

    async def start(self) -> None:
        """Cancellation: it may have started."""
        self._manager.on_drain.append(self.take_no_more)
        self._task = asyncio.create_task(self._supervise(), name="safepoint: procrastinate")

    def take_no_more(self) -> None:
        """Jobs that are under way end by themselves."""
        self._leaving = True
        if self._worker is not None:
            self._worker.stop()  # type: ignore[no-untyped-call]  # it has no annotations

    async def stop(self) -> None:
        """When all runs are over. Bounded. Cancellation: it ends all the same."""
        self.take_no_more()
        if self._task is not None:
            _, left = await asyncio.wait({self._task}, timeout=_GOODBYE)
            if left:
                self._task.cancel()
                await asyncio.wait(left, timeout=_GOODBYE)

    async def _supervise(self) -> None:
        """Cancellation: its jobs are handed over."""
        while not self._leaving:
            self._worker = JobWorker(
                self._app,
                queues=self._queues(),
                name=f"safepoint-{self._storage.worker[:8]}",
                concurrency=self._manager.config.job_slots,
                fetch_job_polling_interval=_POLL,
                abort_job_polling_interval=_POLL,
                update_heartbeat_interval=_HEARTBEAT,
                stalled_worker_timeout=_STALLED,
                delete_jobs="always",
                install_signal_handlers=False,
            )
            try:
                await self._worker.run()  # type: ignore[no-untyped-call]  # likewise
            except Exception as error:  # whatever it was: without a worker nothing would start here any more
                _log.warning("the job worker has ended and is replaced: %s", error)
            if not self._leaving:
                self.restarts += 1
                await asyncio.sleep(_PAUSE)

    def _queues(self) -> list[str]:
        """Of each app that can be run here, and of this worker itself."""
        apps = [app.name for app in self._manager.catalog if app.agent is not None]
        schema = self._storage.schema
        return [*(queue_of(app, schema) for app in apps), f"spw_{_digest(escape(self._storage.worker))}", "safepoint"]

    async def _work_on(self, context: JobContext, run_id: str) -> None:
        """Cancellation: an abort cancels the run; the end of this worker hands it over."""
        id = unescape(run_id)

        async def cancelled(manager: RunManager, managed: ManagedRun) -> None:
            if context.abort_reason() is not AbortReason.USER_REQUEST:
                return await hand_over(manager, managed)
            managed.ask(SafePoint.NOW, ABORTED)
            with suppress(TimeoutError):
                async with asyncio.timeout(_ABORTING):
                    await managed.over.wait()

        try:
            await work_for(self._manager, id, cancelled)
        except AlreadyTaken as error:
            _log.debug("%s", error)
        except SafepointError as error:
            _log.error("the run %s could not be worked on, and is placed again: %s", id, error)
        except asyncio.CancelledError:
            if context.abort_reason() is AbortReason.USER_REQUEST:
                await self._request_cancel(id)  # it may not have begun yet, and then its next worker finds this
                raise JobAborted from None
            raise

    async def _request_cancel(self, run_id: str) -> None:
        """Cancellation: only the waiting ends."""
        runs = self._storage.runs
        record = await runs.get(run_id)
        if record is not None and not record.ended:
            await runs.request_cancel(run_id, encode_ask(StopRequest(at=SafePoint.NOW), ABORTED))

    async def _clean_up(self, timestamp: int) -> None:
        """Cancellation: some are left for the next time."""
        await self._storage.engine_rows(f"SELECT {self._storage.schema}.delete_dead_jobs()", {})


def queue_of(app: str, schema: str) -> str:
    """As `safepoint.queue_of`."""
    return f"sp_{_digest(f'{schema}.{escape(app)}')}"


def _digest(text: str) -> str:
    return md5(text.encode(), usedforsecurity=False).hexdigest()
