"""One client per event loop, also where loops of other threads come and go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from safepoint.models.per_loop import PerLoop


class Closable:
    async def close(self) -> None:
        pass


class AskedLoop(asyncio.SelectorEventLoop):
    """A loop that lets something happen when it is asked, for the first time, whether it is closed."""

    meanwhile: Callable[[], None] | None = None

    def is_closed(self) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return super().is_closed()


def test_a_client_is_found_while_another_thread_comes_and_tidies_up() -> None:
    clients = PerLoop(Closable, lambda client: client.close())
    left, other = AskedLoop(), asyncio.new_event_loop()
    left.run_until_complete(clients.get())
    left.close()

    def in_another_thread() -> None:
        thread = threading.Thread(target=lambda: other.run_until_complete(clients.get()))
        thread.start()
        thread.join()

    async def main() -> None:
        left.meanwhile = in_another_thread
        assert await clients.get() is await clients.get()

    try:
        asyncio.run(main())
    finally:
        other.run_until_complete(other.shutdown_asyncgens())
        other.close()
