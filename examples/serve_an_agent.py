"""Serve an agent over HTTP, stop its run from another client, and end the server."""

import asyncio
import json
import os
import signal
import socket
import threading
import time
import urllib.request
from typing import Any

from safepoint import Agent, tool
from safepoint.server import create_app, serve
from safepoint.testing import ScriptedModel, call, say

started = threading.Event()


@tool
async def book(city: str) -> str:
    """Book a hotel and wait for its answer."""
    started.set()
    await asyncio.sleep(60)
    return f"booked in {city}"


agent = Agent("travel", model=ScriptedModel(call("book", city="Rome"), say("You have a room.")), tools=[book])
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    PORT = probe.getsockname()[1]


def post(path: str, body: object = None) -> Any:
    headers = {"Content-Type": "application/json"}
    sent = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", json.dumps(body or {}).encode(), headers)
    with urllib.request.urlopen(sent) as answer:
        return json.load(answer)


def ask() -> None:
    """A client that waits for its answer."""
    message = {"role": "user", "parts": [{"text": "Book me a hotel in Rome."}]}
    events = post("/run", {"appName": "travel", "userId": "ann", "sessionId": "trip", "newMessage": message})
    print("the caller got:", events[-1]["errorCode"])


def operate() -> None:
    """Another client, that stops the run; then it ends the server, as a deploy would."""
    while True:
        try:
            post("/apps/travel/users/ann/sessions/trip")
            break
        except OSError:
            time.sleep(0.1)  # the server is still on its way
    caller = threading.Thread(target=ask)
    caller.start()
    started.wait()
    answer = post("/apps/travel/users/ann/sessions/trip:cancel", {"reason": "the meeting is off"})
    print("the canceller got:", answer["status"])
    caller.join()
    os.kill(os.getpid(), signal.SIGTERM)


threading.Thread(target=operate).start()
serve(create_app({"travel": agent}), port=PORT)
print("the server has ended")
