"""llama.cpp's own server, in a process that ends with its parent.

    python llama_child.py '{"model": "/path/to.gguf", …}'

It prints one line, its address and then the model's abilities as JSON, and waits for the end of its input. The input
ends when the parent closes it or dies. The parent handles Ctrl-C in the terminal.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
from importlib import import_module
from typing import Any


def serve(options: dict[str, Any]) -> Any:  # Any: JSON; the server has no types
    """Start the server; it runs in threads of its own."""
    # Loaded by name: it comes without types, and is Any to the checkers.
    xllamacpp: Any = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.model_alias = {options["alias"]}
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_parallel = options["slots"]
    params.n_ctx = options["context"] * options["slots"]
    # The server checks for a stop between two batches of a prompt: large ones would delay it by seconds.
    params.n_batch = params.n_ubatch = options["batch"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
    params.endpoint_metrics = params.endpoint_slots = True
    params.warmup = False
    if options["template"] is not None:
        params.chat_template = options["template"]
    return xllamacpp.Server(params)


def abilities(address: str) -> dict[str, bool]:
    """The abilities of the chat template. llama.cpp detects them by trying the template."""
    connection = http.client.HTTPConnection(address.rpartition("//")[2])
    try:
        connection.request("GET", "/props")
        known = json.load(connection.getresponse())["chat_template_caps"]
    finally:
        connection.close()
    return {"tools": bool(known["supports_tools"] and known["supports_tool_calls"])}


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = serve(json.loads(arguments[0]))
    print(server.listening_address, json.dumps(abilities(server.listening_address)), flush=True)
    sys.stdin.buffer.read()
    # The parent has closed the pipe: exit at once, even in the middle of an answer.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
