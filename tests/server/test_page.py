"""The page as a conversation: what is said, what tools do, what asks, and which chat is shown."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from safepoint.server.keys import KeyFile
from tests.server.page_driver import PageDriver, opened
from tests.server.server_process import ServerProcess

pytestmark = pytest.mark.browser
# One red pixel.
_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


def test_a_first_visit_opens_a_chat_with_something_to_try(chromium: Browser, server: ServerProcess) -> None:
    context = chromium.new_context(viewport={"width": 1280, "height": 800})
    driver = PageDriver(context.new_page(), server)
    driver.page.goto(f"http://127.0.0.1:{server.port}/")
    expect(driver.log.get_by_role("heading")).to_have_text("An agent you can stop")
    expect(driver.message).to_be_focused()
    driver.page.get_by_label("App", exact=True).select_option("worker")
    expect(driver.log).to_contain_text("stubborn")
    driver.log.get_by_role("button", name="Ask me first").click()
    expect(driver.page.locator(".question")).to_be_visible()
    driver.shot("first-visit")
    context.close()


def test_words_are_shown_as_markdown_and_code_can_be_copied(page: PageDriver) -> None:
    page.say("say # Title with `code`, **bold** and [a link](https://example.org) and [none](javascript:alert(1))")
    expect(page.words.locator("h3")).to_contain_text("Title with")
    expect(page.words.locator("code")).to_have_text("code")
    expect(page.words.locator("strong")).to_have_text("bold")
    link = page.words.locator("a")
    expect(link).to_have_count(1)
    expect(link).to_have_attribute("rel", "noopener noreferrer")
    page.idle()


def test_code_blocks_lists_and_tables_are_elements(page: PageDriver) -> None:
    page.page.evaluate(
        """async () => {
            const { markdown } = await import("./page/markdown.js");
            const list = "1. one\\n2. two\\n   - deep\\n\\n", code = "```python\\nprint(1)\\n```\\n\\n";
            const text = list + code + "| a | b |\\n|---|---|\\n| 1 | 2 |";
            document.getElementById("log").replaceChildren(...markdown(text));
        }"""
    )
    expect(page.log.locator("ol > li")).to_have_count(2)
    expect(page.log.locator("ol ul > li")).to_have_text("deep")
    expect(page.log.locator(".block pre")).to_contain_text("print(1)")
    expect(page.log.locator(".block header")).to_contain_text("python")
    expect(page.log.locator("td")).to_have_text(["1", "2"])


def test_what_an_agent_says_is_text_and_never_markup(page: PageDriver) -> None:
    page.say('say <img src="x" onerror="document.title=1"><script>document.title=2</script>')
    expect(page.words).to_contain_text("<script>document.title=2</script>")
    assert page.log.locator("img, script").count() == 0
    page.idle()


def test_what_a_tool_tells_is_shown_until_its_result_is_there(page: PageDriver) -> None:
    page.say("tell one two 3000")
    expect(page.call("tell").locator(".output")).to_have_text("one two ")
    expect(page.call("tell").locator(".num")).to_have_text("0:00")
    page.page.keyboard.press("Escape")
    page.choice.get_by_role("button", name="Stop now").click()
    expect(page.call("tell")).to_have_attribute("data-state", "cut")
    expect(page.call("tell").locator(".output")).to_be_hidden()


def test_a_call_that_is_over_opens_to_its_arguments_and_its_result(page: PageDriver) -> None:
    page.say("note something")
    expect(page.call("note")).to_have_attribute("data-state", "finished")
    page.call("note").get_by_role("button", name="note").click()
    expect(page.call("note").locator(".arguments")).to_contain_text("something")
    expect(page.call("note").locator(".output")).to_have_text("noted something")
    page.idle()


def test_a_chat_has_the_title_of_its_first_words_and_tells_how_it_stands(page: PageDriver) -> None:
    page.say_and_see("nap 30; say after", "nap")
    mine = page.page.locator(f"[data-session={page.session}].session")
    expect(mine).to_contain_text("nap 30; say after")
    expect(mine).to_contain_text("Working")
    expect(page.page.locator("#title")).to_have_text("nap 30; say after")
    page.stop_now()
    expect(mine).to_contain_text("Stopped by you")


def test_a_running_agent_can_be_steered(page: PageDriver) -> None:
    page.say_and_see("nap 3", "nap")
    page.say("say it joined")
    expect(page.page.locator(".pending")).to_contain_text("Joins before its next step")
    expect(page.words.last).to_have_text("it joined ")
    expect(page.page.locator(".pending")).to_have_count(0)
    expect(page.mine).to_have_text(["nap 3", "say it joined"])


def test_a_message_can_wait_for_its_turn_or_take_the_place_of_the_run(page: PageDriver) -> None:
    page.say_and_see("nap 2", "nap")
    page.page.get_by_role("button", name="Queue", exact=True).click()
    page.say("say queued")
    expect(page.page.locator(".pending")).to_contain_text("Runs after this answer")
    expect(page.words.last).to_have_text("queued ")
    page.idle()
    page.say_and_see("nap 30", "nap")
    page.page.get_by_role("button", name="Interrupt", exact=True).click()
    page.say("say instead")
    expect(page.words.last).to_have_text("instead ")
    expect(page.call("nap").last).to_have_attribute("data-state", "cut")


def test_a_question_is_focused_answered_and_leaves_a_trace_also_after_a_reload(page: PageDriver) -> None:
    page.say("ask which colour")
    answer = page.page.get_by_label("Answer to ask")
    expect(answer).to_be_focused()
    expect(page.chip).to_contain_text("Waits for you")
    page.page.reload()
    expect(answer).to_be_focused()
    page.shot("question")
    answer.fill("deep red")
    page.page.keyboard.press("Enter")
    expect(page.words.last).to_have_text("done ")
    expect(page.log.locator(".trace")).to_contain_text("You answered ask: deep red")
    assert "answer deep red" in page.server.did()


def test_a_call_is_allowed_by_a_key_or_by_typing_and_refused_with_a_reason(page: PageDriver) -> None:
    page.say("sign the lease")
    expect(page.log.locator(".question")).to_contain_text("Sign the lease?")
    page.page.keyboard.press("y")
    expect(page.log.locator(".trace")).to_contain_text("You allowed sign")
    expect(page.words.last).to_have_text("done ")
    page.idle()
    page.say("sign the deed")
    expect(page.log.locator(".question")).to_be_visible()
    page.say("yes")
    page.server.until_did("sign the deed")
    page.idle()
    page.say("sign the cheque")
    page.page.get_by_role("button", name="No…").click()
    page.page.get_by_label("Why not?").fill("too much")
    page.page.keyboard.press("Enter")
    expect(page.call("sign").last).to_have_attribute("data-state", "failed")
    expect(page.call("sign").last).to_contain_text("You said no")
    assert "sign the cheque" not in page.server.did()


def test_other_words_drop_a_question_only_if_that_is_meant(page: PageDriver) -> None:
    page.say("ask which colour")
    expect(page.log.locator(".question")).to_be_visible()
    page.say("say never mind")
    dialog = page.page.get_by_role("dialog", name="Send this as your answer?")
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.message).to_have_value("say never mind")
    page.page.keyboard.press("Enter")
    dialog.get_by_role("button", name="Drop the question").click()
    expect(page.words.last).to_have_text("never mind ")
    expect(page.log.locator(".question form")).to_have_count(0)


def test_the_run_goes_on_when_each_of_its_questions_is_answered(page: PageDriver) -> None:
    page.say("sign a will; sign a letter; ask for whom")
    boxes = page.log.locator(".question")
    expect(boxes).to_have_count(3)
    boxes.nth(1).get_by_role("button", name="No…").click()
    boxes.nth(1).get_by_role("button", name="Say no").click()
    boxes.nth(0).get_by_role("button", name="Allow").click()
    page.page.get_by_label("Answer to ask").fill("my sister")
    page.page.get_by_role("button", name="Answer").click()
    expect(page.words.last).to_have_text("done ")
    assert {"sign a will", "answer my sister"} <= set(page.server.did())
    assert "sign a letter" not in page.server.did()


def test_a_picture_is_sent_and_shown(page: PageDriver, tmp_path: Path) -> None:
    picture = tmp_path / "dot.png"
    picture.write_bytes(base64.b64decode(_PNG))
    page.page.get_by_label("Files", exact=True).set_input_files(picture)
    expect(page.page.locator("#attached")).to_contain_text("dot.png")
    page.say("say I see")
    expect(page.words.last).to_have_text("I see ")
    page.idle()
    page.page.reload()
    expect(page.log.get_by_role("img", name="Picture")).to_be_visible()


def test_a_failed_run_says_so_and_can_be_tried_again(page: PageDriver) -> None:
    page.say("fail badly")
    expect(page.log.locator(".note.failed")).to_contain_text("badly")
    page.idle()
    page.log.get_by_role("button", name="Try again").click()
    expect(page.log.locator(".note.failed")).to_have_count(1)
    page.idle()


def test_an_app_and_a_user_can_be_chosen_and_a_chat_deleted(page: PageDriver) -> None:
    page.page.get_by_label("User", exact=True).fill("cleo")
    page.page.get_by_label("User", exact=True).blur()
    page.page.get_by_label("App", exact=True).select_option("desk")
    expect(page.page.locator("#chats .session")).to_have_count(1)
    expect(page.page.locator("#chats .session")).to_have_attribute("aria-current", "page")
    found = page.server.get("/apps/desk/users/cleo/sessions").body
    assert [session["id"] for session in found] == [page.session]
    first = page.session
    page.page.locator(".menu summary").click()
    page.page.get_by_role("button", name="Delete this chat").click()
    page.page.get_by_role("dialog", name="Delete this chat?").get_by_role("button", name="Delete", exact=True).click()
    expect(page.page.locator(f"[data-session='{first}'].session")).to_have_count(0)
    assert first not in [session["id"] for session in page.server.get("/apps/desk/users/cleo/sessions").body]


def test_the_policy_of_the_page_lets_nothing_in_from_elsewhere(server: ServerProcess) -> None:
    answer = server.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "<style" not in answer.body
    assert "style=" not in answer.body
    for name in ("page.js", "page.css", "markdown.js", "stop.js"):
        found = server.get(f"/page/{name}")
        assert found.status == 200
        assert "http://" not in found.body.replace("http://www.w3.org/2000/svg", "")
    for name in ("index.html", "..%2Fapp.py", "nothing.js"):
        assert server.get(f"/page/{name}").status == 404


def test_what_is_typed_has_nowhere_to_go_until_the_new_session_is_there(page: PageDriver) -> None:
    page.say("say before")
    expect(page.words).to_have_text("before ")
    page.idle()
    before, held = page.session, list[Route]()
    hold = "**/sessions"
    page.page.route(hold, lambda route: held.append(route) if route.request.method == "POST" else route.fallback())
    with page.page.expect_request(lambda request: request.method == "POST"):
        page.page.get_by_role("button", name="New chat").first.click()
    expect(page.message).to_be_disabled()
    for route in held:
        route.continue_()
    expect(page.message).to_be_enabled()
    page.say("say after")
    expect(page.words).to_have_text("after ")
    assert page.session != before


def test_a_session_that_could_not_be_made_leaves_the_old_one_open(chromium: Browser, server: ServerProcess) -> None:
    context = chromium.new_context()
    driver = PageDriver(context.new_page(), server)
    server.create("kept", user="user")
    driver.open("kept")
    driver.page.route(
        "**/sessions", lambda route: route.abort() if route.request.method == "POST" else route.fallback()
    )
    driver.page.get_by_role("button", name="New chat").first.click()
    expect(driver.page.locator("#problem")).to_be_visible()
    driver.say("say still here")
    expect(driver.words).to_have_text("still here ")
    assert driver.session == "kept"
    context.close()


def test_who_has_a_key_logs_in_sees_what_is_theirs_and_logs_in_again(chromium: Browser, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "data" / "keys.json")
    first, second = keys.add("first", user="ann"), keys.add("second", user="ann")
    with ServerProcess(tmp_path) as server:
        context = chromium.new_context()
        driver = PageDriver(context.new_page(), server)
        driver.page.goto(f"http://127.0.0.1:{server.port}/")
        driver.page.get_by_label("API key").fill(first)
        driver.page.keyboard.press("Enter")
        driver.page.get_by_label("App", exact=True).select_option("worker")
        expect(driver.page.get_by_label("User", exact=True)).to_be_hidden()
        expect(driver.message).to_be_enabled()
        driver.say("say hello")
        expect(driver.words).to_have_text("hello ")
        driver.idle()
        keys.revoke("first")
        driver.say("say again")
        driver.page.get_by_label("API key").fill("sp_wrong")
        driver.page.get_by_role("button", name="Log in").click()
        expect(driver.page.locator("#login-problem")).not_to_be_empty()
        driver.page.get_by_label("API key").fill(second)
        driver.page.get_by_role("button", name="Log in").click()
        expect(driver.words.last).to_have_text("again ")
        assert not any(cookie.get("value") in (first, second) for cookie in context.cookies())
        assert all(cookie.get("httpOnly") and cookie.get("sameSite") == "Strict" for cookie in context.cookies())
        context.close()


def test_no_hex_ids_and_no_words_of_the_runtime_are_shown(chromium: Browser, server: ServerProcess) -> None:
    with opened(chromium, server) as page:
        page.say_and_see("note a; nap 30; block 1", "nap")
        page.stop_now()
        page.stopped()
        shown = page.page.locator("body").inner_text()
        for word in ("end turn", "end_turn", "cancelled", "interrupted", "compensated", "orphan", "ledger", "NOW"):
            assert word not in shown, word
        run = page.server.run_of(page.session, "ended")
        assert run not in shown
        assert run.removeprefix("run_")[:8] not in shown
