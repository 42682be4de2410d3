"""Servers that cannot see each other's processes, as in two containers, on one file: whose runs are whose."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.server.leased_server import LEASE
from tests.server.server_process import PATIENCE, Later, ServerProcess, message

# A pid namespace of its own, and, for another machine, a host name of its own.
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
MACHINE = ("unshare", "--uts", *CONTAINER, "sh", "-c", 'hostname elsewhere && exec "$0" "$@"')


def _can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*MACHINE, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _can_unshare(), reason="needs the right to make namespaces")


def server(folder: Path, inside: tuple[str, ...], *options: str) -> ServerProcess:
    return ServerProcess(folder, command=("tests.server.leased_server",), inside=inside, options=options)


def outcome(running: ServerProcess, session: str) -> str | None:
    runs = [run for run in running.get("/runs").body if run["sessionId"] == session]
    return runs[0].get("outcome") if runs else None


@pytest.mark.timeout(180)
def test_two_servers_with_one_host_name_in_two_namespaces_leave_each_other_s_runs_alone(tmp_path: Path) -> None:
    with server(tmp_path, CONTAINER) as here, server(tmp_path, CONTAINER) as there:
        callers: dict[str, Later] = {}
        for number in range(10):
            for where, running in (("here", here), ("there", there)):
                session = f"{where}{number}"
                running.create(session)
                callers[session] = running.run_in_thread(
                    session, f"note {session}; nap {LEASE * 2}; note {session} too"
                )
        for session, caller in callers.items():
            assert caller.answer().status == 200, session
        did = here.did()
        assert sorted(line for line in did if line.startswith("note")) == sorted(
            [f"note {session}" for session in callers] + [f"note {session} too" for session in callers]
        )
        assert {outcome(here, session) for session in callers} == {"end_turn"}
        assert "is picked up" not in (tmp_path / "server.log").read_text()


@pytest.mark.timeout(180)
def test_a_clock_that_is_ahead_takes_no_live_run_of_another_machine(tmp_path: Path) -> None:
    with server(tmp_path, CONTAINER) as here:
        here.create("live")
        caller = here.run_in_thread("live", "note once; nap 120")
        here.until_did("note once")
        with server(tmp_path, MACHINE, "--ahead", "90") as there:
            time.sleep(LEASE * 2)  # long enough for a take-over, if there were one
            assert there.post("/run", message("live", "note three")).status == 409
            here.cancel("live")
            assert caller.answer().status == 200
            assert [line for line in here.did() if line.startswith("note")] == ["note once"]
            assert outcome(there, "live") == "cancelled"


@pytest.mark.timeout(180)
def test_a_server_of_another_machine_that_dies_is_taken_over_after_its_lease(tmp_path: Path) -> None:
    with server(tmp_path, CONTAINER) as here, server(tmp_path, MACHINE) as there:
        here.create("orphan")
        here.run_in_thread("orphan", "note once; nap 1; note twice")
        here.until_did("note once")
        there.get("/runs")
        began = time.monotonic()
        here.kill()
        there.until_did("note twice")
        assert time.monotonic() - began < LEASE * 2 + PATIENCE
        while outcome(there, "orphan") != "end_turn":
            assert time.monotonic() - began < PATIENCE * 2
            time.sleep(0.05)
        assert [line for line in there.did() if line.startswith("note")] == ["note once", "note twice"]
