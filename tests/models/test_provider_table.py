"""The guide's table of providers is made from the program's. `python -m tests.models.test_provider_table` writes it."""

from __future__ import annotations

import sys
from pathlib import Path

from safepoint.models.providers import COMPATIBLE, Provider

GUIDE = Path(__file__).parents[2] / "docs/guides/choose-a-model.md"
BEGIN = "<!-- providers: made by `python -m tests.models.test_provider_table`, do not edit by hand -->\n"
END = "<!-- providers end -->"


def row(provider: Provider) -> str:
    key = f"`{provider.key}`" + (", if the server wants one" if provider.key_optional else "")
    shown = provider.address(provider.base_url) if provider.base_url else ""
    address = f"`{shown}`" if shown else "your resource"
    variable = f", or where `{provider.url_variable}` says" if provider.url_variable and shown else ""
    named = f" (`{provider.url_variable}`)" if provider.url_variable and not shown else ""
    return f'| `"{provider.name}:NAME"` | {provider.title} | {key} | {address}{variable}{named} |'


def table() -> str:
    head = ["| string | who answers | key | address |", "|---|---|---|---|"]
    return "\n".join([*head, *(row(provider) for provider in COMPATIBLE.values())]) + "\n"


def with_table(guide: str) -> str:
    before, _, rest = guide.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def test_the_guide_has_the_table_of_the_program() -> None:
    guide = GUIDE.read_text()
    assert guide == with_table(guide), "type `python -m tests.models.test_provider_table`"


def test_a_provider_that_is_missing_in_the_guide_is_noticed() -> None:
    guide = GUIDE.read_text()
    assert with_table(guide.replace('| `"groq:NAME"`', '| `"grok:NAME"`')) == guide


if __name__ == "__main__":
    GUIDE.write_text(with_table(GUIDE.read_text()))
    sys.exit(0)
