"""A conversation with an agent, one answer at a time, each of which can be stopped.

The history grows by every answer, whole or stopped: a stopped run leaves a valid conversation, so the next message
simply follows it.
"""

from __future__ import annotations

from typing import Any, TextIO

from safepoint import Agent, Message, Run, RunResult, SafePoint, StopReason
from safepoint.cli.sanitize import sanitize


class Conversation:
    """Writes the agent's answers to `out` as they come."""

    def __init__(self, agent: Agent[Any, Any], out: TextIO) -> None:  # Any: every agent can be talked to
        self.history: list[Message] = []
        self._agent = agent
        self._out = out
        self._run: Run[Any, Any] | None = None
        # How often somebody asked to stop the answer that is under way, or about to begin.
        self._asked = 0

    async def answer(self, words: str) -> RunResult[Any]:
        """Say something to the agent and write what it answers.

        Cancellation: the answer is stopped NOW, and neither it nor the words become part of the history.
        """
        try:
            async with self._agent.start(words, history=self.history) as run:
                self._run = run
                if self._asked:
                    self._ask(run)
                async for piece in run.text():
                    self._write(piece)
        finally:
            self._run, self._asked = None, 0
        self.history = run.result.messages
        self._write(_mark(run.result) + "\n")
        return run.result

    def stop(self) -> None:
        """Stop the answer, or the one that is about to begin; asked again, force it. Safe in a signal handler."""
        self._asked += 1
        if self._run is not None:
            self._ask(self._run)

    def forget_stop(self) -> None:
        """Nothing is under way: what was asked so far was not meant for the next answer."""
        self._asked = 0

    def _ask(self, run: Run[Any, Any]) -> None:
        run.cancel(SafePoint.NOW if self._asked == 1 else SafePoint.FORCE, reason="Ctrl-C")

    def _write(self, text: str) -> None:
        self._out.write(sanitize(text))
        self._out.flush()


def _mark(result: RunResult[Any]) -> str:
    """What is added to an answer that is not whole."""
    match result.stop_reason:
        case StopReason.END_TURN:
            return ""
        case StopReason.CANCELLED:
            return "[stopped]"
        case StopReason.ERROR:
            return f"[failed: {result.error}]"
        case other:
            return f"[{other}]"
