"""`work_on` is cancelled wherever it waits: its run has ended, or is free for another worker, and never in between."""

from __future__ import annotations

import time

from safepoint.cluster.work import register, unregister, work_on
from safepoint.serving.apps import Catalog
from safepoint.serving.config import ServingConfig
from safepoint.serving.ids import SessionKey
from safepoint.serving.run_manager import RunManager
from safepoint.storage.operations import AcceptRun
from safepoint.storage.run_records import FREE, RunRecord, RunState
from safepoint.testing import CALLER, OWN, call, check_cancellable, say
from tests.injection.parts import SlowStorage, agent, look

KEY = SessionKey("app", "ann", "s")
REQUEST = {"prompt": [{"kind": "text", "text": "go"}], "ifBusy": "queue"}


async def a_placed_run_is_seen_through() -> None:
    storage = SlowStorage()
    one = agent(call("look"), say("done"), tools=[look])
    manager = RunManager(Catalog.of({"app": one}), storage, ServingConfig(shutdown_seconds=1.0))
    register(manager)
    record = RunRecord("run_placed", KEY.stored_as, RunState.QUEUED, time.time(), FREE, REQUEST)
    try:
        await manager.create(KEY, None)
        await storage.commit(AcceptRun(record, 0.0))
        await work_on(storage, record.run_id)
    finally:
        unregister(manager)
        for managed in manager.live():
            await managed.over.wait()
        found = await storage.runs.get(record.run_id)
        mine = found is not None and found.owner == storage.worker
        assert found is None or found.ended or not mine or found.state is RunState.QUEUED, found


def test_wherever_it_is_cancelled_the_run_has_ended_or_is_free() -> None:
    report = check_cancellable(a_placed_run_is_seen_through, kinds=[OWN, CALLER])
    report.raise_for_failures()
    assert report.injections > 20
