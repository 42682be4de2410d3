"""The table of rooms in ARCHITECTURE.md is measured: their sizes, and what each imports.

Sizes may drift by a quarter before the table has to be counted again; imports may not drift. `python -m
tests.house.test_rooms` counts again and keeps the words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.house.test_layering import RINGS, package_imports, part_of
from tests.house.tree import ROOT, Source, sources

PAGE = ROOT / "ARCHITECTURE.md"
COUNT_AGAIN = "count again: .venv/bin/python -m tests.house.test_rooms"
DRIFT = 0.25
ROW = re.compile(r"^\| (\d) \| `(\w+)` \| (\d+) \| (\d+) \| ([^|]*) \|", re.MULTILINE)
# Single modules and windows, too small for a row.
NO_ROOMS = {"__main__", "_extras", "events"}


@dataclass(frozen=True)
class Room:
    ring: int
    files: int
    lines: int
    imports: str


def measured(files: list[Source]) -> dict[str, Room]:
    edges = package_imports(files)
    rooms: dict[str, Room] = {}
    for name, ring in RINGS.items():
        inside = [source for source in files if part_of(source) == name]
        if inside and name not in NO_ROOMS:
            lines = sum(len(source.text.splitlines()) for source in inside)
            imports = ", ".join(
                sorted(f"`{target}`" for source, target in edges if source == name and target in shown())
            )
            rooms[name] = Room(ring, len(inside), lines, imports or "–")
    return rooms


def shown() -> set[str]:
    return set(RINGS) - NO_ROOMS


def rows(page: str) -> dict[str, Room]:
    return {
        name: Room(int(ring), int(files), int(lines), imports)
        for ring, name, files, lines, imports in ROW.findall(page)
    }


def complaints(page: Mapping[str, Room], tree: Mapping[str, Room]) -> Iterator[str]:
    for name in sorted(page.keys() ^ tree.keys()):
        yield f"{name} is in {'the table' if name in page else 'the tree'} only"
    for name in sorted(page.keys() & tree.keys()):
        yield from row_complaints(name, page[name], tree[name])


def row_complaints(name: str, row: Room, room: Room) -> Iterator[str]:
    if (row.ring, row.imports) != (room.ring, room.imports):
        yield f"{name}: ring {room.ring}, imports {room.imports}; the table says {row.ring}, {row.imports}"
    for what, row_count, count in ("files", row.files, room.files), ("lines", row.lines, room.lines):
        if abs(row_count - count) > max(DRIFT * count, 100 if what == "lines" else 1):
            yield f"{name}: {count} {what}; the table says {row_count}"


def rewritten(page: str, tree: Mapping[str, Room]) -> str:
    """Rows that are still true stay as they are: two branches that count again do not get in each other's way."""
    before = rows(page)

    def row(found: re.Match[str]) -> str:
        name = found[2]
        if not list(row_complaints(name, before[name], tree[name])):
            return found[0]
        room = tree[name]
        lines = max(round(room.lines, -2), 100)
        return f"| {room.ring} | `{name}` | {room.files} | {lines} | {room.imports} |"

    return ROW.sub(row, page)


def source_files() -> list[Source]:
    return list(sources("src/safepoint"))


def test_the_table_of_rooms_is_the_tree() -> None:
    assert list(complaints(rows(PAGE.read_text()), measured(source_files()))) == [], COUNT_AGAIN


def test_a_room_that_has_moved_grown_or_gone_is_found() -> None:
    room = Room(1, 10, 1000, "–")
    assert list(complaints({"a": room}, {"a": Room(1, 12, 1200, "–")})) == [], "that is drift"
    assert len(list(complaints({"a": room}, {"a": Room(1, 20, 2000, "–")}))) == 2
    assert len(list(complaints({"a": room}, {"a": Room(1, 10, 1000, "`b`")}))) == 1
    assert list(complaints({"a": room}, {"b": room})) == ["a is in the table only", "b is in the tree only"]


def test_only_rows_that_are_wrong_are_written_anew() -> None:
    page = "| 1 | `a` | 10 | 1000 | – | words |\n| 1 | `b` | 10 | 1000 | – | words |"
    tree = {"a": Room(1, 11, 1049, "–"), "b": Room(1, 11, 1049, "`a`")}
    assert rewritten(page, tree) == "| 1 | `a` | 10 | 1000 | – | words |\n| 1 | `b` | 11 | 1000 | `a` | words |"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text(), measured(source_files())))
