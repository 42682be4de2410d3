"""A change fragment says in its name what kind of change it is, and in its text what changes for the user."""

from __future__ import annotations

import re

from tests.house.tree import Source, sources

FRAGMENT = re.compile(r"changes/[a-z0-9-]+\.(feature|fix|change|doc)\.md")


def fragment_complaints(source: Source) -> list[str]:
    if not FRAGMENT.fullmatch(source.path):
        return [f"{source.path}: name it changes/<slug>.<type>.md; the types are feature, fix, change and doc"]
    return [] if source.text.strip() else [f"{source.path}: say what changes for the user"]


def test_every_fragment_is_named_by_the_rule_and_says_something() -> None:
    fragments = [source for source in sources("changes", suffix="") if source.path != "changes/README.md"]
    assert [complaint for source in fragments for complaint in fragment_complaints(source)] == []


def test_a_misnamed_or_empty_fragment_is_found() -> None:
    for source in (
        Source("changes/speed.md", "Faster."),
        Source("changes/speed.perf.md", "Faster."),
        Source("changes/speed.feature.txt", "Faster."),
        Source("changes/speed.feature.md", "\n"),
    ):
        assert len(fragment_complaints(source)) == 1, source
    assert fragment_complaints(Source("changes/a-slug.fix.md", "Faster.")) == []
