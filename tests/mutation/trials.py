"""How a mutant is tried: in a forked process of its own, until the first test fails or its time is over.

One whose time is over is tried once more, with more of it: a busy machine is no test. If it hangs again it is killed.

Most mutants change the body of one function. For them everything is imported and collected once; the child puts the
other code into that very function and runs the tests that are known to call it. The others change what an import does,
so each gets a process that has not imported Safepoint yet.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import _lru_cache_wrapper, partial  # pyright: ignore[reportPrivateUsage]  # its only name
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final, Protocol, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.mutation.mutants import Mutant

Reached: TypeAlias = dict[str, tuple[float, frozenset[tuple[str, str]]]]
"""For each test: how long it takes, and which functions it calls, as file and name."""

PATIENCE: Final = 4.0
AGAIN: Final = 5.0
LONGEST: Final = 300.0
OPTIONS: Final = (
    *("-q", "-x", "--tb=no", "--timeout=0", "--capture=no", "-p", "no:cacheprovider"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # Hypothesis is imported here already
)
_NOT_TRIED: Final = 3
_FORK: Final = multiprocessing.get_context("fork")
# A failing example is enough: nobody reads it, so it need not become small.
settings.register_profile(
    "mutation",
    phases=[Phase.explicit, Phase.generate],
    max_examples=40,
    database=None,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class Verdict(StrEnum):
    SURVIVED = "survived"
    KILLED = "killed"
    HUNG = "hung"


class Tell(Protocol):
    def __call__(self, mutant: Mutant, verdict: Verdict) -> None: ...


Trial: TypeAlias = Callable[[float], bool]
"""Whether every test passes; a test that hangs is given its usual time, multiplied by the argument."""


def judge(trial: Trial, seconds: float) -> Verdict:
    """What the tests say, in a process of its own, and once more if that takes too long."""
    verdict = _judge_once(partial(trial, 1.0), seconds)
    return verdict if verdict is not Verdict.HUNG else _judge_once(partial(trial, AGAIN), AGAIN * seconds)


def _judge_once(trial: Callable[[], bool], seconds: float) -> Verdict:
    child = _FORK.Process(target=_child, args=(trial,))
    child.start()
    child.join(seconds)
    if child.exitcode is None:
        child.kill()
        child.join()
        return Verdict.HUNG
    if child.exitcode == _NOT_TRIED:
        raise RuntimeError("the mutant could not be put in place")
    if child.exitcode == -signal.SIGALRM:
        return Verdict.HUNG
    return Verdict.SURVIVED if child.exitcode == 0 else Verdict.KILLED


def _child(trial: Callable[[], bool]) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    code = 1
    try:
        code = 0 if trial() else 1
    except LookupError:
        code = _NOT_TRIED
    finally:
        os._exit(code)  # threads that a broken stop has left behind are nobody's business


# -- mutants of an import ----------------------------------------------------------------------------------------------


def judge_import(name: str, code: CodeType, suites: Sequence[Sequence[str]]) -> Verdict:
    """Try each of the suites in turn with this code in the place of the module of that name."""

    def trial(_: float) -> bool:
        sys.meta_path.insert(0, _Finder(name, code))
        settings.load_profile("mutation")
        return all(pytest.main([*OPTIONS, *suite]) == pytest.ExitCode.OK for suite in suites)

    assert name not in sys.modules, f"{name} is imported already"
    return judge(trial, LONGEST)


class _Finder(MetaPathFinder):
    def __init__(self, name: str, code: CodeType) -> None:
        self._name = name
        self._code = code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._name else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._code)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return self._code


# -- mutants of a function's body --------------------------------------------------------------------------------------


class Trials:
    """A plugin that runs no test itself: it tries one mutant after the other with the tests that were collected."""

    def __init__(self, mutants: Iterable[Mutant], tell: Tell, folder: Path) -> None:
        self._mutants = mutants
        self._tell = tell
        self._folder = folder

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        reached = self._reach(session)
        items = {item.nodeid: item for item in session.items}
        for mutant in self._mutants:
            file, function = str(self._folder / mutant.module), mutant.function
            tests = sorted(
                (not item.path.stem.endswith(f"_{Path(mutant.module).stem}"), reached[name][0], name)
                for name, item in items.items()
                if (file, function) in reached[name][1]
            )
            chosen = [(items[name], seconds) for _, seconds, name in tests]

            def trial(times: float, mutant: Mutant = mutant, chosen: list[tuple[pytest.Item, float]] = chosen) -> bool:
                patch(mutant.code, str(self._folder / mutant.module), mutant.function)
                return all(_passes(session, item, times * (PATIENCE + 10 * seconds)) for item, seconds in chosen)

            self._tell(mutant, judge(trial, LONGEST))
        return True

    def _reach(self, session: pytest.Session) -> Reached:
        """Run every test once, unchanged, and note what it calls."""
        receive, send = _FORK.Pipe(duplex=False)

        def trial() -> bool:
            noted: Reached = {}
            calls: list[set[tuple[str, str]]] = []
            note = _noting(calls, str(self._folder))
            threading.setprofile(note)
            for item in session.items:
                calls.append(set())
                for frame, _ in itertools.chain.from_iterable(map(traceback.walk_stack, _running_now())):
                    note(frame, "call", None)
                begun = time.perf_counter()
                sys.setprofile(note)
                passes = _passes(session, item)
                sys.setprofile(None)
                if not passes:
                    send.send(item.nodeid)
                    return False
                noted[item.nodeid] = (time.perf_counter() - begun, frozenset(calls[-1]))
            send.send(noted)
            return True

        child = _FORK.Process(target=_child, args=(trial,))
        child.start()
        send.close()
        try:
            noted: Reached | str = receive.recv()
        except EOFError:
            pytest.exit("the tests do not come to their end without any mutant", returncode=2)
        child.join()
        if isinstance(noted, str):
            pytest.exit(f"{noted} fails without any mutant", returncode=2)
        return noted


def _passes(session: pytest.Session, item: pytest.Item, limit: float = LONGEST) -> bool:
    signal.setitimer(signal.ITIMER_REAL, limit)  # nobody catches this signal: a test that hangs ends the process
    item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
    return not session.testsfailed


def _running_now() -> Iterable[FrameType]:
    """Where each thread is; those of earlier tests are in a function that they called long ago."""
    return sys._current_frames().values()  # pyright: ignore[reportPrivateUsage]  # documented, despite its name


def _noting(calls: list[set[tuple[str, str]]], folder: str) -> Callable[[FrameType, str, object], None]:
    """Calls go to the last set, also those of a thread that an earlier test has started."""

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folder):
            calls[-1].add((code.co_filename, code.co_qualname.partition(".<locals>")[0]))

    return note


def patch(code: CodeType, file: str, function: str) -> None:
    """Let the function do what it does in this other version of its module."""
    (other,) = (each for each in _codes(code) if each.co_qualname == function)
    gc.unfreeze()  # what was frozen after the collection of the tests would not be listed
    things: list[Any] = gc.get_objects()  # Any: whatever there is
    held = [
        thing
        for thing in things
        if type(thing) is FunctionType and (thing.__code__.co_filename, thing.__code__.co_qualname) == (file, function)
    ]
    if not held:
        raise LookupError(f"{file} has no function {function}")
    for each in held:
        each.__code__ = other
    for thing in things:
        if type(thing) is _lru_cache_wrapper and thing.__module__.startswith("safepoint"):
            thing.cache_clear()


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
