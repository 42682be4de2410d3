"""`dataclasses.replace` is for dataclasses: of a value, which is a struct, `msgspec.structs.replace` makes the copy.

The slow one works on a value, too, for users' sake, and no type checker tells the two apart. So in the packages that
work with values, the modules that have dataclasses to replace are listed; any other one means the fast one.
"""

from __future__ import annotations

from tests.house.test_layering import imports
from tests.house.tree import Source, sources

PACKAGES = tuple(f"src/safepoint/{name}" for name in ("history", "agent", "compose", "storage", "sessions"))
# Modules that copy dataclasses with changes. One leaves the list when its dataclasses have become values.
ON_DATACLASSES = {
    "src/safepoint/agent/driver.py",
    "src/safepoint/agent/resume.py",
    "src/safepoint/agent/run.py",
}


def replace_complaints(source: Source) -> list[str]:
    if source.path in ON_DATACLASSES:
        return []
    return [
        f"{source.path}:{line}: write `from msgspec.structs import replace`, or list the module in ON_DATACLASSES"
        for line, dotted in imports(source.parse())
        if dotted == "dataclasses.replace"
    ]


def test_values_are_copied_by_the_function_for_structs() -> None:
    assert [complaint for source in sources(*PACKAGES) for complaint in replace_complaints(source)] == []


def test_every_listed_module_replaces_dataclasses() -> None:
    used = {source.path for source in sources(*PACKAGES) if "replace" in source.text and "dataclasses" in source.text}
    assert ON_DATACLASSES - used == set()


def test_the_slow_function_in_a_new_module_is_found() -> None:
    source = Source("src/safepoint/agent/new.py", "from dataclasses import replace\n")
    (complaint,) = replace_complaints(source)
    assert "msgspec.structs" in complaint
