"""The API for people: what `/openapi.json` says, as one page without a script. Pure.

The usual page for this loads its scripts from another server, which could then do whatever a logged-in user can. This
one is made here, whole, so it needs nothing from elsewhere and works without a network.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]  # Any: JSON, as OpenAPI has it

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
table { border-collapse: collapse } td { padding: .1rem 1.5rem .1rem 0; vertical-align: top }
h3 { margin-bottom: 0 } p { margin: .2rem 0 } section { margin-bottom: 1.5rem }
"""


def api_page(api: Schema) -> str:
    """Every operation, then every shape that they name."""
    title = escape(api["info"]["title"])
    operations = "".join(_operations(api["paths"]))
    shapes = "".join(_shape(name, shape) for name, shape in sorted(_shapes(api).items()))
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}: the API</title><style>{_STYLE}</style></head>
<body><h1>{title}: the API</h1>
<p>The same for programs: <a href="openapi.json">openapi.json</a></p>
<h2>Operations</h2>{operations}
<h2>Shapes</h2>{shapes}
</body></html>
"""


def _operations(paths: Mapping[str, Schema]) -> Iterator[str]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            words = operation.get("description") or operation.get("summary", "")
            given = [(each["name"], each["in"], each.get("schema", {})) for each in operation.get("parameters", ())]
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body is not None:
                given.append(("", "body", body["schema"]))
            yield (
                f"<section><h3><code>{escape(method.upper())} {escape(path)}</code></h3>"
                f"<p>{escape(words)}</p>{_table((name, where, _kind(shape)) for name, where, shape in given)}</section>"
            )


def _shapes(api: Schema) -> Mapping[str, Schema]:
    found: Mapping[str, Schema] = api.get("components", {}).get("schemas", {})
    return found


def _shape(name: str, shape: Schema) -> str:
    needed = shape.get("required", ())
    fields: Mapping[str, Schema] = shape.get("properties", {})
    rows = [(each, "required" if each in needed else "", _kind(of)) for each, of in fields.items()]
    words = shape.get("description", "")
    values = "" if fields else f"<p>{_kind(shape)}</p>"
    return f'<section id="{escape(name)}"><h3>{escape(name)}</h3><p>{escape(words)}</p>{values}{_table(rows)}</section>'


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    """The third of each is HTML already."""
    shown = [
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(note)}</td><td>{kind}</td></tr>"
        for name, note, kind in rows
    ]
    return f"<table>{''.join(shown)}</table>" if shown else ""


def _kind(shape: Schema) -> str:
    """What a value may be, in HTML."""
    if "$ref" in shape:
        name = escape(shape["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in shape:
        several: list[Schema] = shape["anyOf"]
        return " or ".join(_kind(each) for each in several if each != {"type": "null"})
    if "enum" in shape or "const" in shape:
        values: list[object] = shape.get("enum") or [shape["const"]]
        return " or ".join(escape(json.dumps(value)) for value in values)
    if shape.get("type") == "array":
        return f"list of {_kind(shape.get('items', {}))}"
    return escape(str(shape.get("type", "anything")))
