"""The stop on the page: in each way, in each state, from each page, and what is told of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.server.page_driver import PageDriver, opened
from tests.server.server_process import ServerProcess

pytestmark = pytest.mark.browser


def test_stop_cuts_the_tool_keeps_the_words_and_the_next_message_works(page: PageDriver) -> None:
    ended = page.server.did().count("nap ends")
    page.say_and_see("say I begin; nap 30", "nap")
    page.shot("working")
    page.stop_now()
    page.stopped()
    page.shot("receipt")
    expect(page.call("nap")).to_contain_text("In doubt")
    expect(page.words).to_have_text("I begin ")
    assert page.server.did().count("nap ends") == ended
    page.idle()
    page.say("say all is well")
    expect(page.words.last).to_have_text("all is well ")
    expect(page.receipt).to_have_count(0)
    expect(page.log.locator(".note.stopped")).to_have_text("Stopped by you")


def test_words_alone_are_stopped_at_once(page: PageDriver) -> None:
    page.say("say half of; stall")
    expect(page.words).to_have_text("half of ")
    page.page.keyboard.press("Escape")
    page.stopped()
    expect(page.choice).to_have_count(0)
    expect(page.words).to_have_text("half of ")


def test_the_choice_tells_what_a_stop_would_do_and_can_be_left(page: PageDriver) -> None:
    page.say_and_see("note a; nap 30; block 20", "nap")
    page.page.keyboard.press("Escape")
    expect(page.choice).to_contain_text("left in doubt")
    expect(page.choice).to_contain_text("may not react")
    expect(page.choice).to_contain_text("At most 1.0 s")
    page.shot("choice")
    page.choice.get_by_label("After this step").check()
    expect(page.choice.locator(".fate li").first).to_contain_text("finishes")
    page.page.keyboard.press("Escape")
    expect(page.choice).to_have_count(0)
    expect(page.call("nap")).to_have_attribute("data-state", "running")
    page.page.keyboard.press("Shift+Escape")
    page.stopped()


def test_stop_after_this_step_lets_the_tool_finish(page: PageDriver) -> None:
    ended = page.server.did().count("nap ends")
    page.say_and_see("nap 3", "nap")
    page.page.keyboard.press("Escape")
    page.choice.get_by_label("After this step").check()
    page.choice.get_by_role("button", name="Stop after this step").click()
    expect(page.page.get_by_label("Stopping", exact=True)).to_contain_text("waits for nap")
    page.stopped()
    expect(page.receipt).to_contain_text("after this step")
    expect(page.call("nap")).to_have_attribute("data-state", "finished")
    assert page.server.did().count("nap ends") == ended + 1


def test_only_one_tool_is_stopped_and_the_rest_goes_on(page: PageDriver) -> None:
    page.say_and_see("nap 4; tell a b 30", "nap")
    expect(page.call("tell")).to_have_attribute("data-state", "running")
    page.call("tell").get_by_role("button", name="Stop tell").click()
    expect(page.choice.get_by_label("Only one tool")).to_be_checked()
    page.choice.get_by_role("button", name="Stop tell").click()
    expect(page.call("tell")).to_have_attribute("data-state", "cut")
    expect(page.call("nap")).to_have_attribute("data-state", "finished")
    expect(page.words.last).to_have_text("done ")
    expect(page.receipt).to_have_count(0)


def test_a_press_while_it_stops_raises_the_level(page: PageDriver) -> None:
    page.say_and_see("nap 30", "nap")
    page.page.keyboard.press("Control+.")
    expect(page.page.get_by_label("Stopping", exact=True)).to_contain_text("Esc again stops now")
    page.page.wait_for_timeout(600)  # presses within half a second count once
    page.page.keyboard.press("Escape")
    page.stopped()


def test_force_lets_go_of_a_tool_that_ignores_its_stop(page: PageDriver) -> None:
    page.say_and_see("stubborn 20", "stubborn")
    page.page.keyboard.press("Shift+Escape")
    stopping = page.page.get_by_label("Stopping", exact=True)
    expect(stopping).to_contain_text("cleaning up")
    page.shot("stopping")
    page.page.wait_for_timeout(600)
    stopping.get_by_role("button", name="Force").click()
    page.stopped()
    expect(page.receipt).to_contain_text("still running")


def test_a_deaf_thread_is_let_go_and_told(page: PageDriver) -> None:
    page.say_and_see("block 6; note done", "block")
    page.stop_now()
    expect(page.receipt).to_contain_text("It did not react and was let go.")
    expect(page.call("block")).to_contain_text("In doubt, still running")
    expect(page.call("note")).to_have_attribute("data-state", "finished")


def test_nested_agents_are_in_the_tree_and_each_can_be_stopped(chromium: Browser, server: ServerProcess) -> None:
    with opened(chromium, server, app="crew") as page:
        begun = server.did().count("nap begins")
        page.say("nap 30")
        server.until_did("nap begins", begun + 2)
        tree = page.page.get_by_label("This run")
        expect(tree.get_by_text("left", exact=True)).to_be_visible()
        expect(tree.get_by_text("nap", exact=True)).to_have_count(2)
        page.shot("tree")
        tree.get_by_role("button", name="Stop nap").first.click()
        page.choice.get_by_role("button", name=re.compile("Stop nap")).click()
        expect(tree.get_by_text("in doubt")).to_have_count(1)
        page.page.keyboard.press("Shift+Escape")
        page.stopped()


def test_a_paused_run_can_be_stopped_from_another_client(page: PageDriver) -> None:
    page.say("ask which colour")
    expect(page.log.locator(".question")).to_be_visible()
    assert page.server.cancel(page.session, user="user").status == 200
    page.page.reload()
    expect(page.log.locator(".question form")).to_have_count(0)
    expect(page.chip).to_contain_text("Stopped")


def test_a_message_that_waits_for_its_turn_is_stopped_too(page: PageDriver) -> None:
    page.say_and_see("nap 30", "nap")
    page.page.get_by_role("button", name="Queue", exact=True).click()
    page.say("note later")
    expect(page.page.locator(".pending")).to_contain_text("note later")
    page.server.run_of(page.session, "queued")
    assert page.server.cancel(page.session, user="user").status == 200
    page.idle()
    assert "note later" not in page.server.did()


def test_resume_keeps_what_was_done_and_runs_what_was_not(page: PageDriver) -> None:
    noted = page.server.did().count("note once")
    page.say_and_see("note once; nap 30", "nap")
    page.stop_now()
    page.stopped()
    expect(page.receipt).to_contain_text("keeps 1 result")
    page.page.locator("#log").focus()
    page.page.keyboard.press("r")
    expect(page.words.last).to_have_text("done ")
    assert page.server.did().count("note once") == noted + 1


def test_a_call_in_doubt_runs_again_if_the_person_says_so(page: PageDriver) -> None:
    begun = page.server.did().count("nap begins")
    page.say_and_see("nap 2", "nap")
    page.stop_now()
    page.stopped()
    page.receipt.get_by_label("In doubt:").select_option("rerun")
    page.receipt.get_by_role("button", name="Resume", exact=True).click()
    expect(page.words.last).to_have_text("done ")
    assert page.server.did().count("nap begins") == begun + 2


def test_edit_and_resume_adds_words_and_rewind_takes_the_turn_back(page: PageDriver) -> None:
    page.say_and_see("nap 30", "nap")
    page.stop_now()
    page.receipt.get_by_role("button", name="Edit and resume").click()
    expect(page.message).to_have_value("nap 30")
    page.say("say rather this")
    expect(page.words.last).to_have_text("rather this ")
    page.idle()
    page.say_and_see("nap 30", "nap")
    page.stop_now()
    page.receipt.get_by_role("button", name="Rewind…").click()
    dialog = page.page.get_by_role("dialog", name="Take back your last message?")
    expect(dialog).to_contain_text("nap")
    dialog.get_by_role("button", name="Rewind").click()
    expect(page.receipt).to_have_count(0)
    expect(page.mine.filter(has_text="nap 30")).to_have_count(1)


def test_a_page_that_is_loaded_again_finds_its_run_and_can_stop_it(page: PageDriver) -> None:
    ended = page.server.did().count("nap ends")
    page.say_and_see("say before; nap 30", "nap")
    page.page.reload()
    expect(page.mine).to_have_text("say before; nap 30")
    expect(page.words).to_have_text("before ")
    expect(page.chip).to_contain_text("Working")
    expect(page.call("nap")).to_have_attribute("data-state", "running")
    page.stop_now()
    page.stopped()
    assert page.server.did().count("nap ends") == ended
    page.page.reload()
    page.stopped()


def test_words_under_way_are_there_after_a_reload_and_nothing_twice(page: PageDriver) -> None:
    page.say("say one two three; stall")
    expect(page.words).to_have_text("one two three ")
    page.page.reload()
    expect(page.words).to_have_text("one two three ")
    page.server.cancel(page.session, user="user")
    page.stopped()
    expect(page.words).to_have_text("one two three ")


def test_two_pages_show_one_run_its_stop_and_its_receipt(page: PageDriver) -> None:
    other = PageDriver(page.page.context.new_page(), page.server)
    other.open(page.session)
    page.say_and_see("say hello; nap 30", "nap")
    expect(other.mine).to_have_text("say hello; nap 30")
    expect(other.call("nap")).to_have_attribute("data-state", "running")
    other.page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.call("nap")).to_have_attribute("data-state", "running")
    other.choice.get_by_role("button", name="Stop now").click()
    other.stopped()
    page.stopped()
    page.say("ask which colour")
    expect(other.page.get_by_label("Answer to ask")).to_be_visible()
    other.page.get_by_label("Answer to ask").fill("green")
    other.page.keyboard.press("Enter")
    expect(page.words.last).to_have_text("done ")
    expect(page.log.locator(".question form")).to_have_count(0)
    assert other.problems == []


def test_a_lost_connection_is_told_and_the_run_is_found_again(chromium: Browser, tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        context = chromium.new_context(viewport={"width": 1280, "height": 800})
        page = PageDriver(context.new_page(), server)
        server.create("lost", user="user")
        page.open("lost")
        page.say_and_see("say before; nap 30", "nap")
        context.set_offline(True)
        page.page.evaluate("() => dispatchEvent(new Event('offline'))")
        server.kill()
        expect(page.page.locator("#offline")).to_be_visible()
        server.start()
        context.set_offline(False)
        expect(page.page.locator("#offline")).to_be_hidden()
        expect(page.words.first).to_have_text("before ")
        context.close()
