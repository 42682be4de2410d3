"""The commands of a chat: words after a slash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

COMMANDS: Final = {
    "/resume": "go on where the last turn was stopped; /resume TEXT adds a message",
    "/rewind": "take turns back; says what stays done",
    "/why": "what the last stop did, or what a stop waits for",
    "/tree": "the agents and calls at work; stop one of them",
    "/model": "which model answers; /model NAME changes it",
    "/sessions": "earlier chats; /sessions N opens one",
    "/new": "begin another chat",
    "/take-back": "take the last message back that has not joined yet",
    "/help": "this list",
    "/quit": "end the chat",
}


def completions(text: str) -> list[tuple[str, str]]:
    """The commands that the text may become."""
    word = text.split(" ")[0]
    return [(name, help) for name, help in COMMANDS.items() if name.startswith(word)]


def common_beginning(names: Sequence[str]) -> str:
    """What all of them begin with."""
    shortest = min(names, key=len)
    return next(
        (
            shortest[:size]
            for size in range(len(shortest), 0, -1)
            if all(name.startswith(shortest[:size]) for name in names)
        ),
        "",
    )


def split(text: str) -> tuple[str, str]:
    """The command, whole if its beginning fits only one, and the words after it."""
    word, _, rest = text.strip().partition(" ")
    word = "/quit" if word == "/exit" else word
    found = [name for name in COMMANDS if name.startswith(word)]
    return (found[0] if len(found) == 1 else word), rest.strip()
