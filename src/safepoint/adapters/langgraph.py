"""Graphs of LangGraph, and agents of LangChain, which are graphs.

A copy of the graph is run: its `ToolNode`s hand each call to Safepoint, and a callback handler hears its chat models.
With a checkpointer of its own, the messages in its thread are replaced by ours before each run; other channels stay.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, wraps
from importlib import import_module
from typing import Any, Unpack

from safepoint.adapters.options import AdaptOptions, check_version, checked
from safepoint.adapters.replies import as_dict, as_list, call, reply, spoken
from safepoint.agent.foreign import ForeignAgent, ForeignOptions
from safepoint.agent.foreign_loop import Answered, ForeignLoop, Outcome
from safepoint.agent.foreign_tool import CallResult, in_call_thread
from safepoint.agent.promises import Promises
from safepoint.agent.result import StopReason
from safepoint.agent.usage import Usage
from safepoint.errors import SafepointError, UsageError
from safepoint.history.parts import File, Image, Message, Part, Reasoning, Text, ToolCall, ToolResult

PROMISES = Promises(framework="LangGraph", tested=("1.2", "2"), own_store="replaced")
check_version("LangGraph", "langgraph", PROMISES.tested)

_ENDS = {"length": StopReason.MAX_TOKENS, "max_tokens": StopReason.MAX_TOKENS, "content_filter": StopReason.REFUSED}


def adapt(agent: object, **options: Unpack[AdaptOptions]) -> GraphAgent:
    """The compiled graph as an agent of Safepoint's. Its state has the conversation in `messages`."""
    if not hasattr(agent, "astream"):
        raise UsageError("this is a graph that was not compiled: write adapt(builder.compile())")
    name = getattr(agent, "name", None) or "graph"
    named = name if name != "LangGraph" else "graph"
    return GraphAgent(agent, checked(options, named, None), options.get("run_options", {}))


class GraphAgent(ForeignAgent[Any, Any]):
    """A graph of LangGraph."""

    promises = PROMISES

    def __init__(self, graph: Any, options: ForeignOptions, run_options: Mapping[str, Any]) -> None:
        nodes = [node for _, node in _tool_nodes(graph)]
        super().__init__(options, tool_names=[name for node in nodes for name in node.tools_by_name])
        self._graph = graph
        self._run_options = dict(run_options)

    async def carry_out(self, loop: ForeignLoop) -> Outcome:
        """Cancellation: LangGraph cancels its nodes, waits for them and lets it through."""
        watch = _watch(loop)
        graph, given = _wrapped(self._graph, loop), dict(self._run_options)
        config = dict(given.pop("config", {}))
        configurable = dict(config.get("configurable", {}))
        keeps = graph.checkpointer not in (None, False)
        if keeps or loop.open_calls:
            configurable.setdefault("thread_id", loop.session_id or uuid.uuid4().hex)
        config["configurable"] = configurable
        config["callbacks"] = _with(config.get("callbacks"), watch)
        if loop.deps is not None:
            given.setdefault("context", loop.deps)
        if loop.open_calls:
            if not keeps:
                graph = graph.copy({"checkpointer": import_module("langgraph.checkpoint.memory").InMemorySaver()})
            await _enter_the_step(graph, config, loop)
            state: Any = None
        else:
            state = {"messages": await _opening(graph, config, loop, keeps=keeps)}
        values: Any = None
        async for mode, value in graph.astream(state, config, stream_mode=["values", "messages"], **given):
            if mode == "values":
                values = value
        if as_dict(values).get("__interrupt__"):
            raise SafepointError(
                "LangGraph's interrupt() has no place in this run: in a tool write `await tool_context().interrupt(…)`"
            )
        text, why = _last(values)
        return Outcome(text, stop_reason=_ENDS.get(why, StopReason.END_TURN))


def _last(values: Any) -> tuple[str | None, str]:
    messages = as_list(as_dict(values).get("messages"))
    if not messages or messages[-1].type != "ai":
        return None, ""
    metadata = as_dict(messages[-1].response_metadata)
    return _text(messages[-1]), str(metadata.get("finish_reason") or metadata.get("stop_reason") or "")


