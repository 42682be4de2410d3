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


def service(scene: Scene) -> None:
    for path in ("/health", "/ready", "/version", "/list-apps", "/apps/worker/app-info", "/apps/desk/app-info"):
        scene.ask("GET", path)
    scene.ask("GET", "/list-apps?detailed=true")
    scene.ask("GET", "/apps/nobody/app-info")
    scene.ask("GET", "/apps/__adk/app-info")
    scene.ask("PUT", "/run")
    scene.ask("GET", "/nowhere")


def sessions(scene: Scene) -> None:
    base = session_path("", user="golden", app="rounds").rstrip("/")  # what its sessions share stays there
    scene.ask("POST", base, {"sessionId": "one", "state": {"a": 1, "user:b": 2, "app:golden": 3, "temp:d": 4}})
    scene.ask("POST", base, {"session_id": "one"})
    scene.ask("POST", f"{base}/two", {"c": [1, None, {"d": "é"}]})
    scene.ask("GET", base)
    scene.ask("PATCH", f"{base}/one", {"stateDelta": {"a": None, "e": 5}})
    scene.ask("GET", f"{base}/one")
    scene.ask("GET", f"{base}/three")
    bodies: tuple[object, ...] = ({}, {"stateDelta": 3}, [])
    for body in bodies:
        scene.ask("PATCH", f"{base}/one", body)
    scene.ask("POST", base, {"options": {"ttl": 5}})
    scene.ask("POST", f"{base}/a%20b")
    scene.ask("DELETE", f"{base}/one")
    scene.ask("DELETE", f"{base}/one")
    scene.ask("DELETE", f"{base}/two")


def imported(scene: Scene) -> None:
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
    scene.ask("POST", base, {"sessionId": "brought", "events": said})
    scene.ask("POST", base, {"sessionId": "half", "events": said[:2]})
    scene.ask("POST", base, {"sessionId": "acts", "events": [{**said[0], "actions": {"stateDelta": {"a": 1}}}]})
    scene.ask("POST", base, {"sessionId": "odd", "events": [{"content": {"role": "boss", "parts": [{"text": "x"}]}}]})
    scene.ask("DELETE", f"{base}/brought")


def run_whole(scene: Scene) -> None:
    scene.create()
    scene.run("say one two")
    scene.run("think hard; say so; note a", customMetadata={"mine": 1, "safepointLedger": 2})
    scene.run("note a; break b", stateDelta={"from": "client"})
    scene.run("fail badly")
    scene.run("say after")
    scene.stored()
    scene.ask("GET", "/runs/run_nobody")


def run_streamed(scene: Scene) -> None:
    scene.create()
    scene.stream("say one two")
    scene.stream("say one two", streaming=True)
    scene.stream("say so; note a", streaming=True)
    scene.stream("tell one two 0", streaming=True)
    scene.stream("fail badly", streaming=True)
    scene.stored()
    run = scene.run_id()
    with scene.server.open_stream("GET", f"/runs/{run}/events?after=0") as frames:
        scene.note("GET /runs/RUN/events?after=0", [{"id": seq, "data": event} for seq, event in frames])
    scene.ask("GET", f"/runs/{run}")


def refused_runs(scene: Scene) -> None:
    scene.create()
    for path in ("/run", "/run_sse"):
        scene.ask("POST", path, message("golden-nowhere", "hi"))
        scene.ask("POST", path, message(scene.session, "hi", appName="nobody"))
        scene.ask("POST", path, message(scene.session, "hi", appName=None))
        scene.ask("POST", path, message(scene.session, "hi", ifBusy="never"))
        scene.ask("POST", path, message("a/b", "hi"))
        scene.ask("POST", path, {})
        scene.ask("POST", path, raw=b'{"appName": ')
        scene.ask("POST", path, message(scene.session, "hi", newMessage={"parts": [{"txet": "x"}]}))
        scene.ask("POST", path, message(scene.session, "hi", newMessage=None))
    scene.stored()


def cancelled_now(scene: Scene) -> None:
    scene.create()
    later = scene.start("say I begin; note a; nap 3000", "nap begins")
    scene.ask("POST", scene.path(":cancel"), {"reason": "enough"})
    scene.end(later, "nap")
    scene.stored()
    run = scene.run_id()
    for path in (f"/runs/{run}", f"/runs/{run}/why"):
        scene.ask("GET", path)
    scene.ask("POST", f"/runs/{run}:cancel", {})
    scene.ask("POST", scene.path(":cancel"), {})
    scene.ask("POST", f"/runs/{run}:steer", {"newMessage": {"parts": [{"text": "late"}]}})
    scene.ask("POST", f"/runs/{run}/asks/ask_nobody:withdraw")
    scene.run("say next")
    scene.ask("POST", f"/runs/{run}:rewind")
    scene.ask("POST", f"/runs/{scene.run_id()}:rewind")
    scene.stored()


def cancelled_at_a_safe_point(scene: Scene) -> None:
    scene.create()
    later = scene.start("nap 1; note a", "nap begins")
    scene.ask("POST", scene.path(":cancel"), {"at": "after_tools", "reason": "later", "waitSeconds": 30})
    scene.end(later, "nap")
    scene.stored()
    scene.ask("POST", f"/runs/{scene.run_id()}:cancel")


