"""Many processes on many machines, one set of sessions: workers, and what an engine calls to start a run."""

from safepoint.cluster.placing import place
from safepoint.cluster.work import HANDED_OVER, AlreadyTaken, work_on
from safepoint.cluster.worker import Worker
from safepoint.serving.config import ServingConfig
from safepoint.storage.opening import open_storage
from safepoint.storage.placement import Engine

__all__ = ["HANDED_OVER", "AlreadyTaken", "Engine", "ServingConfig", "Worker", "open_storage", "place", "work_on"]
