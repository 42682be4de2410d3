"""The reference names everything that is public, and draws the error tree as it is."""

from __future__ import annotations

import ast
import re
from typing import get_args

import safepoint
import safepoint.adapters
import safepoint.server
import safepoint.testing
import safepoint.tools
from safepoint.agent.events import Event
from safepoint.history import LedgerState
from tests.house.test_errors import drawn_tree, written_tree
from tests.house.tree import ROOT

PAGE = (ROOT / "docs/reference.md").read_text()


def section(page: str, title: str) -> str:
    """The text of the `##` section with this title."""
    _, _, rest = page.partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


def missing(names: list[str], page: str) -> list[str]:
    """The names that no code span of the page begins with."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    spans = {re.split(r"\W", span, maxsplit=1)[0] for span in re.findall(r"`([^`]+)`", prose)}
    return [name for name in names if name not in spans]


def test_the_reference_names_every_public_name() -> None:
    assert missing([*safepoint.__all__], PAGE) == []
    assert missing([*safepoint.adapters.__all__], section(PAGE, "safepoint.adapters")) == []
    assert missing([*safepoint.server.__all__], section(PAGE, "safepoint.server")) == []
    assert missing([*safepoint.testing.__all__], section(PAGE, "safepoint.testing")) == []
    assert missing([*safepoint.tools.__all__], section(PAGE, "safepoint.tools")) == []


def test_the_reference_has_every_event_ledger_state_and_stop_reason() -> None:
    assert missing([event.__name__ for event in get_args(Event)], section(PAGE, "Events")) == []
    assert missing(list(LedgerState), section(PAGE, "Ledger states")) == []
    assert missing(list(safepoint.StopReason), section(PAGE, "Stop reasons")) == []


def test_the_reference_draws_the_error_tree_as_it_is() -> None:
    drawing = section(PAGE, "Errors").partition("```text\n")[2].partition("```")[0]
    assert drawn_tree(drawing) == written_tree(ast.parse((ROOT / "src/safepoint/errors.py").read_text()))


def test_a_name_that_is_missing_is_found() -> None:
    page = "\n## One\n`Agent(name)` and `await agent.run()`\n## Two\n`Run`\n"
    assert missing(["Agent", "Run"], page) == []
    assert missing(["Agent", "Run", "agent"], section(page, "One")) == ["Run", "agent"]


def test_every_attribute_of_a_span_is_in_the_guide() -> None:
    source = (ROOT / "src/safepoint/agent/spans.py").read_text()
    names = set(re.findall(r'"((?:gen_ai|safepoint|error)\.[a-z_.]+)"', source))
    guide = (ROOT / "docs/guides/hooks-and-events.md").read_text()
    assert len(names) > 15
    assert {name for name in names if f"`{name}`" not in guide} == set()