def _with(callbacks: Any, watch: Any) -> Any:
    """The user's own callbacks, and the one that watches."""
    if callbacks is None:
        return [watch]
    if callbacks == as_list(callbacks):
        return [*as_list(callbacks), watch]
    ours = callbacks.copy()
    ours.add_handler(watch, inherit=True)
    return ours


# -- the conversation --------------------------------------------------------------------------------------------------


async def _opening(graph: Any, config: Any, loop: ForeignLoop, *, keeps: bool) -> list[Any]:
    """The messages for the graph's input: all of ours, or what replaces those of its own thread.

    Cancellation: nothing has changed.
    """
    ours = loop.messages
    if not keeps:
        return to_native(ours)
    values = (await graph.aget_state(config)).values
    theirs = as_list(as_dict(values).get("messages"))
    kept, same = _common(theirs, ours)
    words = import_module("langchain_core.messages")
    gone = [words.RemoveMessage(id=message.id) for message in theirs[kept:]]
    return [*gone, *to_native(ours[same:])]


def _common(theirs: Sequence[Any], ours: Sequence[Message]) -> tuple[int, int]:
    """How many messages at the start of both say the same; a message of ours has several results."""
    place = 0
    for number, message in enumerate(ours):
        native = to_native([message])
        there = theirs[place : place + len(native)]
        if len(there) < len(native) or any(not _same(a, b) for a, b in zip(there, native, strict=True)):
            return place, number
        place += len(native)
    return place, len(ours)


def _same(theirs: Any, ours: Any) -> bool:
    if theirs.type != ours.type or _text(theirs) != _text(ours):
        return False
    if theirs.type == "tool":
        return bool(theirs.tool_call_id == ours.tool_call_id)
    ids = [[each["id"] for each in getattr(message, "tool_calls", ())] for message in (theirs, ours)]
    return ids[0] == ids[1]


async def _enter_the_step(graph: Any, config: Any, loop: ForeignLoop) -> None:
    """Put the graph where its tools are the next to run. Cancellation: the run ends where it was."""
    messages = await _opening(graph, config, loop, keeps=True)
    tools = {name for name, _ in _tool_nodes(graph)}
    before = (await graph.aget_state(config)).config
    for node in graph.nodes:
        if node in tools or node.startswith("__"):
            continue
        try:
            put = await graph.aupdate_state(before, {"messages": messages}, as_node=node)
        except Exception:  # this node can't have said that; another one has
            continue
        if set((await graph.aget_state(put)).next) & tools:
            config["configurable"].update(put["configurable"])
            return
    raise SafepointError("no node of the graph leads to its tools, so the run can't continue between them")


def to_native(messages: Sequence[Message]) -> list[Any]:
    """A conversation in its words."""
    words = import_module("langchain_core.messages")
    made: list[Any] = []
    for message in messages:
        if message.role == "user":
            made.append(words.HumanMessage(_blocks(message.parts)))
        elif message.role == "assistant":
            thoughts = [part for part in message.parts if isinstance(part, Reasoning) and part.signature]
            said: Any = spoken(message)
            if thoughts:
                blocks = [{"type": "thinking", "thinking": each.text, "signature": each.signature} for each in thoughts]
                said = [*blocks, *([{"type": "text", "text": said}] if said else [])]
            calls = [{"name": each.name, "args": dict(each.args), "id": each.id} for each in message.tool_calls]
            made.append(words.AIMessage(said, tool_calls=calls))
        else:
            made += [_result(words, part) for part in message.parts if isinstance(part, ToolResult)]
    return made


def _result(words: Any, part: ToolResult) -> Any:
    content: Any = part.content if not part.parts else [{"type": "text", "text": part.content}, *_blocks(part.parts)]
    status = "error" if part.is_error else "success"
    return words.ToolMessage(content, tool_call_id=part.call_id, name=part.name, status=status)


