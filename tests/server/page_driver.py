"""The page in a real browser against a real server, with short names for what people do there."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Error, Locator, Page, expect

from tests.server.server_process import ServerProcess

SHOTS = Path("build/screenshots")
expect.set_options(timeout=20_000)
_numbers = count()


class PageDriver:
    """One page of one person. `problems`: what the browser's console complained about."""

    def __init__(self, page: Page, server: ServerProcess) -> None:
        self.page = page
        self.server = server
        self.problems: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", self._broke)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _broke(self, error: Error) -> None:
        self.problems.append(str(error))

    # -- where it is ---------------------------------------------------------------------------------------------------

    def open(self, session: str, app: str = "worker") -> None:
        self.page.goto(f"http://127.0.0.1:{self.server.port}/#{app}/{session}")
        expect(self.message).to_be_enabled()

    @property
    def session(self) -> str:
        found = self.page.locator("#title").get_attribute("data-session")
        assert found
        return found

    @property
    def message(self) -> Locator:
        return self.page.get_by_label("Message", exact=True)

    @property
    def log(self) -> Locator:
        return self.page.locator("#log")

    @property
    def chip(self) -> Locator:
        return self.page.locator("#status")

    @property
    def words(self) -> Locator:
        """What the agent has said."""
        return self.log.locator(".said .words")

    @property
    def mine(self) -> Locator:
        return self.log.locator(".mine")

    @property
    def choice(self) -> Locator:
        return self.page.get_by_role("dialog", name="Stop", exact=True)

    @property
    def receipt(self) -> Locator:
        return self.page.get_by_label("Receipt of the stop")

    def call(self, tool: str) -> Locator:
        return self.log.get_by_label(f"Call of {tool}", exact=True)

    # -- what a person does --------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        self.message.fill(text)
        self.page.keyboard.press("Enter")

    def say_and_see(self, text: str, tool: str) -> None:
        """Wait until that tool has really begun and its card is there."""
        did = f"{tool} begins"
        begun = self.server.did().count(did)
        self.say(text)
        self.server.until_did(did, begun + 1)
        expect(self.call(tool).last).to_have_attribute("data-state", "running")

    def stop_now(self) -> None:
        """By the button and the choice."""
        self.page.get_by_role("button", name="Stop", exact=True).click()
        expect(self.choice).to_be_visible()
        self.choice.get_by_role("button", name="Stop now").click()

    def stopped(self, *, by: str = "you") -> None:
        expect(self.receipt).to_contain_text(f"Stopped by {by}")

    def idle(self) -> None:
        expect(self.page.locator("#stop-group")).to_be_hidden()

    def shot(self, name: str) -> None:
        """Kept for people to look at."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png")


@contextmanager
def opened(
    chromium: Browser, server: ServerProcess, *, width: int = 1280, app: str = "worker", scheme: str = "light"
) -> Generator[PageDriver]:
    """A page with a new session of its own. Afterwards its console is empty: nothing broke its policy."""
    dark = scheme == "dark"
    context = chromium.new_context(
        viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    driver = PageDriver(context.new_page(), server)
    session = f"s{next(_numbers)}"
    assert server.post(f"/apps/{app}/users/user/sessions/{session}").status == 200
    driver.open(session, app)
    try:
        yield driver
    finally:
        context.close()
    assert driver.problems == []
