"""What a reader copies from a page or an example imports names that are meant to be imported."""

from __future__ import annotations

import ast
import importlib

from tests.docs.blocks import programs
from tests.house.tree import ROOT, Source, sources

# `errors` has no list of names: the reference draws its tree. The others are for those who write a store or a storage.
OPEN = ("safepoint.errors", "safepoint.sessions.store", "safepoint.storage.operations")
WINDOWS = (
    "safepoint",
    "safepoint.adapters",
    "safepoint.cluster",
    "safepoint.events",
    "safepoint.models",
    "safepoint.server",
    "safepoint.sessions",
    "safepoint.testing",
    "safepoint.tools",
    "safepoint.turns",
)


def inner_names(source: Source, code: str) -> list[str]:
    """The names that this code imports from where users have no business."""
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    ours = [(node.module or "", name.name) for node in imports for name in node.names]
    return [
        f"{source.path}: from {module} import {name}"
        for module, name in ours
        if module.partition(".")[0] == "safepoint" and not _is_public(module, name)
    ]


def _is_public(module: str, name: str) -> bool:
    return module in OPEN or (module in WINDOWS and name in importlib.import_module(module).__all__)


def test_pages_and_examples_import_public_names_only() -> None:
    pages = sources("README.md", "ARCHITECTURE.md", "docs", suffix=".md")
    found = [inner for page in pages for program in programs(page.text) for inner in inner_names(page, program.text)]
    found += [inner for example in sources("examples") for inner in inner_names(example, example.text)]
    assert found == []


def test_an_inner_name_is_found() -> None:
    code = (
        "from safepoint import Agent\nfrom safepoint.agent.event_hub import Reader\nfrom safepoint.events import Hub\n"
    )
    assert inner_names(Source("x.md", code), code) == [
        "x.md: from safepoint.agent.event_hub import Reader",
        "x.md: from safepoint.events import Hub",
    ]


def test_the_index_lists_every_guide_and_the_examples_page_every_example() -> None:
    index, listed = (ROOT / "docs/index.md").read_text(), (ROOT / "docs/examples.md").read_text()
    guides = [f"(guides/{file.name})" for file in (ROOT / "docs/guides").glob("*.md")]
    examples = [f"(../examples/{file.name})" for file in (ROOT / "examples").glob("*.py")]
    assert [link for link in guides if link not in index] == []
    assert [link for link in examples if link not in listed] == []
