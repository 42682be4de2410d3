"""Every request to the routes for front ends that must not work, by name. As `tests.server.attempts`."""

from __future__ import annotations

from typing import Any

from tests.server.attempts import BAD, FORBIDDEN, GONE, INVALID, NO_SUCH_ADDRESS, TRICKS, UNKNOWN, Attempt, get, post
from tests.server.server_process import Answer

AG_UI, CHAT = "/ag-ui/worker", "/ui/worker/chat"
NOTHING = {204}


def run(text: str = "note x", thread: str = "live", **more: Any) -> dict[str, Any]:  # Any: JSON
    message = {"id": "m", "role": "user", "content": text}
    return {"threadId": thread, "runId": "r1", "messages": [message], **more}


def chat(text: str = "note x", id: str = "live", **more: Any) -> dict[str, Any]:  # Any: JSON
    message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": id, "messages": [message], **more}


def answer(id: str) -> dict[str, Any]:  # Any: JSON
    """The last message of a chat, in which a person has approved."""
    approval = {"id": id, "approved": True}
    return {
        "id": "a",
        "role": "assistant",
        "parts": [{"type": "x", "state": "approval-responded", "approval": approval}],
    }


def run_error(*codes: str) -> Any:  # Any: a check
    def check(found: Answer) -> bool:
        return any(f'"code":"{code}"' in str(found.body) for code in codes)

    return check


RESUME = [{"interruptId": "$CALL:1", "status": "resolved", "payload": "three"}]

ANOTHERS = [
    post("by AG-UI, stop another's thread", GONE, f"{AG_UI}/stop", {"threadId": "live"}),
    post("by AG-UI, stop another's run", GONE, f"{AG_UI}/stop", {"threadId": "live", "runId": "$LIVE"}),
    post("by AG-UI, stop another's paused thread", GONE, f"{AG_UI}/stop", {"threadId": "paused"}),
    post(
        "by AG-UI, stop another's run in one's own thread",
        {200},
        f"{AG_UI}/stop",
        {"threadId": "bobs", "runId": "$LIVE"},
        check=lambda found: found.body == {"status": "idle", "runs": []},
    ),
    post(
        "by AG-UI, answer another's question",
        {200},
        AG_UI,
        run(thread="paused", messages=[], resume=RESUME),
        check=run_error("bad_resume", "history_conflict"),
    ),
    post(
        "by AG-UI, answer another's question in one's own thread",
        {200},
        AG_UI,
        run(thread="bobs", messages=[], resume=RESUME),
        check=run_error("bad_resume", "history_conflict"),
    ),
    post("by AG-UI, run an app that is not there", GONE, "/ag-ui/other", run()),
    post("by AG-UI, stop in an app that is not there", GONE, "/ag-ui/other/stop", {"threadId": "live"}),
    post("by a chat, stop another's chat", GONE, f"{CHAT}/live/stop"),
    post("by a chat, stop another's message", GONE, f"{CHAT}/live/stop", {"messageId": "$LIVE"}),
    post("by a chat, stop another's paused chat", GONE, f"{CHAT}/paused/stop"),
    post(
        "by a chat, stop another's message in one's own chat",
        {200},
        f"{CHAT}/bobs/stop",
        {"messageId": "$LIVE"},
        check=lambda found: found.body == {"status": "idle", "runs": []},
    ),
    get("by a chat, watch another's chat", NOTHING, f"{CHAT}/live/stream"),
    get("by a chat, watch another's chat by its run", NOTHING, f"{CHAT}/$LIVE/stream"),
    post("by a chat, answer another's question", BAD, CHAT, chat(id="paused", messages=[answer("$CALL:1")])),
    post(
        "by a chat, answer another's question in one's own chat",
        BAD,
        CHAT,
        chat(id="bobs", messages=[answer("$CALL:1")]),
    ),
    post("by a chat, run an app that is not there", GONE, "/ui/other/chat", chat()),
    get("by a chat, watch an app that is not there", GONE, "/ui/other/chat/live/stream"),
    post("by a chat, stop an app that is not there", GONE, "/ui/other/chat/live/stop"),
]

REQUESTS: list[tuple[str, str, object]] = [
    ("POST", AG_UI, run()),
    ("POST", f"{AG_UI}/stop", {"threadId": "live"}),
    ("POST", CHAT, chat()),
    ("GET", f"{CHAT}/live/stream", None),
    ("POST", f"{CHAT}/live/stop", None),
]
DOOR = [
    attempt
    for method, path, body in REQUESTS
    for attempt in (
        Attempt(f"{method} {path} without a key", UNKNOWN, method, path, body, None),
        Attempt(f"{method} {path} with a revoked key", UNKNOWN, method, path, body, "eve"),
        Attempt(
            f"{method} {path} with a made-up cookie",
            UNKNOWN,
            method,
            path,
            body,
            None,
            {"Cookie": "safepoint_$port=x", "Origin": "$origin"},
        ),
        Attempt(f"{method} {path} under another name", FORBIDDEN, method, path, body, "ann", {"Host": "evil.com"}),
        Attempt(f"{method} {path} with a key in the query", BAD, method, f"{path}?key=$ann", body, None),
    )
] + [
    Attempt(f"POST {path} from another page", FORBIDDEN, "POST", path, body, "ann", {"Origin": "http://evil.com"})
    for method, path, body in REQUESTS
    if method == "POST"
]

