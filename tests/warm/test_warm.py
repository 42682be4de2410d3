"""A forked process is as good as a new one: its files, signals, environment, warnings and end are its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm.process import WarmProcess

LOOKS_AROUND = """
import atexit, os, random, signal, sys, threading, warnings
atexit.register(print, "at exit")
print(__name__, __file__ == sys.argv[0], sys.argv[1:], os.getcwd() == os.path.realpath(sys.argv[1]), os.environ["MARK"])
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGCHLD).name)
print(os.getsid(0) == os.getpid(), threading.active_count(), sorted(map(int, os.listdir("/proc/self/fd")))[:3])
print("json" in sys.modules, sys.stdin.read() == "")
sys.exit(7)
"""


def output_of(tmp_path: Path, text: str, *arguments: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
    program, output = tmp_path / "program.py", tmp_path / "output"
    program.write_text(text)
    with output.open("wb") as file:
        process = WarmProcess(
            [str(program), *arguments],
            preload=["json", "no_such_module"],
            cwd=tmp_path,
            env={**os.environ, "MARK": "mine"},
            files=(None, file.fileno(), file.fileno()),
            options=options,
        )
        code = process.wait(30)
    return code, output.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_has_all_that_a_new_process_has(tmp_path: Path) -> None:
    code, said = output_of(tmp_path, LOOKS_AROUND, str(tmp_path), options=("new_session",))
    lines = [
        f"__main__ True {[str(tmp_path)]} True mine",
        "True SIG_DFL",
        "True 1 [0, 1, 2]",
        "True True",
        "at exit",
    ]
    assert (code, said.splitlines()) == (7, lines)


def test_two_of_them_draw_different_random_numbers(tmp_path: Path) -> None:
    assert output_of(tmp_path, "import random; print(random.random())") != output_of(
        tmp_path, "import random; print(random.random())"
    )


def test_an_error_is_a_traceback_and_an_exit_code(tmp_path: Path) -> None:
    code, said = output_of(tmp_path, "1 / 0")
    assert (code, said.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")


def test_a_warning_is_an_error_only_if_that_is_asked_for(tmp_path: Path) -> None:
    warns = "import warnings; warnings.warn('old', stacklevel=1)"
    assert output_of(tmp_path, warns)[0] == 0
    assert output_of(tmp_path, warns, options=("warnings_are_errors",))[0] == 1


def test_a_signal_ends_it_and_who_waits_is_told_which(tmp_path: Path) -> None:
    program = tmp_path / "waits.py"
    program.write_text("import threading; threading.Event().wait()")
    process = WarmProcess([str(program)], preload=[])
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.terminate()
    assert process.wait(30) == -signal.SIGTERM
    process.terminate()  # of one that is gone: nothing


def test_a_module_runs_as_with_m(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as file:
        process = WarmProcess(
            ["json.tool", "--help"], module=True, preload=[], files=(None, file.fileno(), file.fileno())
        )
        assert process.wait(30) == 0
    assert (tmp_path / "output").read_text().startswith("usage: ")