def _blocks(parts: Sequence[Part]) -> Any:
    import base64

    blocks: list[dict[str, Any]] = []
    for part in parts:
        match part:
            case Text(text):
                blocks.append({"type": "text", "text": text})
            case Image(data=bytes() as data) | File(data=bytes() as data):
                coded = base64.b64encode(data).decode()
                blocks.append({"type": part.kind, "base64": coded, "mime_type": part.media_type})
            case Image(url=str() as url) | File(url=str() as url):
                blocks.append({"type": part.kind, "url": url})
            case _:
                pass
    only_words = len(blocks) == 1 and blocks[0]["type"] == "text"
    return blocks[0]["text"] if only_words else blocks


def _text(message: Any) -> str:
    content: Any = message.content
    if isinstance(content, str):
        return content
    return "".join(block if isinstance(block, str) else as_dict(block).get("text", "") for block in as_list(content))


def from_native(message: Any) -> Message | None:
    """Its reply as a message."""
    blocks = map(as_dict, as_list(message.content))
    thoughts = [
        Reasoning(block.get("thinking", ""), block.get("signature"))
        for block in blocks
        if block.get("type") == "thinking"
    ]
    calls: list[ToolCall] = [call(each["id"] or "", each["name"], each["args"]) for each in message.tool_calls]
    calls += [call(each["id"] or "", each["name"] or "_", each["args"]) for each in message.invalid_tool_calls]
    return reply(_text(message), calls, thoughts)


def _usage(message: Any) -> Usage | None:
    used = as_dict(getattr(message, "usage_metadata", None))
    if not used:
        return None
    cached = as_dict(used.get("input_token_details")).get("cache_read") or 0
    thought = as_dict(used.get("output_token_details")).get("reasoning") or 0
    return Usage(used["input_tokens"], used["output_tokens"], 1, False, cached, thought)


def _answered(messages: Sequence[Any]) -> dict[str, Answered]:
    found: dict[str, Answered] = {}
    for message in reversed(messages):
        if message.type == "tool":
            found[message.tool_call_id] = Answered(_text(message) or "(no output)", message.status == "error")
        elif message.type == "ai":
            break
    return found


# -- its tools ---------------------------------------------------------------------------------------------------------


def _tool_nodes(graph: Any) -> Iterator[tuple[str, Any]]:
    kind = import_module("langgraph.prebuilt").ToolNode
    for name, node in graph.nodes.items():
        if isinstance(node.bound, kind):
            yield name, node.bound


def _wrapped(graph: Any, loop: ForeignLoop) -> Any:
    """A copy of the graph whose tools are called by the run, and whose plain nodes run in threads that are listed."""
    nodes = dict(graph.nodes)
    for name, node in _tool_nodes(graph):
        nodes[name] = nodes[name].copy({"bound": _watched_tools(node, loop)})
    kind = import_module("langgraph.pregel").Pregel
    for name, node in nodes.items():
        if isinstance(node.bound, kind):
            nodes[name] = node.copy({"bound": _wrapped(node.bound, loop)})
        elif _is_plain(node.bound):
            nodes[name] = node.copy({"bound": _in_a_thread(node.bound, loop)})
    return graph.copy({"nodes": nodes})


def _is_plain(bound: Any) -> bool:
    """Whether a node is a plain function: LangGraph would run it in a thread that nobody can list."""
    return getattr(bound, "func", None) is not None and getattr(bound, "afunc", True) is None


def _in_a_thread(bound: Any, loop: ForeignLoop) -> Any:
    from copy import copy

    made = copy(bound)

    async def run(*args: Any, **kwargs: Any) -> Any:
        return await loop.in_thread(partial(bound.func, *args, **kwargs), bound.name or "node")

    made.afunc = run
    return made


def _watched_tools(node: Any, loop: ForeignLoop) -> Any:
    from copy import copy

    made, theirs = copy(node), node._awrap_tool_call
    made.func, made.afunc = made._func, made._afunc  # they were the methods of the original
    words = import_module("langchain_core.messages")

    async def wrap(request: Any, execute: Callable[[Any], Any]) -> Any:
        if loop.is_inside_call:
            return await (theirs(request, execute) if theirs is not None else execute(request))
        asked = request.tool_call
        if request.tool is not None:
            request = request.override(tool=_with_threads(request.tool))

        async def perform(args: Mapping[str, Any]) -> object:
            made = request.override(tool_call={**asked, "args": dict(args)}) if args != asked["args"] else request
            return await (theirs(made, execute) if theirs is not None else execute(made))

        value = await loop.call_tool(asked["id"], asked["name"], asked["args"], perform, _rendered)
        if isinstance(value, CallResult):
            status = "error" if value.failed else "success"
            return words.ToolMessage(value.text, tool_call_id=asked["id"], name=asked["name"], status=status)
        return value

    made._awrap_tool_call = wrap
    return made


