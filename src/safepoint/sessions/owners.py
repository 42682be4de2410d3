"""Who holds a session, and whether that process is still there.

An owner is a process on a host. On the same host a dead process is recognised at once, and a reused process id is told
apart by when it started. For other hosts there is only patience: a claim that was not renewed for `LEASE` seconds.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

LEASE = 60.0


@dataclass(frozen=True, slots=True)
class Owner:
    host: str
    pid: int
    born: str

    def __str__(self) -> str:
        return f"{self.host}|{self.pid}|{self.born}"

    @staticmethod
    def parse(text: object) -> Owner:
        """As it was written. Raises ValueError for whatever else stands in its place."""
        host, pid, born = str(text).split("|")
        return Owner(host, int(pid), born)

    @staticmethod
    def this_process() -> Owner:
        return Owner(socket.gethostname(), os.getpid(), _born(os.getpid()))

    def is_gone(self, renewed: float) -> bool:
        """Is the process that claimed it certainly, or after its lease presumably, dead?"""
        if self.host != socket.gethostname():
            return time.time() > renewed + LEASE
        return not _alive(self.pid) or _born(self.pid) != self.born


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _born(pid: int) -> str:
    """When a process started, as the kernel says; empty where it does not say."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
