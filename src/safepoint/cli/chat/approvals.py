"""The person is asked before the assistant runs a command or changes a file; "always" is remembered for this chat.

The question is a pause of the run, so it is durable: it can be answered after the program was closed and opened again.
"always" covers one plain command and its first words. Anything that could hide a second command is asked about again.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any, Final, cast

from safepoint import Deny, Hooks, Replace, Run, ToolCall

# Programs whose second word says what they do: "git push" is allowed, not all of git.
_WITH_SUBCOMMANDS: Final = frozenset(
    [
        "apt",
        "apt-get",
        "brew",
        "cargo",
        "docker",
        "gh",
        "git",
        "go",
        "kubectl",
        "make",
        "npm",
        "pip",
        "pnpm",
        "podman",
        "poetry",
        "systemctl",
        "terraform",
        "uv",
        "yarn",
    ]
)
# Programs that run what their arguments say: allowed only with the same arguments.
_RUN_ANYTHING: Final = frozenset(
    [
        "awk",
        "bash",
        "dash",
        "doas",
        "env",
        "eval",
        "exec",
        "find",
        "fish",
        "ksh",
        "node",
        "nohup",
        "perl",
        "php",
        "python",
        "python3",
        "ruby",
        "sh",
        "source",
        "ssh",
        "sudo",
        "time",
        "timeout",
        "watch",
        "xargs",
        "zsh",
    ]
)
_HIDES_MORE: Final = re.compile(r"[;&|<>`$()\n\\{}]")
SAID_NO: Final = "the user said no"


@dataclass(frozen=True, slots=True)
class Request:
    """What the person is asked. `text` is shown and can be edited; `always` is what "always" would cover."""

    tool: str
    verb: str
    text: str
    always: str
    note: str

    def payload(self) -> dict[str, str]:
        return {"approve": self.tool, "verb": self.verb, "text": self.text, "always": self.always, "note": self.note}

    @staticmethod
    def of(payload: Any) -> Request | None:  # Any: what any tool may ask with
        """The request in the payload of a question, if it is one of ours."""
        if not isinstance(payload, dict) or "approve" not in payload:
            return None
        given = cast("dict[str, Any]", payload)  # Any: as above
        names = ("approve", "verb", "text", "always", "note")
        return Request(*(str(given.get(name, "")) for name in names))


def covered_by_always(command: str) -> str:
    """The words that "always" covers for this command; the whole command if it could do anything else."""
    if _HIDES_MORE.search(command):
        return command
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    if not words or "=" in words[0] or words[0].rpartition("/")[2] in _RUN_ANYTHING:
        return command
    if words[0] in _WITH_SUBCOMMANDS:
        return " ".join(words[:2]) if len(words) > 1 and not words[1].startswith("-") else command
    return words[0]


class Approvals(Hooks):
    """Asks before `shell` and `write_file`. An answer is True, False, a reason, `{"always": True}` or `{"edit": …}`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._allowed: set[tuple[str, str]] = set()

    async def before_tool(self, run: Run[Any, Any], call: ToolCall) -> Deny | Replace | None:  # Any: a run of any agent
        """Ask a person. Cancellation: the call is not made."""
        request = self._request(call)
        if request is None or (request.tool, request.always) in self._allowed:
            return None
        answer = await self.ctx.interrupt(request.payload())
        match answer:
            case True:
                return None
            case {"always": True}:
                self._allowed.add((request.tool, request.always))
                return None
            case {"edit": str(text)}:
                return Replace(args={**call.args, _EDITED[request.tool]: text})
            case str(reason) if reason.strip():
                return Deny(f"{SAID_NO}: {reason.strip()}")
            case _:
                return Deny(SAID_NO)

    def _request(self, call: ToolCall) -> Request | None:
        match call.name, call.args:
            case "shell", {"command": str(command)}:
                note = f"in {self._folder}, with your rights; there is no undo"
                return Request("shell", "run", command, covered_by_always(command), note)
            case "write_file", {"path": str(path), **rest}:
                size = len(str(rest.get("text", "")))
                note = f"in {self._folder}; {size} characters replace what is there"
                return Request("write_file", "write the file", path, path, note)
            case _:
                return None


_EDITED: Final = {"shell": "command", "write_file": "path"}


def read_answer(typed: str) -> object | None:
    """The answer that a line means; None if it is a sentence, which is sent as a "no" once the person confirms it."""
    match typed.strip().lower():
        case "y" | "yes" | "ok":
            return True
        case "n" | "no":
            return False
        case "a" | "always":
            return {"always": True}
        case _:
            return None
