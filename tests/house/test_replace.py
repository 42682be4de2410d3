"""`dataclasses.replace` is for dataclasses: of a value, which is a struct, `msgspec.structs.replace` makes the copy.

The slow one works on a value, too, for users' sake, and no type checker tells the two apart. So the packages that work
with values never import it.
"""

from __future__ import annotations

from tests.house.test_layering import imports
from tests.house.tree import Source, sources

PACKAGES = tuple(
    f"src/safepoint/{name}" for name in ("_core", "history", "tools", "agent", "compose", "storage", "sessions")
)


def replace_complaints(source: Source) -> list[str]:
    return [
        f"{source.path}:{line}: write `from msgspec.structs import replace`"
        for line, dotted in imports(source.parse())
        if dotted == "dataclasses.replace"
    ]


def test_values_are_copied_by_the_function_for_structs() -> None:
    assert [complaint for source in sources(*PACKAGES) for complaint in replace_complaints(source)] == []


def test_the_slow_function_in_a_new_module_is_found() -> None:
    source = Source("src/safepoint/agent/new.py", "from dataclasses import replace\n")
    (complaint,) = replace_complaints(source)
    assert "msgspec.structs" in complaint
