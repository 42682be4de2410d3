"""No committed file knows the machine it was written on, or where packages come from."""

from __future__ import annotations

import re

from tests.house.tree import ROOT, Source, sources

# Spelled in pieces, so that this file keeps the rule as well.
PLACE = "/".join(("", "work", ""))
HOSTS = tuple(".".join(words) for words in (("pypi", "org"), ("registry", "npmjs", "org"), ("deb", "debian", "org")))
FOREIGN = re.compile(rf"(?<![\w.~-]){PLACE}|\b(?:{'|'.join(map(re.escape, HOSTS))})\b")


def foreign_mentions(source: Source) -> list[str]:
    return [
        f"{source.path}:{number}: {found[0]}"
        for number, line in enumerate(source.text.splitlines(), 1)
        for found in FOREIGN.finditer(line)
    ]


def test_no_file_mentions_a_machine_path_or_a_package_registry() -> None:
    every_file = sources(*(entry.name for entry in ROOT.iterdir()), suffix="")
    assert [each for source in every_file for each in foreign_mentions(source)] == []


def test_each_kind_of_mention_is_found() -> None:
    for line in (f"cd {PLACE}here", *(f"see https://{host}/simple" for host in HOSTS)):
        assert len(foreign_mentions(Source("a.md", line))) == 1, line
    assert foreign_mentions(Source("a.md", "see src/work/ and ./work/ and http://example.org/")) == []
