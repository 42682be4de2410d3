"""Tables that tests make (`record_property("table", text)`) are printed after the run, also when workers made them."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, value in getattr(report, "user_properties", ()):
                if name == "table":
                    terminalreporter.section(report.nodeid)
                    terminalreporter.write_line(str(value))