PATHS = [
    attempt
    for what, trick in TRICKS.items()
    for attempt in (
        post(f"{what} in an app of AG-UI", NO_SUCH_ADDRESS, f"/ag-ui/{trick}", run(), who="ann"),
        post(f"{what} in an app of a chat", NO_SUCH_ADDRESS, f"/ui/{trick}/chat", chat(), who="ann"),
        get(f"{what} in a chat to watch", NO_SUCH_ADDRESS, f"{CHAT}/{trick}/stream", who="ann"),
        post(f"{what} in a chat to stop", NO_SUCH_ADDRESS, f"{CHAT}/{trick}/stop", who="ann"),
    )
]
IDS = [
    attempt
    for trick in ("", ".", "..", "a/b", "../bob/bobs", "a\\b", "a\n", "a:b", "é", "a" * 129, " done", "done ")
    for attempt in (
        post(f"{trick!r} as a thread", INVALID, AG_UI, run(thread=trick), who="ann"),
        post(f"{trick!r} as a run of a thread", INVALID, AG_UI, run(runId=trick), who="ann"),
        post(f"{trick!r} as a thread to stop", INVALID, f"{AG_UI}/stop", {"threadId": trick}, who="ann"),
        post(f"{trick!r} as a chat", INVALID, CHAT, chat(id=trick), who="ann"),
        post(f"{trick!r} as a message to stop", INVALID, f"{CHAT}/live/stop", {"messageId": trick}, who="ann"),
    )
]
STOPS: list[tuple[str, dict[str, Any]]] = [
    (f"{AG_UI}/stop", {"threadId": "live"}),
    (f"{CHAT}/live/stop", {}),
]  # Any: JSON
WRONG_STOPS: dict[str, dict[str, Any]] = {  # Any: JSON
    "a wait of two minutes": {"waitSeconds": 120},
    "a reason of a book": {"reason": "a" * 501},
    "a field that is misspelt": {"runid": "r"},
}
BODIES = [
    *(
        Attempt(f"{what} as a body of {path}", INVALID, "POST", path, body, "ann")
        for path in (AG_UI, f"{AG_UI}/stop", CHAT, f"{CHAT}/live/stop")
        for what, body in {
            "no JSON": b"{oops",
            "half a JSON": b'{"threadId": "wor',
            "bad UTF-8": b'{"id": "\xff\xfe"}',
            "NaN": b'{"waitSeconds": NaN}',
            "half a surrogate": rb'{"reason": "\ud800"}',
            "a NUL": rb'{"reason": "a\u0000b"}',
            "JSON a million deep": b"[" * 1_000_000,
            "a million values": b'{"state": {"a": [' + b"1," * 1_000_000 + b"1]}}",
            "a list": b"[1, 2]",
            "a number": b"7",
        }.items()
    ),
    *(
        post(f"{what} in a stop of {path}", INVALID, path, {**names, **body}, who="ann")
        for path, names in STOPS
        for what, body in WRONG_STOPS.items()
    ),
    post("a wrong way to be busy, by AG-UI", INVALID, f"{AG_UI}?ifBusy=destroy", run(), who="ann"),
    post("a wrong way to leave, by AG-UI", INVALID, f"{AG_UI}?onDisconnect=stay", run(), who="ann"),
    post("a wrong way to be busy, by a chat", INVALID, f"{CHAT}?ifBusy=destroy", chat(), who="ann"),
    post("a wrong way to resume, by a chat", INVALID, f"{CHAT}?resume=maybe", chat(), who="ann"),
    post(
        "a busy thread",
        {409},
        f"{AG_UI}?ifBusy=reject",
        run(
            messages=[
                {"id": "m", "role": "user", "content": "nap 3000"},
                {"id": "n", "role": "user", "content": "note x"},
            ]
        ),
        who="ann",
    ),
    post("another conversation, by AG-UI", {200}, AG_UI, run(), who="ann", check=run_error("history_conflict")),
    post("another conversation, by a chat", {409}, CHAT, chat(), who="ann"),
    post("a role that is none", INVALID, AG_UI, run(messages=[{"id": "m", "role": "root", "content": "x"}]), who="ann"),
    post(
        "a file of the server, by AG-UI",
        INVALID,
        AG_UI,
        run(
            messages=[
                {
                    "id": "m",
                    "role": "user",
                    "content": [{"type": "image", "source": {"type": "url", "value": "file:///etc/passwd"}}],
                }
            ]
        ),
        who="ann",
    ),
    post(
        "a file of the server, by a chat",
        INVALID,
        CHAT,
        chat(
            messages=[
                {
                    "id": "m",
                    "role": "user",
                    "parts": [{"type": "file", "mediaType": "image/png", "url": "file:///etc/passwd"}],
                }
            ]
        ),
        who="ann",
    ),
    post(
        "a tool of the front end in place of ours",
        BAD,
        AG_UI,
        run(thread="new", tools=[{"name": "nap", "description": ""}]),
        who="ann",
    ),
    post(
        "a tool whose name is none",
        INVALID,
        AG_UI,
        run(thread="new", tools=[{"name": "a b", "description": ""}]),
        who="ann",
    ),
]
