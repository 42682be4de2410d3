"""Who owns a session, a run or a loop, and whether that worker is dead. One scheme for all of them.

A worker is one open storage of one process. It has a row of its own with a counter that it raises every third of its
lease, and everything it owns names that row. It is dead

    for observers in the same pid namespace since the same boot     when its process is gone
    for all others                                                  when its counter did not change for one lease

The second is measured by the observer's own monotonic clock, from when it first saw that counter: the clocks of two
machines are never compared. A worker that closed in order has deleted its row, and owns nothing.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from safepoint.storage.run_records import FREE

LEASE = 60.0


@dataclass(frozen=True, slots=True)
class Process:
    """`boot` and `namespace` say where its `pid` means something; `born` tells a reused pid apart."""

    boot: str
    namespace: str
    pid: int
    born: str

    def __str__(self) -> str:
        return f"{self.boot}|{self.namespace}|{self.pid}|{self.born}"

    @staticmethod
    def parse(text: object) -> Process:
        """Raises ValueError."""
        boot, namespace, pid, born = str(text).split("|")
        return Process(boot, namespace, int(pid), born)

    @staticmethod
    def current() -> Process:
        pid = os.getpid()
        return Process(_boot(), _namespace(), pid, _born(pid))

    def can_see(self, other: Process) -> bool:
        """Does the other's pid mean the same process here?"""
        return (self.boot, self.namespace) == (other.boot, other.namespace)

    def is_alive(self) -> bool:
        """Ask only about a process that can be seen from here."""
        return _is_alive(self.pid, self.born)


@dataclass(slots=True)
class Lease:
    """What one worker knows of the others. `worker`: the name of its own row; `peer`: what it says there of itself."""

    seconds: float = LEASE
    worker: str = field(default_factory=lambda: uuid.uuid4().hex)
    process: Process = field(default_factory=Process.current)
    clock: Callable[[], float] = time.monotonic
    peer: str | None = None
    _seen: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])

    @property
    def renew_every(self) -> float:
        return self.seconds / 3

    def is_dead(self, worker: str, row: tuple[str, int] | None) -> bool:
        """`row`: the process and the counter of that worker, None if it has none. Raises ValueError for a bad one."""
        if worker == self.worker:
            return False
        if worker == FREE:
            return True
        if row is None:
            return self._is_dead_old(worker) if "|" in worker else _checked(worker)
        text, counter = row
        process = Process.parse(text)
        if self.process.can_see(process):
            return not process.is_alive()
        return self._is_unchanged(worker, counter)

    def _is_unchanged(self, worker: str, counter: int) -> bool:
        now = self.clock()
        seen = self._seen.get(worker)
        if seen is None or seen[0] != counter:
            self._seen[worker] = (counter, now)
            return False
        return now - seen[1] >= self.seconds

    def _is_dead_old(self, owner: str) -> bool:
        """An owner as versions before this one wrote it, `host|pid|born`: it renews nothing that we read."""
        host, pid, born = owner.split("|")
        if host == socket.gethostname():
            return not _is_alive(int(pid), born)
        return self._is_unchanged(owner, 0)

    def where(self, worker: str, row: tuple[str, int] | None) -> str:
        """For a message about who is in the way."""
        if worker == self.worker:
            return "in this process"
        pid = worker.split("|")[1] if "|" in worker else Process.parse(row[0]).pid if row is not None else "?"
        return f"in process {pid}"


def _checked(worker: str) -> bool:
    """A worker without a row is dead; but what is no name of a worker was spoilt."""
    uuid.UUID(hex=worker)
    return True


def _is_alive(pid: int, born: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    # In doubt it lives: taking over a live run would run it twice, and a dead one is found by its lease anyway.
    now = _born(pid)
    return not (now and born) or now == born


def _born(pid: int) -> str:
    """When a process started, as the kernel says; empty where it does not say."""
    try:
        # In a new pid namespace that still has the /proc of the old one, a pid names another process there.
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            # The second field is the program's name, which may have blanks and brackets in it; the 22nd is the start.
            return stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:  # not Linux: a machine is told by its name and its network card
        return f"{socket.gethostname()}-{uuid.getnode():x}"


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
