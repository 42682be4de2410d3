"""A checker is silenced by name and with a reason, never wholesale."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

from tests.house.tree import CODE, Source, sources

SILENCED = re.compile(r"#\s*(type: ignore|pyright: ignore|noqa)(?P<code>\[[\w\-, ]+\]|: *[A-Z]+\d+)?")


def bare_waivers(source: Source) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        found = list(SILENCED.finditer(token.string)) if token.type == tokenize.COMMENT else []
        if not found:
            continue
        where = f"{source.path}:{token.start[0]}"
        if any(each["code"] is None for each in found):
            yield f"{where}: name the rule that is silenced: {token.string}"
        elif not re.search(r"[a-z]{2}", token.string[found[-1].end() :]):
            yield f"{where}: say why it is silenced: {token.string}"


def test_a_silenced_checker_is_told_which_rule_and_why() -> None:
    assert [complaint for source in sources(*CODE) for complaint in bare_waivers(source)] == []


def test_a_waiver_without_a_rule_or_a_reason_is_found() -> None:
    bad = ["x = 1  # type: ignore", "x = 1  # type: ignore[misc]", "x = 1  # noqa: B008", "x = 1  # noqa"]
    good = [
        "x = 1  # type: ignore[misc]  # the stub is wrong",
        "x = 1  # type: ignore[misc]  # pyright: ignore[reportCall]  # untyped callers",
        "x = '# noqa'",
        "x = 1  # noqa: B008 (made once on purpose)",
    ]
    assert [len(list(bare_waivers(Source("a.py", line)))) for line in bad] == [1, 1, 1, 1]
    assert [list(bare_waivers(Source("a.py", line))) for line in good] == [[], [], [], []]
