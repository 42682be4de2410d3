"""`check_engine` on Procrastinate, with real processes that are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from safepoint.storage.postgres.storage import PostgresStorage
from safepoint.testing import EngineSetup, check_engine

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]
ROOT = Path(__file__).parents[2]


class WorkerProcess:
    def __init__(self, url: str, log: Path) -> None:
        command = [sys.executable, "-m", "tests.cluster.engine_worker", url, str(log)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def test_procrastinate_loses_no_run_and_repeats_no_effect_while_workers_are_killed(url: str, tmp_path: Path) -> None:
    log = tmp_path / "effects"
    setup = EngineSetup(storage=lambda: PostgresStorage(url), start_worker=lambda: WorkerProcess(url, log), log=log)
    print(check_engine(setup))


class Idle:
    def kill(self) -> None:
        """There is nothing to kill."""


def test_an_engine_that_loses_runs_and_repeats_effects_is_found_out(url: str, tmp_path: Path) -> None:
    log = tmp_path / "effects"
    log.write_text("r0.0\nr0.1\nr0.0\n")
    setup = EngineSetup(storage=lambda: PostgresStorage(url), start_worker=Idle, log=log, patience=0.5)
    with pytest.raises(AssertionError) as found:
        check_engine(setup, runs=2, workers=1, kills=0)
    assert str(found.value).count("is lost: it is queued") == 2
    assert "the effect r0.0 happened 2 times" in str(found.value)
