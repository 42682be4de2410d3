"""The model that answers: the one that was named, or the best that this machine offers, ready to be called."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Final

from safepoint.agent.model import Model
from safepoint.cli.echo_model import EchoModel
from safepoint.models import choose_model

SCRIPT: Final = "script"
PAUSE: Final = 0.08  # seconds after each word of the script
TINY: Final = "SmolLM2-135M inside this program: tiny, fine for trying Stop, not for work"


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """`words` name it for a person; `tiny`: it is the embedded one, which cannot be trusted with tools."""

    model: Model
    words: str
    tiny: bool = False


def set_up(name: str | None) -> ChosenModel:
    """The model of that name, or the best that is here, ready to answer. Raises `ModelNotReady` or `ValueError`."""
    if name == SCRIPT:
        words = "a script, no language model: it answers slowly, so that you can stop it"
        return ChosenModel(ready(name), words, tiny=True)
    chosen, words = (name, name) if name is not None else _choose()
    tiny = chosen == "local"
    return ChosenModel(ready(chosen) if isinstance(chosen, str) else chosen, TINY if tiny else words, tiny=tiny)


def _choose() -> tuple[str | Model, str]:
    """The choice, and what a person is told of it."""
    choice = choose_model()
    return choice.model, f"{choice.name}, because {choice.why}"


def ready(name: str, pause: float = PAUSE) -> Model:
    """The model, ready to answer: the local one has been fetched and started, which takes a while the first time."""
    if name == SCRIPT:
        return EchoModel(partial(asyncio.sleep, pause))
    model = choose_model(name)
    prepare: Callable[[], Coroutine[None, None, object]] | None = getattr(model, "prepare", None)
    if prepare is not None:
        sys.stderr.write("Starting the embedded model (its 93 MB are fetched the first time) ...\n")
        asyncio.run(prepare())
    return model
