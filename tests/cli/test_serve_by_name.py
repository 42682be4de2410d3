"""`safepoint serve module:name`: one app, found by its name in a module."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from safepoint import Agent
from safepoint.serving.apps import Catalog
from safepoint.testing import ScriptedModel, say


def shop() -> ModuleType:
    module = ModuleType("shop")
    module.till = Agent("till", model=ScriptedModel(say("done")))  # type: ignore[attr-defined]  # a module of the user's
    module.number = 7  # type: ignore[attr-defined]  # as above
    return module


def test_an_agent_is_found_by_its_name_in_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shop", shop())
    assert Catalog.of_object("shop:till").names == ("till",)


@pytest.mark.parametrize("word", ["shop:number", "shop:nothing", "shop:"])
def test_what_is_no_agent_is_refused(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shop", shop())
    with pytest.raises(ValueError, match="shop has no agent named"):
        Catalog.of_object(word)