def refused_cancels(scene: Scene) -> None:
    scene.create()
    for body in ({"at": "soon"}, {"recursive": "yes"}, {"att": "now"}, {"withinSeconds": 1}, {"reason": "x" * 501}):
        scene.ask("POST", scene.path(":cancel"), body)
    scene.ask("POST", scene.path(":cancel"))
    scene.ask("POST", session_path("golden-nowhere") + ":cancel")
    scene.ask("POST", "/runs/run_nobody:cancel")
    scene.ask("POST", "/runs:cancel", {})
    scene.ask("POST", "/runs:cancel", {"node": "a/b", "all": True})
    scene.ask("POST", "/runs:cancel", {"sessionId": scene.session})


def cancelled_stream(scene: Scene) -> None:
    scene.create()
    body = message(scene.session, "say half of; stall", streaming=True)
    stalls = scene.server.did().count("stall")
    with scene.server.open_stream("POST", "/run_sse", body) as frames:
        scene.server.until_did("stall", stalls + 1)
        scene.ask("POST", scene.path(":cancel"), {"reason": "enough"})
        seen = merged(list(frames))
    scene.note("POST /run_sse stall", [{"id": seq, "data": event} for seq, event in seen])
    scene.stored()


def paused(scene: Scene) -> None:
    scene.create()
    asked = scene.run("ask how many")
    (call,) = calls_and_results(asked)[0]
    scene.stored()
    scene.ask("GET", f"/runs/{scene.run_id()}")
    scene.run("x", newMessage=answer("call_nobody", 3))
    scene.run("x", newMessage=answer(call, 3))
    scene.stored()
    scene.run("sign here")
    scene.ask("POST", scene.path(":cancel"), {"reason": "nobody answers"})
    scene.stored()
    scene.stream("ask again", streaming=True)
    scene.run("say something else")
    scene.stored()


def answer(call: str, result: object) -> Json:
    part = {"functionResponse": {"id": call, "name": "ask", "response": {"result": result}}}
    return {"role": "user", "parts": [part]}


def resumed(scene: Scene) -> None:
    scene.create()
    asked = scene.run("ask how many")
    (question,) = asked[-1]["customMetadata"]["safepointQuestions"]
    run = scene.run_id()
    scene.ask("POST", f"/runs/{run}:resume", {"answers": {question["id"]: 3}, "newMessage": {"parts": []}})
    scene.ask("POST", f"/runs/{run}:resume", {"answers": {question["id"]: 3}})
    with scene.server.open_stream("GET", f"/runs/{scene.run_id()}/events") as frames:
        list(frames)
    scene.stored()
    scene.ask("POST", f"/runs/{run}:resume")


def busy(scene: Scene) -> None:
    scene.create()
    later = scene.start("nap 3000", "nap begins")
    scene.run("say no")
    scene.ask("PATCH", scene.path(), {"stateDelta": {"during": 1}})
    queued = scene.server.run_in_thread(scene.session, "say queued", ifBusy="queue")
    scene.server.run_of(scene.session, "queued")
    scene.run("say now", ifBusy="interrupt")
    scene.end(later, "nap")
    queued.answer()
    scene.ask("DELETE", scene.path())


def repeated(scene: Scene) -> None:
    scene.create()
    scene.run("note once", idempotencyKey="golden")
    scene.run("note once", idempotencyKey="golden")
    scene.run("note other", idempotencyKey="golden")
    scene.stored()


def handed_over(scene: Scene) -> None:
    scene.create("desk")
    scene.stream("hand over", streaming=True, appName="desk")
    scene.run("say still there", appName="desk")
    scene.run("pretend", appName="desk")
    scene.stored("desk")


def composed(scene: Scene) -> None:
    for app in ("pipeline", "boss", "crew"):
        scene.create(app)
        scene.stream("say found; note composed", streaming=True, appName=app)
        scene.stored(app)


def live(scene: Scene) -> None:
    with scene.live() as opened:
        opened.say("say one two")
        scene.turn(opened, "say one two")
        opened.say("note a", state_delta={"b": 1})
        scene.turn(opened, "note a")
        for frame in ("no json", '{"content": 3}', "{}", '{"blob": {}}'):
            opened.socket.send(frame)
            scene.note(f"WS {frame}", opened.next())
        opened.say("fail badly")
        scene.turn(opened, "fail badly")
        opened.say("ask colour")
        call = calls_and_results(scene.turn(opened, "ask colour"))[0][0]
        opened.send(content=answer(call, "red"))
        scene.turn(opened, "answer")
        opened.send(close=True)
        scene.note("WS close", opened.closed())
    scene.stored()
    with scene.live(modalities="AUDIO") as opened:
        scene.note("WS modalities=AUDIO", [opened.next(), opened.closed()])


def live_cancelled(scene: Scene) -> None:
    naps = scene.server.did().count("nap begins")
    with scene.live() as opened:
        opened.say("nap 3000")
        scene.server.until_did("nap begins", naps + 1)
        opened.say("say no")
        scene.note("WS busy", [opened.next(), opened.next()])
        scene.ask("POST", scene.path(":cancel"), {"reason": "enough"})
        scene.turn(opened, "nap")
    scene.stored()


def unserved(scene: Scene) -> None:
    scene.create()
    scene.ask("GET", scene.path("/artifacts"))
    scene.ask("GET", scene.path("/artifacts/a.png/versions/1"))
    scene.ask("PATCH", "/apps/worker/users/ann/memory", {"sessionId": "x"})
    for path in ("/apps/worker/eval-sets", "/dev/apps/worker/x", "/debug/trace/x"):
        scene.ask("GET", path)


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
        busy,
        repeated,
        handed_over,
        composed,
        live,
        live_cancelled,
        unserved,
    )
}
