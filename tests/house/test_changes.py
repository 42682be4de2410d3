"""A change fragment says in its name what kind of change it is, and in its text what changes for the user."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.house.tree import ROOT, Source, sources

FRAGMENT = re.compile(r"changes/[a-z0-9-]+\.(feature|fix|change|doc)\.md")


OTHERS = ("changes/README.md", "changes/template.md.j2")


def fragment_complaints(source: Source) -> list[str]:
    if not FRAGMENT.fullmatch(source.path):
        return [f"{source.path}: name it changes/<slug>.<type>.md; the types are feature, fix, change and doc"]
    return [] if source.text.strip() else [f"{source.path}: say what changes for the user"]


def test_every_fragment_is_named_by_the_rule_and_says_something() -> None:
    fragments = [source for source in sources("changes", suffix="") if source.path not in OTHERS]
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


def test_the_changelog_of_the_next_release_has_every_fragment() -> None:
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    shown = " ".join(done.stdout.split())
    fragments = [source for source in sources("changes", suffix=".md") if source.path not in OTHERS]
    assert [source.path for source in fragments if " ".join(source.text.split()) not in shown] == []
