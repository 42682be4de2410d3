"""Attempts to see, use, change or stop what is somebody else's: each is refused, and nothing is different then."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from tests.server import front_end_attempts as front_ends
from tests.server.attempts import (
    ANN,
    ANOTHERS,
    BODIES,
    DOOR,
    EVENTS,
    IDS,
    PATHS,
    RAW,
    SOCKET,
    SOCKETS,
    Attempt,
)
from tests.server.guarded import Guarded, raw, status_of
from tests.server.server_process import message, session_path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with settled(Guarded(tmp_path_factory.mktemp("safety"))) as guarded:
        yield guarded


@contextmanager
def settled(guarded: Guarded) -> Generator[Guarded]:
    """With all that is to be protected, and nothing in its log at the end that does not belong there."""
    with guarded.server:
        guarded.settle()
        logged_out = guarded.cookie("ann")
        page = {"Cookie": logged_out, "Origin": guarded.origin}
        assert guarded.ask(None, "POST", "/logout", headers=page).status == 200
        guarded.values |= {"origin": guarded.origin, "port": str(guarded.server.port)}
        guarded.values |= {"cookie": guarded.cookie("ann"), "logged_out": logged_out}
        yield guarded
        log = guarded.server.log.read_text()
        assert "Traceback" not in log
        assert not any(key in log for key in guarded.keys.values())


def refused(world: Guarded, attempts: list[Attempt]) -> list[str]:
    """What went wrong, all of it: an answer that should not be, or something that is different afterwards."""
    wrong: list[str] = []
    before = world.snapshot()
    for attempt in attempts:
        answer = world.ask(attempt.who, attempt.method, attempt.path, attempt.body, attempt.headers)
        if answer.status not in attempt.status or not attempt.check(answer):
            wrong.append(f"{attempt.name}: {answer.status} {str(answer.body)[:200]}")
        if answer.status == 401 and not answer.headers.get("www-authenticate", "").startswith("Bearer"):
            wrong.append(f"{attempt.name}: no challenge")
        if "Traceback" in str(answer.body) or ("ann" in str(answer.body) and attempt.who in (None, "bob", "eve")):
            wrong.append(f"{attempt.name}: it tells too much: {answer.body}")
        after = world.snapshot()
        if after != before:
            wrong.append(f"{attempt.name}: changed something")
            before = after
    return wrong


def test_what_is_anothers_is_not_there(world: Guarded) -> None:
    assert refused(world, ANOTHERS) == []


def test_nobody_comes_through_the_door_unknown(world: Guarded) -> None:
    assert refused(world, DOOR) == []


def test_no_trick_in_an_address_reaches_anything(world: Guarded) -> None:
    assert refused(world, PATHS) == []


def test_no_trick_in_an_id_reaches_anything(world: Guarded) -> None:
    assert refused(world, IDS) == []


def test_no_body_that_is_wrong_stores_anything(world: Guarded) -> None:
    assert refused(world, BODIES) == []


def test_no_forged_event_becomes_part_of_a_session(world: Guarded) -> None:
    assert refused(world, EVENTS) == []


@pytest.mark.parametrize("attempts", ["ANOTHERS", "DOOR", "PATHS", "IDS", "BODIES"])
def test_no_route_for_front_ends_lets_any_of_it_through(world: Guarded, attempts: str) -> None:
    assert refused(world, getattr(front_ends, attempts)) == []


def test_there_are_enough_attempts_and_each_has_a_name() -> None:
    names = [attempt.name for attempt in (*ANOTHERS, *DOOR, *PATHS, *IDS, *BODIES, *EVENTS)]
    assert len(set(names)) == len(names) > 300


def test_bad_json_is_told_as_adk_tells_it(world: Guarded) -> None:
    for body, error in ((b"{oops", "Expecting property name"), (b'{"a": NaN}', "NaN is no JSON")):
        answer = world.ask("ann", "POST", "/run", body)
        (told,) = answer.body["detail"]
        assert (answer.status, told["type"], told["loc"][0]) == (422, "json_invalid", "body")
        assert error in told["ctx"]["error"]


def test_no_bytes_that_are_no_request_change_anything(world: Guarded) -> None:
    before = world.snapshot()
    for name, (status, text) in RAW.items():
        answer = raw(world.server.port, fill(world, text), timeout=3.0)
        assert (name, status_of(answer)) == (name, status), answer[:300]
        assert world.snapshot() == before, name


def test_no_socket_is_opened_for_somebody_unknown(world: Guarded) -> None:
    before = world.snapshot()
    for name, (status, headers) in SOCKETS.items():
        answer = raw(world.server.port, fill(world, SOCKET + headers + "\r\n"), timeout=3.0)
        assert (name, status_of(answer)) == (name, status), answer[:300]
    assert world.snapshot() == before


def fill(world: Guarded, text: str) -> bytes:
    for name, value in {**world.values, "user": "ann"}.items():
        text = text.replace(f"${name}", value)
    return text.encode("latin-1")


def test_a_key_in_an_address_is_refused_and_in_no_log(world: Guarded) -> None:
    key = world.keys["ann"]
    for path in (f"/runs?key={key}", f"/runs?x=1&y={key}", f"/runs/{key}", f"/runs?key=sp%5F{key[3:]}"):
        assert world.ask("ann", "GET", path).status == 400
    log = world.server.log.read_text()
    assert key not in log
    assert key[3:] not in log


def test_the_source_of_a_cancel_is_the_servers_own_word(world: Guarded) -> None:
    for who, source, by in (("ann", "user", "ann"), ("boss", "policy", "boss")):
        session = f"claimed-{who}"
        world.ask("ann", "POST", session_path(session))
        body = message(session, "nap 3000", onDisconnect="detach")
        begun = world.server.did().count("nap begins")
        with world.server.open_stream("POST", "/run_sse", body, world.bearer("ann")):
            world.server.until_did("nap begins", begun + 1)
        claim = {"reason": "enough", "source": "shutdown", "by": "somebody"}
        answer = world.ask(who, "POST", f"{session_path(session)}:cancel", claim)
        assert answer.status == 200, answer
        run = world.ask("ann", "GET", f"/runs/{answer.body['runs'][0]['runId']}").body
        assert run["reason"] == {"text": "enough", "source": source, "by": by}


def test_an_admin_sees_and_stops_everybodys_and_a_user_sees_no_stacks(world: Guarded) -> None:
    assert {run["userId"] for run in world.ask("boss", "GET", "/runs").body} == {"ann"}
    assert world.ask("boss", "GET", ANN).status == 200
    world.ask("ann", "POST", session_path("stubborn"))
    body = message("stubborn", "stubborn 2", onDisconnect="detach")
    with world.server.open_stream("POST", "/run_sse", body, world.bearer("ann")):
        world.server.until_did("stubborn begins")
    asked = world.ask("boss", "POST", f"{session_path('stubborn')}:cancel", {"waitSeconds": 0}).body
    why = f"/runs/{asked['runs'][0]['runId']}/why"
    as_user, as_admin = world.ask("ann", "GET", why).body, world.ask("boss", "GET", why).body
    assert "stack" not in json.dumps(as_user)
    assert all("stack" in holding for holding in as_admin["holding"])


def test_what_was_left_behind_is_told_to_all_and_where_it_is_to_admins(world: Guarded) -> None:
    for who, seen in (("ann", set[str]()), ("boss", {"stack"})):
        session = f"left-{who}"
        world.ask("ann", "POST", session_path(session))
        begun = world.server.did().count("block begins")
        body = message(session, "block 5", onDisconnect="detach")
        with world.server.open_stream("POST", "/run_sse", body, world.bearer("ann")):
            world.server.until_did("block begins", begun + 1)
        (run,) = world.ask(who, "POST", f"{session_path(session)}:cancel").body["runs"]
        (orphan,) = run["orphans"]
        assert set(orphan) == {"name", "path", "rung", "age", "stillRunning"} | seen
        assert (orphan["name"], orphan["stillRunning"], orphan["age"] >= 0) == ("block", True, True)
        assert "time.sleep" in orphan.get("stack", "time.sleep")


def test_a_revoked_key_is_refused_at_once_and_so_is_its_cookie(world: Guarded) -> None:
    world.keys["tom"] = world.keyfile.add("tom", user="tom")
    page = {"Cookie": world.cookie("tom"), "Origin": world.origin}
    assert world.ask("tom", "GET", "/runs").status == 200
    assert world.ask(None, "GET", "/runs", headers=page).status == 200
    world.keyfile.revoke("tom")
    assert world.ask("tom", "GET", "/runs").status == 401
    assert world.ask(None, "GET", "/runs", headers=page).status == 401


def test_a_cookie_is_no_key_is_for_the_page_only_and_works_there(world: Guarded) -> None:
    answer = world.ask(None, "POST", "/login", {"key": world.keys["ann"]}, {"Origin": world.origin})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Secure" not in cookie
    assert world.keys["ann"] not in cookie
    assert answer.body == {"name": "ann", "user": "ann", "admin": False}
    page = {"Cookie": cookie.partition(";")[0], "Origin": world.origin}
    assert world.ask(None, "GET", "/runs", headers=page).status == 200
    assert world.ask(None, "PATCH", session_path("done"), {"stateDelta": {}}, page).status == 200
    assert world.ask(None, "GET", session_path("bobs", "bob"), headers=page).status == 404
    assert (
        world.ask(None, "GET", "/runs", headers={"Authorization": f"Bearer {cookie.split('=')[1][:43]}"}).status == 401
    )
    proxied = {"Origin": world.origin, "X-Forwarded-Proto": "https"}
    secure = world.ask(None, "POST", "/login", {"key": world.keys["ann"]}, proxied)
    assert "; Secure" in secure.headers["set-cookie"]


def test_a_browser_without_a_key_is_shown_where_to_log_in(world: Guarded) -> None:
    answer = world.ask(None, "GET", "/", headers={"Accept": "text/html"})
    assert answer.status == 401
    assert 'action="login"' in answer.body
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    form = {"content-type": "application/x-www-form-urlencoded", "Origin": world.origin}
    wrong = world.ask(None, "POST", "/login", b"key=%3Cscript%3E", form)
    assert wrong.status == 401
    assert "<script>" not in wrong.body
    right = world.ask(None, "POST", "/login", f"key={world.keys['ann']}".encode(), form)
    assert (right.status, right.headers["location"]) == (303, "/")
    assert "set-cookie" in right.headers


def test_whatever_is_answered_is_not_sniffed_and_not_kept(world: Guarded) -> None:
    for who in ("ann", None):
        headers = world.ask(who, "GET", "/runs").headers
        assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
        assert "access-control-allow-origin" not in headers


def test_no_page_loads_anything_from_elsewhere(world: Guarded) -> None:
    for path in ("/", "/docs"):
        answer = world.ask("ann", "GET", path)
        assert answer.status == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert "http" not in re.sub(r"<!--.*?-->", "", answer.body.replace("HTTPValidationError", ""), flags=re.S), path
    assert world.ask("ann", "GET", "/redoc").status == 404


def test_the_page_of_the_api_has_every_operation_and_no_script(world: Guarded) -> None:
    shown, paths = world.ask("ann", "GET", "/docs").body, world.ask("ann", "GET", "/openapi.json").body["paths"]
    for path, methods in paths.items():
        for method in methods:
            assert f"<code>{method.upper()} {path}</code>" in shown
    assert "waitSeconds" in shown
    assert "<script" not in shown


def test_the_open_route_is_open_under_any_name(world: Guarded) -> None:
    answer = world.ask(None, "GET", "/health", headers={"Host": "10.1.2.3:8000", "X-Forwarded-For": "1.2.3.4"})
    assert (answer.status, answer.body["status"]) == (200, "ok")
    head = b"HEAD /health HTTP/1.1\r\nHost: 10.1.2.3:8000\r\nConnection: close\r\n\r\n"
    assert status_of(raw(world.server.port, head)) == 200
