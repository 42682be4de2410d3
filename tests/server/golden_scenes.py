"""Conversations with a server, for `test_golden.py`: each is a list of what was asked and what came back.

Every scene has a session of its own, and nothing in it depends on how fast anything is: it waits for facts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

from tests.server.server_process import Later, ServerProcess, calls_and_results, message, session_path
from tests.server.test_live import Live

Json = dict[str, Any]  # Any: JSON


class Scene:
    """Asks the server, and writes down what it is asked and answers. `session`: the one of this scene."""

    def __init__(self, server: ServerProcess, session: str) -> None:
        self.server = server
        self.session = session
        self.told: list[Json] = []

    def note(self, asked: str, came: object) -> None:
        self.told.append({"asked": asked, "came": came})

    def ask(self, method: str, path: str, body: object = None, raw: bytes | None = None) -> Any:  # Any: JSON
        answer = self.server.http(method, path, raw if raw is not None else body)
        shown = body if raw is None else raw.decode("latin-1")
        self.note(f"{method} {path} {json.dumps(shown)}", {"status": answer.status, "body": answer.body})
        return answer.body

    def path(self, tail: str = "", app: str = "worker") -> str:
        return session_path(self.session, app=app) + tail

    def create(self, app: str = "worker") -> None:
        self.ask("POST", self.path(app=app))

    def run(self, text: str, **more: object) -> Any:  # Any: JSON
        return self.ask("POST", "/run", message(self.session, text, **more))

    def stream(self, text: str, **more: object) -> list[Json]:
        body = message(self.session, text, **more)
        with self.server.open_stream("POST", "/run_sse", body) as frames:
            seen = [(seq, event) for seq, event in frames]
        self.note(f"POST /run_sse {json.dumps(body)}", [{"id": seq, "data": event} for seq, event in merged(seen)])
        return [event for _, event in seen]

    def stored(self, app: str = "worker") -> None:
        self.ask("GET", self.path(app=app))

    def run_id(self) -> str:
        """Of its newest run."""
        return next(str(run["runId"]) for run in self.server.get("/runs").body if run["sessionId"] == self.session)

    def start(self, text: str, until: str, **more: object) -> Later:
        """A run whose answer is noted by whoever takes it."""
        times = self.server.did().count(until)
        later = self.server.run_in_thread(self.session, text, **more)
        self.server.until_did(until, times + 1)
        return later

    def end(self, later: Later, text: str) -> None:
        answer = later.answer()
        self.note(f"POST /run {text}", {"status": answer.status, "body": answer.body})

    @contextmanager
    def live(self, **query: str) -> Any:  # Any: a generator of sockets
        with Live(self.server, self.session, **query) as live:
            yield live

    def turn(self, live: Live, said: str) -> list[Json]:
        events = live.turn()
        self.note(f"WS {said}", [event for _, event in merged([(None, event) for event in events])])
        return events


def merged(frames: Sequence[tuple[int | None, Json]]) -> list[tuple[int | None, Json]]:
    """Words under way come in pieces as it happens: those of one kind that follow each other are one."""
    found: list[tuple[int | None, Json]] = []
    for seq, event in frames:
        before = found[-1] if found else None
        if before is not None and before[0] == seq and _same(before[1], event):
            part, more = before[1]["content"]["parts"][0], event["content"]["parts"][0]
            if "text" in part:
                part["text"] += more["text"]
            else:
                part["functionResponse"]["response"]["output"] += more["functionResponse"]["response"]["output"]
        else:
            found.append((seq, json.loads(json.dumps(event))))
    return found


def _same(one: Json, other: Json) -> bool:
    if not (one.get("partial") and other.get("partial")) or one["id"] != other["id"]:
        return False
    (part,), (more,) = one["content"]["parts"], other["content"]["parts"]
    calls = (part.get("functionResponse", {}).get("id"), more.get("functionResponse", {}).get("id"))
    return bool(part.keys() == more.keys() and calls[0] == calls[1])


# -- the scenes --------------------------------------------------------------------------------------------------------


def service(event_context: Scene) -> None:
    for path in ("/health", "/ready", "/version", "/list-apps", "/apps/worker/app-info", "/apps/desk/app-info"):
        event_context.ask("GET", path)
    event_context.ask("GET", "/list-apps?detailed=true")
    event_context.ask("GET", "/apps/nobody/app-info")
    event_context.ask("GET", "/apps/__adk/app-info")
    event_context.ask("PUT", "/run")
    event_context.ask("GET", "/nowhere")


def sessions(event_context: Scene) -> None:
    base = session_path("", user="golden", app="rounds").rstrip("/")  # what its sessions share stays there
    event_context.ask("POST", base, {"sessionId": "one", "state": {"a": 1, "user:b": 2, "app:golden": 3, "temp:d": 4}})
    event_context.ask("POST", base, {"session_id": "one"})
    event_context.ask("POST", f"{base}/two", {"c": [1, None, {"d": "é"}]})
    event_context.ask("GET", base)
    event_context.ask("PATCH", f"{base}/one", {"stateDelta": {"a": None, "e": 5}})
    event_context.ask("GET", f"{base}/one")
    event_context.ask("GET", f"{base}/three")
    bodies: tuple[object, ...] = ({}, {"stateDelta": 3}, [])
    for body in bodies:
        event_context.ask("PATCH", f"{base}/one", body)
    event_context.ask("POST", base, {"options": {"ttl": 5}})
    event_context.ask("POST", f"{base}/a%20b")
    event_context.ask("DELETE", f"{base}/one")
    event_context.ask("DELETE", f"{base}/one")
    event_context.ask("DELETE", f"{base}/two")


def imported(event_context: Scene) -> None:
    base = session_path("", user="golden-import").rstrip("/")
    call: Json = {"functionCall": {"id": "c", "name": "t", "args": {}}}
    result: Json = {"functionResponse": {"id": "c", "name": "t", "response": {"result": "r"}}}
    said: list[Json] = [
        {"author": author, "content": {"role": role, "parts": [part]}}
        for author, role, part in (
            ("user", "user", {"text": "hello"}),
            ("x", "model", call),
            ("x", "user", result),
            ("x", "model", {"text": "hi"}),
        )
    ]
    event_context.ask("POST", base, {"sessionId": "brought", "events": said})
    event_context.ask("POST", base, {"sessionId": "half", "events": said[:2]})
    event_context.ask("POST", base, {"sessionId": "acts", "events": [{**said[0], "actions": {"stateDelta": {"a": 1}}}]})
    event_context.ask(
        "POST", base, {"sessionId": "odd", "events": [{"content": {"role": "boss", "parts": [{"text": "x"}]}}]}
    )
    event_context.ask("DELETE", f"{base}/brought")


def run_whole(event_context: Scene) -> None:
    event_context.create()
    event_context.run("say one two")
    event_context.run("think hard; say so; note a", customMetadata={"mine": 1, "safepointLedger": 2})
    event_context.run("note a; break b", stateDelta={"from": "client"})
    event_context.run("fail badly")
    event_context.run("say after")
    event_context.stored()
    event_context.ask("GET", "/runs/run_nobody")


def run_streamed(event_context: Scene) -> None:
    event_context.create()
    event_context.stream("say one two")
    event_context.stream("say one two", streaming=True)
    event_context.stream("say so; note a", streaming=True)
    event_context.stream("tell one two 0", streaming=True)
    event_context.stream("fail badly", streaming=True)
    event_context.stored()
    run = event_context.run_id()
    with event_context.server.open_stream("GET", f"/runs/{run}/events?after=0") as frames:
        event_context.note("GET /runs/RUN/events?after=0", [{"id": seq, "data": event} for seq, event in frames])
    event_context.ask("GET", f"/runs/{run}")


def refused_runs(event_context: Scene) -> None:
    event_context.create()
    for path in ("/run", "/run_sse"):
        event_context.ask("POST", path, message("golden-nowhere", "hi"))
        event_context.ask("POST", path, message(event_context.session, "hi", appName="nobody"))
        event_context.ask("POST", path, message(event_context.session, "hi", appName=None))
        event_context.ask("POST", path, message(event_context.session, "hi", ifBusy="never"))
        event_context.ask("POST", path, message("a/b", "hi"))
        event_context.ask("POST", path, {})
        event_context.ask("POST", path, raw=b'{"appName": ')
        event_context.ask("POST", path, message(event_context.session, "hi", newMessage={"parts": [{"txet": "x"}]}))
        event_context.ask("POST", path, message(event_context.session, "hi", newMessage=None))
    event_context.stored()


def cancelled_now(event_context: Scene) -> None:
    event_context.create()
    later = event_context.start("say I begin; note a; nap 3000", "nap begins")
    event_context.ask("POST", event_context.path(":cancel"), {"reason": "enough"})
    event_context.end(later, "nap")
    event_context.stored()
    run = event_context.run_id()
    for path in (f"/runs/{run}", f"/runs/{run}/why"):
        event_context.ask("GET", path)
    event_context.ask("POST", f"/runs/{run}:cancel", {})
    event_context.ask("POST", event_context.path(":cancel"), {})
    event_context.ask("POST", f"/runs/{run}:steer", {"newMessage": {"parts": [{"text": "late"}]}})
    event_context.ask("POST", f"/runs/{run}/asks/ask_nobody:withdraw")
    event_context.run("say next")
    event_context.ask("POST", f"/runs/{run}:rewind")
    event_context.ask("POST", f"/runs/{event_context.run_id()}:rewind")
    event_context.stored()


def cancelled_at_a_safe_point(event_context: Scene) -> None:
    event_context.create()
    later = event_context.start("nap 1; note a", "nap begins")
    event_context.ask(
        "POST", event_context.path(":cancel"), {"at": "after_tools", "reason": "later", "waitSeconds": 30}
    )
    event_context.end(later, "nap")
    event_context.stored()
    event_context.ask("POST", f"/runs/{event_context.run_id()}:cancel")


def refused_cancels(event_context: Scene) -> None:
    event_context.create()
    for body in ({"at": "soon"}, {"recursive": "yes"}, {"att": "now"}, {"withinSeconds": 1}, {"reason": "x" * 501}):
        event_context.ask("POST", event_context.path(":cancel"), body)
    event_context.ask("POST", event_context.path(":cancel"))
    event_context.ask("POST", session_path("golden-nowhere") + ":cancel")
    event_context.ask("POST", "/runs/run_nobody:cancel")
    event_context.ask("POST", "/runs:cancel", {})
    event_context.ask("POST", "/runs:cancel", {"node": "a/b", "all": True})
    event_context.ask("POST", "/runs:cancel", {"sessionId": event_context.session})


def cancelled_stream(event_context: Scene) -> None:
    event_context.create()
    body = message(event_context.session, "say half of; stall", streaming=True)
    stalls = event_context.server.did().count("stall")
    with event_context.server.open_stream("POST", "/run_sse", body) as frames:
        event_context.server.until_did("stall", stalls + 1)
        event_context.ask("POST", event_context.path(":cancel"), {"reason": "enough"})
        seen = merged(list(frames))
    event_context.note("POST /run_sse stall", [{"id": seq, "data": event} for seq, event in seen])
    event_context.stored()


def paused(event_context: Scene) -> None:
    event_context.create()
    asked = event_context.run("ask how many")
    (call,) = calls_and_results(asked)[0]
    event_context.stored()
    event_context.ask("GET", f"/runs/{event_context.run_id()}")
    event_context.run("x", newMessage=answer("call_nobody", 3))
    event_context.run("x", newMessage=answer(call, 3))
    event_context.stored()
    event_context.run("sign here")
    event_context.ask("POST", event_context.path(":cancel"), {"reason": "nobody answers"})
    event_context.stored()
    event_context.stream("ask again", streaming=True)
    event_context.run("say something else")
    event_context.stored()


def answer(call: str, result: object) -> Json:
    part = {"functionResponse": {"id": call, "name": "ask", "response": {"result": result}}}
    return {"role": "user", "parts": [part]}


def resumed(event_context: Scene) -> None:
    event_context.create()
    asked = event_context.run("ask how many")
    (question,) = asked[-1]["customMetadata"]["safepointQuestions"]
    run = event_context.run_id()
    event_context.ask("POST", f"/runs/{run}:resume", {"answers": {question["id"]: 3}, "newMessage": {"parts": []}})
    event_context.ask("POST", f"/runs/{run}:resume", {"answers": {question["id"]: 3}})
    with event_context.server.open_stream("GET", f"/runs/{event_context.run_id()}/events") as frames:
        list(frames)
    event_context.stored()
    event_context.ask("POST", f"/runs/{run}:resume")


def continued(event_context: Scene) -> None:
    """A stopped run goes on by its invocation, and what names another run or event is refused."""
    event_context.create()
    event_context.run("x", newMessage=None, invocationId="e-nobody")
    later = event_context.start("nap 3000", "nap begins")
    event_context.ask("POST", event_context.path(":cancel"), {"reason": "later"})
    event_context.end(later, "nap")
    invocation = event_context.ask("GET", f"/runs/{event_context.run_id()}")["invocationId"]
    event_context.run("x", newMessage=None, invocationId="e-nobody")
    event_context.run("say go on", invocationId=invocation, customMetadata={"second": True})
    event_context.stored()
    asked = event_context.run("ask how many")
    (call,) = calls_and_results(asked)[0]
    event_context.run("x", newMessage=answer(call, 3), functionCallEventId="nobody")
    event_context.run("x", newMessage=answer(call, 3), functionCallEventId=asked[0]["id"])
    event_context.stored()


def watched_again(event_context: Scene) -> None:
    """A viewer that comes back is told what it has not seen; one with a place in another story, everything."""
    event_context.create()
    event_context.run("note a; say so")
    run = event_context.run_id()
    for after in (1, 2, 3, 99, -1):
        with event_context.server.open_stream("GET", f"/runs/{run}/events?after={after}") as frames:
            seen = [{"id": seq, "data": event} for seq, event in frames]
        event_context.note(f"GET /runs/RUN/events?after={after}", seen)


def busy(event_context: Scene) -> None:
    event_context.create()
    later = event_context.start("nap 3000", "nap begins")
    event_context.run("say no")
    event_context.ask("PATCH", event_context.path(), {"stateDelta": {"during": 1}})
    queued = event_context.server.run_in_thread(event_context.session, "say queued", ifBusy="queue")
    event_context.server.run_of(event_context.session, "queued")
    event_context.run("say now", ifBusy="interrupt")
    event_context.end(later, "nap")
    queued.answer()
    event_context.ask("DELETE", event_context.path())


def repeated(event_context: Scene) -> None:
    event_context.create()
    event_context.run("note once", idempotencyKey="golden")
    event_context.run("note once", idempotencyKey="golden")
    event_context.run("note other", idempotencyKey="golden")
    event_context.stored()


def handed_over(event_context: Scene) -> None:
    event_context.create("desk")
    event_context.stream("hand over", streaming=True, appName="desk")
    event_context.run("say still there", appName="desk")
    event_context.run("pretend", appName="desk")
    event_context.stored("desk")


def composed(event_context: Scene) -> None:
    for app in ("pipeline", "boss", "crew"):
        event_context.create(app)
        event_context.stream("say found; note composed", streaming=True, appName=app)
        event_context.stored(app)


def live(event_context: Scene) -> None:
    with event_context.live() as opened:
        opened.say("say one two")
        event_context.turn(opened, "say one two")
        opened.say("note a", state_delta={"b": 1})
        event_context.turn(opened, "note a")
        for frame in ("no json", '{"content": 3}', "{}", '{"blob": {}}'):
            opened.socket.send(frame)
            event_context.note(f"WS {frame}", opened.next())
        opened.say("fail badly")
        event_context.turn(opened, "fail badly")
        opened.say("ask colour")
        call = calls_and_results(event_context.turn(opened, "ask colour"))[0][0]
        opened.send(content=answer(call, "red"))
        event_context.turn(opened, "answer")
        opened.send(close=True)
        event_context.note("WS close", opened.closed())
    event_context.stored()
    with event_context.live(modalities="AUDIO") as opened:
        event_context.note("WS modalities=AUDIO", [opened.next(), opened.closed()])


def live_cancelled(event_context: Scene) -> None:
    naps = event_context.server.did().count("nap begins")
    with event_context.live() as opened:
        opened.say("nap 3000")
        event_context.server.until_did("nap begins", naps + 1)
        opened.say("say no")
        event_context.note("WS busy", [opened.next(), opened.next()])
        event_context.ask("POST", event_context.path(":cancel"), {"reason": "enough"})
        event_context.turn(opened, "nap")
    event_context.stored()


def unserved(event_context: Scene) -> None:
    event_context.create()
    event_context.ask("GET", event_context.path("/artifacts"))
    event_context.ask("GET", event_context.path("/artifacts/a.png/versions/1"))
    event_context.ask("PATCH", "/apps/worker/users/ann/memory", {"sessionId": "x"})
    for path in ("/apps/worker/eval-sets", "/dev/apps/worker/x", "/debug/trace/x"):
        event_context.ask("GET", path)


SCENES: dict[str, Callable[[Scene], None]] = {
    each.__name__: each
    for each in (
        service,
        sessions,
        imported,
        run_whole,
        run_streamed,
        refused_runs,
        cancelled_now,
        cancelled_at_a_safe_point,
        refused_cancels,
        cancelled_stream,
        paused,
        resumed,
        continued,
        watched_again,
        busy,
        repeated,
        handed_over,
        composed,
        live,
        live_cancelled,
        unserved,
    )
}
