"""No committed file knows the machine it was written on, or where packages come from."""

from __future__ import annotations

import re
from pathlib import Path

from tests.house.tree import ROOT, Source, sources

FOREIGN = re.compile(r"(?<![\w.~-])/work/|\b(?:pypi\.org|registry\.npmjs\.org|deb\.debian\.org)\b")
THIS = Path(__file__).resolve().relative_to(ROOT).as_posix()


def foreign_mentions(source: Source) -> list[str]:
    return [
        f"{source.path}:{number}: {found[0]}"
        for number, line in enumerate(source.text.splitlines(), 1)
        for found in FOREIGN.finditer(line)
    ]


def test_no_file_mentions_a_machine_path_or_a_package_registry() -> None:
    every_file = sources(*(entry.name for entry in ROOT.iterdir()), suffix="")
    assert [each for source in every_file if source.path != THIS for each in foreign_mentions(source)] == []


def test_each_kind_of_mention_is_found() -> None:
    for line in ("cd /work/rooms", "index = https://pypi.org/simple", "'registry.npmjs.org'", "http://deb.debian.org"):
        assert len(foreign_mentions(Source("a.md", line))) == 1, line
    assert foreign_mentions(Source("a.md", "see src/work/ and ./work/ and http://example.org/")) == []
