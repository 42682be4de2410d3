"""The words of one run's answer as they come."""

from __future__ import annotations

from safepoint.agent.event_hub import EventReader
from safepoint.agent.events import Lagged, ModelCallEnded, TextStreamed


class TextReader:
    """An async iterator of pieces of text. Nothing is missing, also for a reader that comes late or is slow."""

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        self._seen = 0
        # After a gap the rest is taken from the whole reply, in one piece.
        self._gap = False

    def __aiter__(self) -> TextReader:
        return self

    async def aclose(self) -> None:
        """Detach, as `aclosing(run.text())` does. Cancellation: there is nothing to wait for."""
        self._reader.detach()

    async def __anext__(self) -> str:
        """The next piece. Cancellation: only the reading ends."""
        while True:
            event = await anext(self._reader)
            if not self._reader.speaks(event):
                continue
            if isinstance(event, Lagged):
                self._gap = True
            if isinstance(event, TextStreamed) and not self._gap:
                self._seen += len(event.text)
                return event.text
            if isinstance(event, ModelCallEnded):
                whole = event.message.text if event.message is not None else ""
                rest, self._seen, self._gap = whole[self._seen :], 0, False
                if rest:
                    return rest
