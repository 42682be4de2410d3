"""What a user may import is a list in one place. A name joins it or leaves it on purpose, never by accident.

The order inside each `__all__` is ruff's (RUF022).
"""

from __future__ import annotations

import importlib
from types import ModuleType

from tests.house.tree import ROOT

WINDOWS = ("safepoint", "safepoint.server", "safepoint.testing", "safepoint.tools")
LIST = ROOT / "tests/house/exports.txt"
HOW_TO_UPDATE = "if this change of the public names is meant, run: .venv/bin/python -m tests.house.test_exports"


def exported(window: ModuleType) -> list[str]:
    names: list[str] = getattr(window, "__all__", [])
    return [f"{window.__name__}.{name}" for name in names]


def window_complaints(window: ModuleType) -> list[str]:
    """An empty module has nothing to list; any other one needs an `__all__` of names that exist."""
    if not hasattr(window, "__all__"):
        public = [name for name in vars(window) if not name.startswith("_")]
        own = [name for name in public if not isinstance(getattr(window, name), ModuleType)]
        return [f"{window.__name__} has names ({', '.join(own)}) but no __all__"] if own else []
    return [f"{name} is in __all__ but does not exist" for name in exported(window) if not _exists(window, name)]


def _exists(window: ModuleType, name: str) -> bool:
    return hasattr(window, name.removeprefix(f"{window.__name__}."))


def windows() -> list[ModuleType]:
    return [importlib.import_module(name) for name in WINDOWS]


def all_exports() -> list[str]:
    return sorted(name for window in windows() for name in exported(window))


def test_every_window_lists_names_that_exist() -> None:
    assert [complaint for window in windows() for complaint in window_complaints(window)] == []


def test_the_public_names_are_the_ones_on_the_list() -> None:
    assert all_exports() == LIST.read_text().split(), HOW_TO_UPDATE


def test_a_listed_name_that_does_not_exist_is_found() -> None:
    window = ModuleType("window")
    vars(window).update(__all__=["here", "gone"], here=1)
    assert window_complaints(window) == ["window.gone is in __all__ but does not exist"]


def test_a_window_without_a_list_is_found() -> None:
    window = ModuleType("window")
    assert window_complaints(window) == []
    vars(window).update(here=1)
    assert window_complaints(window) == ["window has names (here) but no __all__"]


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in all_exports()))