def _rendered(value: Any) -> object:
    """What the ledger has of a tool's value."""
    command = as_dict(getattr(value, "update", None))
    messages = (each for each in as_list(command.get("messages")) if getattr(each, "type", "") == "tool")
    found: Any = next(messages, value)
    return _text(found) if getattr(found, "type", None) == "tool" else str(value)


def _with_threads(tool: Any) -> Any:
    """The tool, or a copy whose plain function runs in a thread of the call."""
    if hasattr(tool, "coroutine") and hasattr(tool, "func"):
        return tool.model_copy(update={"coroutine": _threaded(tool.func)}) if tool.coroutine is None else tool
    if tool.__class__._arun is not import_module("langchain_core.tools").BaseTool._arun:
        return tool
    made = tool.model_copy()

    async def run(*args: Any, config: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        takes = inspect.signature(tool._run).parameters
        if "run_manager" in takes:
            kwargs["run_manager"] = run_manager.get_sync() if run_manager is not None else None
        if "config" in takes:
            kwargs["config"] = config
        return await in_call_thread(partial(tool._run, *args, **kwargs))

    object.__setattr__(made, "_arun", run)
    return made


def _threaded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The plain function as an async one, with its signature: LangChain passes what it asks for."""

    @wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await in_call_thread(partial(function, *args, **kwargs))

    return run


# -- its models --------------------------------------------------------------------------------------------------------


def _watch(loop: ForeignLoop) -> Any:
    """A callback handler for one run. Calls beside the one that is heard, and those inside a tool, are only counted."""
    base: Any = import_module("langchain_core.callbacks").AsyncCallbackHandler
    home = asyncio.get_running_loop()

    class Watch(base):  # type: ignore[misc]  # the library is not there for the type checker
        run_inline = True
        raise_error = True

        def __init__(self) -> None:
            self.heard: object = None

        async def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: Any, **more: Any) -> None:
            """Cancellation: the run stops here."""
            if loop.is_inside_call or self.heard is not None:
                return
            self.heard = run_id
            known = as_dict(more.get("metadata")).get("ls_model_name")
            name = known or as_dict(serialized).get("name") or "chat model"
            await at_home(loop.begin_model(name, _answered(messages[0])))

        async def on_llm_new_token(self, token: Any, *, run_id: Any, chunk: Any = None, **more: Any) -> None:
            """Never waits. Cancellation: none."""
            if run_id != self.heard:
                return
            words = _text(chunk.message) if chunk is not None and hasattr(chunk, "message") else token
            if isinstance(words, str) and words:
                home.call_soon_threadsafe(loop.say, words) if _elsewhere(home) else loop.say(words)

        async def on_llm_end(self, response: Any, *, run_id: Any, **more: Any) -> None:
            """Cancellation: the run stops here."""
            if run_id != self.heard:
                return
            self.heard = None
            message = response.generations[0][0].message
            await at_home(loop.end_model(from_native(message), _usage(message)))

        async def on_llm_error(self, error: BaseException, *, run_id: Any, **more: Any) -> None:
            """Never waits. Cancellation: none."""
            if run_id == self.heard and isinstance(error, Exception):
                self.heard = None
                home.call_soon_threadsafe(loop.fail_model, error) if _elsewhere(home) else loop.fail_model(error)

    async def at_home(event: Any) -> None:
        """A plain node's model call runs in a thread, and its callbacks on a loop there."""
        if not _elsewhere(home):
            await event
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(event, home))

    return Watch()


def _elsewhere(home: asyncio.AbstractEventLoop) -> bool:
    return asyncio.get_running_loop() is not home
