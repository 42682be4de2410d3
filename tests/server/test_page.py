"""The page in a real browser against a real server: what people press has its effect in the tools' own log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Route, expect

from safepoint.server.keys import KeyFile
from tests.server.browser import browser
from tests.server.server_process import ServerProcess

pytestmark = pytest.mark.browser
expect.set_options(timeout=20_000)
_numbers = count()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture
def page(chromium: Browser, server: ServerProcess) -> Iterator[Page]:
    """The page with a new session of the worker. Afterwards its console is empty: nothing broke its policy."""
    context = chromium.new_context(viewport={"width": 1100, "height": 800})
    shown = context.new_page()
    problems = listen(shown)
    session = f"s{next(_numbers)}"
    server.create(session, user="user")
    shown.goto(f"http://127.0.0.1:{server.port}/#worker/{session}")
    expect(shown.locator("#log .empty")).to_have_text("Say something.")
    yield shown
    context.close()
    assert problems == []


def listen(page: Page) -> list[str]:
    problems: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            problems.append(message.text)

    def broke(error: Error) -> None:
        problems.append(str(error))

    page.on("console", said)
    page.on("pageerror", broke)
    return problems


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def session_of(page: Page) -> str:
    session = page.locator("#title").get_attribute("title")
    assert session
    return session


def test_whoever_comes_for_the_first_time_finds_the_way_in(chromium: Browser, server: ServerProcess) -> None:
    context = chromium.new_context()
    shown = context.new_page()
    shown.goto(f"http://127.0.0.1:{server.port}/")
    shown.locator("#log").get_by_role("button", name="Start a session").click()
    expect(shown.locator("#log .empty")).to_have_text("Say something.")
    expect(shown.get_by_label("Message", exact=True)).to_be_focused()
    context.close()


def test_stop_stops_the_tool_keeps_the_text_and_the_next_message_works(page: Page, server: ServerProcess) -> None:
    begun, ended = server.did().count("nap begins"), server.did().count("nap ends")
    say(page, "say I begin; nap 30")
    server.until_did("nap begins", begun + 1)
    expect(page.locator(".tool .state")).to_have_text("running")
    page.get_by_role("button", name="Stop", exact=True).first.click()
    expect(page.locator(".note")).to_contain_text("stopped on the page")
    expect(page.locator(".tool .state")).to_have_text("cut")
    expect(page.locator(".said.agent .words")).to_have_text("I begin ")
    assert server.did().count("nap ends") == ended
    expect(page.locator("#stop-now")).to_be_hidden()
    say(page, "say all is well")
    expect(page.locator(".said.agent .words").last).to_have_text("all is well ")
    expect(page.locator("#stop-now")).to_be_hidden()


def test_what_a_tool_tells_is_shown_until_its_result_is_there(page: Page) -> None:
    say(page, "tell one two 3000")
    expect(page.locator(".tool .result")).to_have_text("one two ")
    page.keyboard.press("Escape")
    expect(page.locator(".tool .state")).to_have_text("cut")
    expect(page.locator(".tool .result")).not_to_contain_text("one two")


def test_escape_stops_a_model_that_is_silent(page: Page) -> None:
    say(page, "say half of; stall")
    expect(page.locator(".under-way .words")).to_have_text("half of ")
    page.keyboard.press("Escape")
    expect(page.locator(".note")).to_contain_text("stopped on the page")
    expect(page.locator(".said.agent .words")).to_have_text("half of ")


def test_stop_after_this_step_lets_the_tool_finish(page: Page, server: ServerProcess) -> None:
    begun, ended = server.did().count("nap begins"), server.did().count("nap ends")
    say(page, "nap 3")
    server.until_did("nap begins", begun + 1)
    page.get_by_role("button", name="Stop after this step").click()
    expect(page.locator("#status")).to_have_text("stopping after this step …")
    expect(page.locator(".note")).to_contain_text("stopped on the page")
    expect(page.locator(".tool .state")).to_have_text("finished")
    assert server.did().count("nap ends") == ended + 1


def test_a_page_that_is_loaded_again_finds_its_run_and_can_stop_it(page: Page, server: ServerProcess) -> None:
    begun, ended = server.did().count("nap begins"), server.did().count("nap ends")
    say(page, "say before; nap 30")
    server.until_did("nap begins", begun + 1)
    page.reload()
    expect(page.locator(".said.user .words")).to_have_text("say before; nap 30")
    expect(page.locator(".said.agent .words")).to_have_text("before ")
    expect(page.locator("#status")).to_have_text("running …")
    page.locator("#stop-now").click()
    expect(page.locator(".note")).to_contain_text("stopped on the page")
    assert server.did().count("nap ends") == ended


def test_words_under_way_are_there_after_a_reload_and_nothing_twice(page: Page, server: ServerProcess) -> None:
    say(page, "say one two three; stall")
    expect(page.locator(".under-way .words")).to_have_text("one two three ")
    page.reload()
    expect(page.locator(".under-way .words")).to_have_text("one two three ")
    server.cancel(session_of(page), user="user")
    expect(page.locator(".note")).to_be_visible()
    expect(page.locator(".said.agent .words")).to_have_text("one two three ")


def test_a_running_agent_can_be_steered(page: Page, server: ServerProcess) -> None:
    begun = server.did().count("nap begins")
    say(page, "nap 3")
    server.until_did("nap begins", begun + 1)
    expect(page.locator("#send")).to_have_text("Steer")
    say(page, "say it joined")
    expect(page.locator(".said.agent .words").last).to_have_text("it joined ")
    expect(page.locator(".said.user .words")).to_have_text(["nap 3", "say it joined"])


def test_a_question_is_shown_and_answered_also_after_a_reload(page: Page, server: ServerProcess) -> None:
    say(page, "ask which colour")
    expect(page.locator(".question")).to_contain_text("which colour")
    expect(page.locator(".tool .state")).to_have_text("waiting")
    page.reload()
    page.locator(".question input").fill("deep red")
    page.get_by_role("button", name="Answer").click()
    expect(page.locator(".said.agent .words").last).to_have_text("done ")
    assert "answer deep red" in server.did()
    expect(page.locator(".question form")).to_have_count(0)


def test_a_call_is_allowed_with_yes_and_refused_with_no(page: Page, server: ServerProcess) -> None:
    say(page, "sign the lease")
    expect(page.locator(".question")).to_contain_text("Sign the lease?")
    page.get_by_role("button", name="Yes").click()
    expect(page.locator(".said.agent .words").last).to_have_text("done ")
    assert "sign the lease" in server.did()
    expect(page.locator("#stop-now")).to_be_hidden()
    say(page, "sign the cheque")
    page.locator(".question input").fill("too much")
    page.get_by_role("button", name="No", exact=True).click()
    expect(page.locator(".tool .state").last).to_have_text("failed")
    expect(page.locator(".tool .result").last).to_contain_text("denied: too much")
    assert "sign the cheque" not in server.did()


def test_the_run_goes_on_when_each_of_its_questions_is_answered(page: Page, server: ServerProcess) -> None:
    say(page, "sign a will; sign a letter; ask for whom")
    boxes = page.locator(".question")
    expect(boxes).to_have_count(3)
    boxes.nth(1).get_by_role("button", name="No", exact=True).click()
    boxes.nth(0).get_by_role("button", name="Yes").click()
    expect(boxes.locator("form")).to_have_count(3)
    boxes.nth(2).locator("input").fill("my sister")
    page.get_by_role("button", name="Answer").click()
    expect(page.locator(".said.agent .words").last).to_have_text("done ")
    assert {"sign a will", "answer my sister"} <= set(server.did())
    assert "sign a letter" not in server.did()


def test_the_list_of_runs_stops_a_run_of_another_session(page: Page, server: ServerProcess) -> None:
    begun, ended = server.did().count("nap begins"), server.did().count("nap ends")
    say(page, "nap 30")
    server.until_did("nap begins", begun + 1)
    page.get_by_role("button", name="New").click()
    expect(page.locator("#log .empty")).to_be_visible()
    expect(page.locator("#stop-now")).to_be_hidden()
    row = page.locator("#runs li").filter(has=page.locator(".state.live"))
    row.get_by_role("button", name="Stop the run").click()
    expect(row).to_have_count(0)
    expect(page.locator("#runs li").first).to_contain_text("cancelled")
    assert server.did().count("nap ends") == ended


def test_what_an_agent_says_is_text_and_never_markup(page: Page) -> None:
    say(page, 'say <img src="x" onerror="document.title=1"><script>document.title=2</script>')
    expect(page.locator(".said.agent .words")).to_contain_text("<script>document.title=2</script>")
    expect(page).to_have_title("Safepoint")
    assert page.locator("#log img, #log script").count() == 0


def test_a_failed_run_is_told_as_one(page: Page) -> None:
    say(page, "fail badly")
    expect(page.locator(".note.failed")).to_contain_text("badly")
    expect(page.locator("#stop-now")).to_be_hidden()


def test_an_app_a_user_and_a_session_can_be_chosen(page: Page, server: ServerProcess) -> None:
    page.get_by_label("User", exact=True).fill("cleo")
    page.get_by_label("User", exact=True).blur()
    page.get_by_label("App", exact=True).select_option("desk")
    page.get_by_role("button", name="New").click()
    expect(page.locator("#sessions .item")).to_have_count(1)
    expect(page.locator("#sessions .item")).to_have_attribute("aria-current", "true")
    expect(page.locator("#sessions .item")).to_have_attribute("title", session_of(page))
    found = server.get("/apps/desk/users/cleo/sessions").body
    assert [session["id"] for session in found] == [session_of(page)]
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_the_policy_of_the_page_lets_nothing_in_from_elsewhere(server: ServerProcess) -> None:
    answer = server.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    for name in ("page/page.js", "page/page.css"):
        assert name in answer.body
        found = server.get(f"/{name}")
        assert found.status == 200
        assert "http://" not in found.body
        assert "https://" not in found.body


def test_what_is_typed_has_nowhere_to_go_until_the_new_session_is_there(page: Page) -> None:
    say(page, "say before")
    expect(page.locator(".said.agent .words")).to_have_text("before ")
    expect(page.locator("#stop-now")).to_be_hidden()
    before, held = session_of(page), list[Route]()
    page.route("**/sessions", lambda route: held.append(route) if route.request.method == "POST" else route.fallback())
    message = page.get_by_label("Message", exact=True)
    with page.expect_request(lambda request: request.method == "POST"):
        page.get_by_role("button", name="New").click()
    expect(message).to_be_disabled()
    for route in held:
        route.continue_()
    say(page, "say after")
    expect(page.locator(".said.agent .words")).to_have_text("after ")
    assert session_of(page) != before


def test_a_session_that_could_not_be_made_leaves_the_old_one_open(chromium: Browser, server: ServerProcess) -> None:
    context = chromium.new_context()
    page = context.new_page()
    server.create("kept", user="user")
    page.goto(f"http://127.0.0.1:{server.port}/#worker/kept")
    expect(page.get_by_label("Message", exact=True)).to_be_enabled()
    page.route("**/sessions", lambda route: route.abort() if route.request.method == "POST" else route.fallback())
    page.get_by_role("button", name="New").click()
    expect(page.locator("#problem")).to_be_visible()
    say(page, "say still here")
    expect(page.locator(".said.agent .words")).to_have_text("still here ")
    assert session_of(page) == "kept"
    context.close()


def test_who_has_a_key_logs_in_sees_what_is_theirs_and_logs_in_again(chromium: Browser, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "data" / "keys.json")
    first, second = keys.add("first", user="ann"), keys.add("second", user="ann")
    with ServerProcess(tmp_path) as server:
        context = chromium.new_context()
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{server.port}/")
        page.get_by_label("API key").fill(first)
        page.keyboard.press("Enter")
        page.get_by_label("App", exact=True).select_option("worker")
        expect(page.get_by_label("User", exact=True)).to_be_hidden()
        page.get_by_role("button", name="New").click()
        say(page, "say hello")
        expect(page.locator(".said.agent .words")).to_have_text("hello ")
        expect(page.locator("#stop-now")).to_be_hidden()
        keys.revoke("first")
        say(page, "say again")
        page.get_by_label("API key").fill("sp_wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.locator("#login-problem")).not_to_be_empty()
        page.get_by_label("API key").fill(second)
        page.get_by_role("button", name="Log in").click()
        expect(page.locator(".said.agent .words").last).to_have_text("again ")
        assert not any(cookie.get("value") in (first, second) for cookie in context.cookies())
        assert all(cookie.get("httpOnly") and cookie.get("sameSite") == "Strict" for cookie in context.cookies())
        context.close()
