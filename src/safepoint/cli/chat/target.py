"""The agent that a chat talks to: an app's folder or file, `module:agent`, or a model with the assistant around it."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safepoint import BaseAgent
from safepoint.cli.chat.assistant import assistant, short
from safepoint.cli.model_setup import SCRIPT, set_up
from safepoint.models.registry import PROVIDERS
from safepoint.serving.apps import Catalog, adapted


class NoTarget(ValueError):
    """The word on the command line names nothing to talk to."""


@dataclass(frozen=True, slots=True)
class Target:
    """`words`: who answers, for the first line. `about`: what it can do, for the lines below."""

    agent: BaseAgent[Any, Any]  # Any: every agent can be talked to
    words: str
    about: tuple[str, ...]


def find_target(word: str | None, folder: Path) -> Target:
    """Raises `NoTarget` with what to write instead, `ModelNotReady` or `ValueError` for a model that can't answer."""
    if word is None or names_model(word):
        return for_model(word, folder)
    path = Path(word)
    agent = _from_path(path) if path.exists() else _from_module(word)
    return Target(agent, f"{agent.name} from {word}", (_tools_of(agent),))


def for_model(word: str | None, folder: Path) -> Target:
    chosen = set_up(word)
    about: tuple[str, ...] = (
        f"It can read files in {short(folder)}, fetch pages, calculate.",
        "It asks before it changes a file or runs a command.",
    )
    if chosen.tiny:
        about = ("It can calculate. With a larger model it also works with your files and commands.",)
    return Target(assistant(chosen.model, folder, tiny=chosen.tiny), chosen.words, about)


def names_model(word: str) -> bool:
    provider, separator, _ = word.partition(":")
    return (
        word in ("local", SCRIPT)
        or word.startswith(("http://", "https://"))
        or (bool(separator) and provider in PROVIDERS)
    )


def _tools_of(agent: BaseAgent[Any, Any]) -> str:  # Any: as above
    names = ", ".join(agent.tools)
    return f"Its tools: {names}." if names else "It has no tools of its own."


def _from_path(path: Path) -> BaseAgent[Any, Any]:  # Any: as above
    folder = path if path.is_dir() else path.parent
    if (folder / "agent.py").is_file() and path.name in ("agent.py", folder.name):
        app = Catalog.load(folder.resolve().parent).get(folder.resolve().name)
        if app is not None and app.agent is not None:
            return app.agent
        raise NoTarget(f"{path} can't be loaded: {app.error if app is not None else 'it is no app'}")
    if path.suffix == ".py":
        return _from_module(f"{path.stem}:agent", path.resolve().parent)
    raise NoTarget(f"{path} is no app: write a folder with agent.py in it, which has an `agent`")


def _from_module(word: str, folder: Path | None = None) -> BaseAgent[Any, Any]:  # Any: as above
    module, _, name = word.partition(":")
    if not name:
        raise NoTarget(f"{word!r} is neither an app, nor module:agent, nor a model: write 'local' or 'openai:NAME'")
    sys.path.insert(0, str(folder or Path.cwd()))
    try:
        found: object = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        raise NoTarget(f"{word}: there is no module {error.name!r} here") from error
    finally:
        sys.path.pop(0)
    if not isinstance(found, BaseAgent) and found is not None:
        found = adapted(found, name)
    if not isinstance(found, BaseAgent):
        raise NoTarget(f"{word}: {module} has no agent named {name!r}")
    return found  # pyright: ignore[reportUnknownVariableType]  # an agent of any kind
