"""The page for everyone: with the keyboard alone, on a phone, light and dark, and for a screen reader."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.server.page_driver import PageDriver, opened
from tests.server.server_process import ServerProcess

pytestmark = pytest.mark.browser
_AXE = Path(str(files("axe_playwright_python") / "axe.min.js"))


def faults(page: PageDriver) -> list[str]:
    """What axe-core finds serious or critical."""
    page.page.evaluate(_AXE.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = page.page.evaluate(  # Any: JSON
        "async () => (await axe.run(document, {resultTypes: ['violations']})).violations"
    )
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    return [
        f"{each['id']}: {node['html'][:160]} {node['failureSummary']}" for each in serious for node in each["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 800, 390])
def test_axe_finds_no_serious_fault_in_any_state(
    chromium: Browser, server: ServerProcess, width: int, scheme: str
) -> None:
    with opened(chromium, server, width=width, scheme=scheme) as page:
        assert faults(page) == []
        page.say_and_see("say some **words** with `code`; note x; nap 30; tell a b 30", "nap")
        assert faults(page) == []
        page.page.get_by_role("button", name="Stop", exact=True).click()
        expect(page.choice).to_contain_text("left in doubt")
        assert faults(page) == []
        page.shot(f"choice-{width}-{scheme}")
        page.choice.get_by_role("button", name="Stop now").click()
        page.stopped()
        assert faults(page) == []
        page.shot(f"receipt-{width}-{scheme}")
        page.page.locator("#open-timeline").click()
        expect(page.page.get_by_role("img", name="worker over")).to_be_visible()
        assert faults(page) == []
        page.page.keyboard.press("Escape")
        page.say("sign the lease")
        expect(page.log.locator(".question")).to_be_visible()
        assert faults(page) == []
        page.shot(f"question-{width}-{scheme}")


def test_everything_is_done_with_the_keyboard_alone(page: PageDriver) -> None:
    keyboard = page.page.keyboard
    expect(page.message).to_be_focused()
    begun = page.server.did().count("nap begins")
    keyboard.type("note x; nap 30")
    keyboard.press("Enter")
    page.server.until_did("nap begins", begun + 1)
    expect(page.call("nap")).to_have_attribute("data-state", "running")
    keyboard.press("Escape")
    expect(page.choice.get_by_label("Now", exact=False).first).to_be_visible()
    keyboard.press("ArrowUp")
    expect(page.choice.get_by_label("After this step")).to_be_checked()
    keyboard.press("ArrowDown")
    keyboard.press("Enter")
    page.stopped()
    expect(page.message).to_be_focused()
    for _ in range(20):
        if page.page.evaluate("document.activeElement.dataset.key") == "r":
            break
        keyboard.press("Shift+Tab")
    keyboard.press("Enter")
    expect(page.words.last).to_have_text("done ")


def test_a_screen_reader_hears_of_changes_and_not_of_streaming(page: PageDriver) -> None:
    expect(page.log).to_have_attribute("aria-live", "off")
    page.say_and_see("nap 30", "nap")
    page.stop_now()
    page.stopped()
    expect(page.page.locator("#announcer")).to_have_text("Stopped by you. 1 in doubt")


def test_a_phone_has_one_column_with_chats_and_tree_as_sheets(chromium: Browser, server: ServerProcess) -> None:
    with opened(chromium, server, width=390) as page:
        overflow = "() => document.documentElement.scrollWidth > innerWidth"
        assert not page.page.evaluate(overflow)
        page.say_and_see("nap 30; tell a b 30", "nap")
        page.page.get_by_role("button", name="2 running").click()
        tree = page.page.get_by_label("This run")
        expect(tree.get_by_text("nap", exact=True)).to_be_visible()
        for button in tree.get_by_role("button").all():
            box = button.bounding_box()
            assert box is not None
            assert box["height"] >= 40
        page.shot("phone-tree")
        page.page.get_by_role("button", name="Hide this run").click()
        page.page.get_by_role("button", name="Chats").click()
        expect(page.page.locator("#chats")).to_be_visible()
        page.page.keyboard.press("Escape")
        page.page.get_by_role("button", name="Stop", exact=True).click()
        assert not page.page.evaluate(overflow)
        page.shot("phone-choice")
        page.choice.get_by_role("button", name="Stop now").click()
        page.stopped()
        assert not page.page.evaluate(overflow)
        page.shot("phone-receipt")


def test_the_timeline_shows_lanes_and_can_be_saved(page: PageDriver, tmp_path: Path) -> None:
    page.say_and_see("note x; nap 30; block 5", "nap")
    page.stop_now()
    page.stopped()
    page.page.locator("#open-timeline").click()
    for name in ("worker", "note", "nap", "block", "you: stop now"):
        expect(page.page.locator("#timeline text", has_text=re.compile(f"^{name}$")).first).to_be_visible()
    page.page.locator("#timeline rect[data-path]").first.click()
    expect(page.page.locator(".detail")).to_contain_text("Ran")
    page.shot("timeline")
    with page.page.expect_download() as started:
        page.page.get_by_role("button", name="Save as SVG").click()
    saved = tmp_path / "run.svg"
    started.value.save_as(saved)
    drawn = saved.read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    assert "var(--" not in drawn
    assert "you: stop now" in drawn


def test_light_and_dark_can_be_chosen_and_are_kept(page: PageDriver) -> None:
    page.page.get_by_role("button", name="Light or dark").click()
    expect(page.page.locator("html")).to_have_attribute("data-theme", "dark")
    page.page.reload()
    expect(page.page.locator("html")).to_have_attribute("data-theme", "dark")
