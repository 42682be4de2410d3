"""The agents that are served: one folder each, `APPS_DIR/<name>/agent.py` with an `agent` or a `root_agent`.

An app that can't be loaded is listed with its error and refused; the others are served.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from safepoint.agent.base import BaseAgent
from safepoint.serving.ids import BadId, check_id

_log = logging.getLogger("safepoint")


@dataclass(frozen=True, slots=True)
class App:
    """One app: its agent, or why there is none. `description`: the first paragraph of its module's docstring."""

    name: str
    agent: BaseAgent[Any, Any] | None  # Any: agents of every kind
    error: str | None = None
    description: str | None = None


class Catalog:
    """All apps by name, fixed when the server starts."""

    def __init__(self, apps: Mapping[str, App]) -> None:
        self._apps = dict(apps)

    @staticmethod
    def of(agents: Mapping[str, BaseAgent[Any, Any]]) -> Catalog:  # Any: JSON values
        return Catalog({check_id("app", name): App(name, agent) for name, agent in agents.items()})

    @staticmethod
    def load(folder: Path) -> Catalog:
        """Raises `OSError` for a folder that can't be read; whatever a single app raises is kept with that app."""
        names = sorted(entry.name for entry in folder.iterdir())
        found = [_load(path) for name in names if (path := folder / name / "agent.py").is_file()]
        return Catalog({app.name: app for app in found})

    @staticmethod
    def of_object(word: str) -> Catalog:
        """One app, by `module:name`: an agent of Safepoint's, or of a framework that has an adapter.

        Raises ImportError, and ValueError if there is no such agent.
        """
        module, _, name = word.partition(":")
        found: object = getattr(importlib.import_module(module), name, None)
        agent = _agent_in(found, name)
        if agent is None:
            raise ValueError(f"{word}: {module} has no agent named {name!r}")
        return Catalog.of({agent.name: agent})

    @staticmethod
    def of_paths(paths: Iterable[Path]) -> Catalog:
        """Apps one by one: each the folder of an `agent.py`, or that file. What an app raises is kept with it."""
        found = [_load((path if path.name == "agent.py" else path / "agent.py").resolve()) for path in paths]
        return Catalog({app.name: app for app in found})

    def __iter__(self) -> Iterator[App]:
        return iter(self._apps.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Of those that can be served."""
        return tuple(app.name for app in self if app.agent is not None)

    def get(self, name: str) -> App | None:
        return self._apps.get(name)


def adapted(agent: object, name: str) -> BaseAgent[Any, Any] | None:  # Any: of every kind
    """The agent of another framework under that name; None if it is no agent of a framework that has an adapter."""
    from safepoint.adapters import adapt, adapter_for

    return adapt(agent, name=name) if adapter_for(agent) is not None else None


def _agent_in(found: object, name: str) -> BaseAgent[Any, Any] | None:  # Any: as above
    if isinstance(found, BaseAgent):
        return found  # pyright: ignore[reportUnknownVariableType]  # of any kind
    return adapted(found, name)


def _load(path: Path) -> App:
    name = path.parent.name
    try:
        check_id("app", name)
        module = _import(f"safepoint_app_{name}", path)
        agent = getattr(module, "agent", None) or getattr(module, "root_agent", None)
        if not isinstance(agent, BaseAgent) and agent is not None:
            agent = adapted(agent, name)
        if not isinstance(agent, BaseAgent):
            raise TypeError(f"{path} has neither `agent` nor `root_agent`: assign an Agent or a composite to one")
    except BadId as error:
        return App(name, None, str(error))
    except (Exception, SystemExit) as error:
        _log.exception("the app %s can't be served", name)
        return App(name, None, f"{type(error).__name__}: {error}")
    description = inspect.cleandoc(module.__doc__ or "").partition("\n\n")[0]
    return App(name, agent, description=description or None)  # pyright: ignore[reportUnknownArgumentType]  # of any kind


def _import(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(path.parent)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} can't be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
