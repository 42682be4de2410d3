"""What a user may import is a list in one place. A name joins it or leaves it on purpose, never by accident.

The order inside each `__all__` is ruff's (RUF022).
"""

from __future__ import annotations

import importlib
from types import ModuleType

from tests.house.tree import ROOT

WINDOWS = (
    "safepoint",
    "safepoint.adapters",
    "safepoint.cluster",
    "safepoint.errors",
    "safepoint.events",
    "safepoint.models",
    "safepoint.server",
    "safepoint.sessions",
    "safepoint.testing",
    "safepoint.tools",
    "safepoint.turns",
)
LIST = ROOT / "tests/house/exports.txt"
HOW_TO_UPDATE = "if this change of the public names is meant, run: .venv/bin/python -m tests.house.test_exports"


def exported(window: ModuleType) -> list[str]:
    """What `__all__` lists; of a module without one, such as `errors`, the public names that are defined there."""
    names: list[str] = getattr(window, "__all__", None) or [name for name in public(window) if is_own(window, name)]
    return [f"{window.__name__}.{name}" for name in names]


def public(window: ModuleType) -> list[str]:
    names = [name for name in vars(window) if not name.startswith("_") and name != "annotations"]
    return [name for name in names if not isinstance(getattr(window, name), ModuleType)]


def is_own(window: ModuleType, name: str) -> bool:
    return getattr(getattr(window, name), "__module__", None) == window.__name__


def window_complaints(window: ModuleType) -> list[str]:
    """A package that re-exports names needs an `__all__`, and every name in one has to exist."""
    if not hasattr(window, "__all__"):
        foreign = [name for name in public(window) if not is_own(window, name)]
        is_package = hasattr(window, "__path__")
        return [f"{window.__name__} has names ({', '.join(foreign)}) but no __all__"] if foreign and is_package else []
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
    vars(window).update(__path__=[])
    assert window_complaints(window) == []
    vars(window).update(here=1)
    assert window_complaints(window) == ["window has names (here) but no __all__"]


def test_a_module_of_definitions_exports_the_public_ones() -> None:
    class Mine(Exception): ...

    Mine.__module__ = "window"
    window = ModuleType("window")
    vars(window).update(Mine=Mine, _Private=Mine, Path=ROOT.__class__)
    assert (window_complaints(window), exported(window)) == ([], ["window.Mine"])


if __name__ == "__main__":
    LIST.write_text("".join(f"{name}\n" for name in all_exports()))
