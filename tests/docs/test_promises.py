"""The table of promises in the guide says what the adapters say."""

from __future__ import annotations

import importlib

from safepoint.adapters import ADAPTERS, Promises
from safepoint.agent.promises import PLACES
from tests.house.tree import ROOT

GUIDE = (ROOT / "docs/adapters/index.md").read_text()


def rows() -> dict[str, list[str]]:
    """The table's cells by their first."""
    _, _, rest = GUIDE.partition("## Promises")
    lines = [line.strip("| ").split(" | ") for line in rest.partition("\n\nUsage of")[0].splitlines() if "|" in line]
    return {"frameworks": lines[0], **{cells[0]: cells[1:] for cells in lines[2:]}}


def promises() -> list[Promises]:
    return [importlib.import_module(f"safepoint.adapters.{name}").PROMISES for name in ADAPTERS.values()]


def words(*, yes: bool) -> str:
    return "yes" if yes else "no"


def test_the_table_of_promises_is_what_the_adapters_promise() -> None:
    table, made = rows(), promises()
    assert table["frameworks"] == [each.framework for each in made]
    assert table["safe points"] == ["all" if each.safe_points == PLACES else "some" for each in made]
    assert table["a message into the run (`run.steer`)"] == [words(yes=each.steering) for each in made]
    assert table["partial text"] == [words(yes=each.partial_text) for each in made]
    assert table["plain functions in listed threads"] == [words(yes=each.threads) for each in made]
    assert table["usage of whole model calls"] == [each.usage for each in made]
    assert table["its own store"] == [each.own_store for each in made]
    assert table["its own questions to a person"] == [words(yes=each.own_pauses) for each in made]


def test_the_versions_in_the_guide_are_those_that_the_adapters_were_tested_with() -> None:
    for each in promises():
        assert f"| {each.tested[0]} |" in GUIDE
