"""What `make test` adds to pytest: which tests a Python leaves out, who runs first, what is printed at the end."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]  # none

# Suites that wait for processes and sockets: started first, so that the quick ones fill the gaps and the end.
FIRST = ("tests/server/", "tests/docs/", "tests/process/", "tests/injection/", "tests/examples/", "tests/models/")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    too_new = [item for item in items if _needs_a_newer_python(item)]
    if too_new:
        config.hook.pytest_deselected(items=too_new)
    kept = [item for item in items if item not in too_new] if too_new else items
    items[:] = sorted(kept, key=_turn)


def _needs_a_newer_python(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("python")
    return marker is not None and sys.version_info < marker.args


def _turn(item: pytest.Item) -> int:
    return next((turn for turn, suite in enumerate(FIRST) if item.nodeid.startswith(suite)), len(FIRST))


def pytest_collection_finish() -> None:
    """What is loaded by now stays. Dozens of tests collect garbage, and each would look through all of it."""
    gc.collect()
    gc.freeze()


class OneTreeForAllRules(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A worker takes a file at a time, and the house rules all at once: it parses the project once for all of them."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/house" if nodeid.startswith("tests/house/") else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:  # Any: xdist's own log
    return OneTreeForAllRules(config, log) if config.option.dist == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tables that tests make (`record_property("table", text)`), also when workers made them, and the day's seed."""
    for outcome in ("passed", "failed"):
        reports: Sequence[pytest.TestReport] = terminalreporter.stats.get(outcome, [])
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "table":
                    terminalreporter.section(report.nodeid)
                    terminalreporter.write_line(str(value))
    from tests.injection.sampling import SEED

    terminalreporter.write_line(f"injections were sampled with SAFEPOINT_SEED={SEED}")
