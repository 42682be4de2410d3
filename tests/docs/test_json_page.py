"""The page about JSON names every kind and field, and the schemas beside it are those of the declared types."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

from safepoint.agent.event_json import EVENT
from safepoint.agent.events import Event, EventOrigin
from safepoint.history.json_codec import MESSAGES, Codec
from safepoint.history.parts import Part
from tests.house.tree import ROOT

PAGE = (ROOT / "docs/json.md").read_text()
SCHEMAS: dict[str, Codec[Any]] = {"events": EVENT, "messages": MESSAGES}  # Any: of each its own type
HOW_TO_UPDATE = "if this change of the JSON is meant, run: .venv/bin/python -m tests.docs.test_json_page"


def written(schema: dict[str, Any]) -> str:  # Any: JSON Schema
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"


def rows(page: str) -> dict[str, set[str]]:
    """Every row of a table that begins with a code span: that, and the spans in its second column."""
    found = re.findall(r"^\| `(\w+)` \| (.*) \|$", page, flags=re.MULTILINE)
    return {
        kind: set(re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", fields)))
        for kind, fields in found
        if fields != "fields"
    }


def test_the_page_has_a_row_for_each_kind_with_its_fields() -> None:
    own = set(EventOrigin.__struct_fields__)
    expected = {kind.__struct_config__.tag: set(kind.__struct_fields__) - own for kind in get_args(Event)}
    expected |= {kind.__struct_config__.tag: set(kind.__struct_fields__) for kind in get_args(Part)}
    assert rows(PAGE) == expected


def test_the_schemas_are_up_to_date() -> None:
    for name, codec in SCHEMAS.items():
        assert (ROOT / f"docs/schemas/{name}.json").read_text() == written(codec.schema()), HOW_TO_UPDATE


def test_a_field_that_is_missing_from_a_row_is_found() -> None:
    assert rows("| `kind` | fields |\n|---|---|\n| `text` | `text` (or `no`) |\n") == {"text": {"text"}}


if __name__ == "__main__":
    for name, codec in SCHEMAS.items():
        (ROOT / f"docs/schemas/{name}.json").write_text(written(codec.schema()))
