"""Agents of Strands.

Each run gets a copy of the agent, with our conversation as its messages and a model that tells Safepoint what it says;
a hook puts a tool that Safepoint calls in the place of each tool. A resumed run gets the last reply again, from us in
place of the model, and then makes the calls that are left.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from copy import copy
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

PROMISES = Promises(framework="Strands", tested=("1.62", "2"), own_store="replaced")
check_version("Strands", "strands-agents", PROMISES.tested)

_ENDS = {"max_tokens": StopReason.MAX_TOKENS, "guardrail_intervened": StopReason.REFUSED}


def adapt(agent: object, **options: Unpack[AdaptOptions]) -> StrandsAgent:
    """The agent of Strands as an agent of Safepoint's."""
    if getattr(agent, "_session_manager", None) is not None:
        raise UsageError("Safepoint keeps the conversation: leave out session_manager=…, and write run('…', session=…)")
    name = getattr(agent, "name", None) or "agent"
    return StrandsAgent(agent, checked(options, name.replace(" ", "_"), None), options.get("run_options", {}))


class StrandsAgent(ForeignAgent[Any, Any]):
    """An agent of Strands."""

    promises = PROMISES

    def __init__(self, agent: Any, options: ForeignOptions, run_options: Mapping[str, Any]) -> None:
        super().__init__(options, tool_names=list(agent.tool_names))
        self._agent = agent
        self._run_options = dict(run_options)

    async def carry_out(self, loop: ForeignLoop) -> Outcome:
        """Cancellation: ends the loop of events; tasks that Strands leaves are awaited by the run."""
        events = import_module("strands.hooks")
        agent = _copied(self._agent)
        agent.messages = to_native(loop.closed_messages)
        agent.model = _watched_model(self._agent.model, loop)
        agent.hooks.add_callback(events.BeforeToolCallEvent, partial(_put_tool, loop))
        given = dict(self._run_options)
        if loop.deps is not None:
            given["invocation_state"] = as_dict(loop.deps) or {"deps": loop.deps}
        result: Any = None
        stream = agent.stream_async(None, **given)
        try:
            async for event in stream:
                result = event.get("result", result)
        except Exception as error:
            if type(error).__name__ != "MaxTokensReachedException":
                raise
            return Outcome(stop_reason=StopReason.MAX_TOKENS)
        finally:
            await stream.aclose()
        if result.stop_reason == "interrupt":
            raise SafepointError("Strands' interrupt has no place here: write `await tool_context().interrupt(…)`")
        output = result.structured_output
        if output is not None:
            return Outcome(output.model_dump_json(), output)
        return Outcome(stop_reason=_ENDS.get(result.stop_reason, StopReason.END_TURN))


def _copied(agent: Any) -> Any:
    """An agent for one run: what a run changes is its own, all else is shared."""
    made = copy(agent)
    made.hooks = copy(agent.hooks)
    for name, value in as_dict(agent.hooks.__dict__).items():
        if callbacks := as_dict(value):
            setattr(made.hooks, name, {kind: as_list(each) for kind, each in callbacks.items()})
    made._cancel_signal = threading.Event()
    made._concurrency = type(agent._concurrency)(agent._concurrency.mode)
    made.event_loop_metrics = type(agent.event_loop_metrics)()
    made._interrupt_state = type(agent._interrupt_state)()
    made.conversation_manager = copy(agent.conversation_manager)
    return made


# -- its model ---------------------------------------------------------------------------------------------------------


def _watched_model(model: Any, loop: ForeignLoop) -> Any:
    """The model, telling the run what it says."""
    made, replay = copy(model), [loop.reply_to_replay]

    async def stream(messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Cancellation: closes the model's own stream."""
        again = replay.pop() if replay else None
        if again is not None:
            for event in _replayed(again):
                yield event
            return
        heard = _Reply()
        await loop.begin_model(_name_of(model), _answered(messages))
        try:
            async for event in model.stream(messages, *args, **kwargs):
                for text in heard.take(event):
                    loop.say(text)
                yield event
        except Exception as error:
            loop.fail_model(error)
            raise
        await loop.end_model(heard.message(), heard.usage)

    made.stream = stream
    return made


def _name_of(model: Any) -> str:
    config = model.get_config()
    return str(as_dict(config).get("model_id") or type(model).__name__)


class _Reply:
    """A reply in the events of Bedrock's Converse, which Strands uses for every model."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._text: list[str] = []
        self._calls: list[tuple[str, str, list[str]]] = []
        self._thinking: list[str] = []
        self._signature: str | None = None

    def take(self, event: Any) -> list[str]:
        """The words in it."""
        start = as_dict(as_dict(event.get("contentBlockStart")).get("start")).get("toolUse")
        if start:
            self._calls.append((start["toolUseId"], start["name"], []))
        delta = as_dict(as_dict(event.get("contentBlockDelta")).get("delta"))
        if "toolUse" in delta and self._calls:
            self._calls[-1][2].append(delta["toolUse"].get("input", ""))
        thought = as_dict(delta.get("reasoningContent"))
        self._thinking.append(thought.get("text", ""))
        self._signature = thought.get("signature") or self._signature
        used = as_dict(as_dict(event.get("metadata")).get("usage"))
        if used.get("inputTokens") or used.get("outputTokens"):
            before = self.usage or Usage(model_calls=1)
            spent = max(before.input_tokens, used.get("inputTokens", 0)), used.get("outputTokens", 0)
            self.usage = Usage(*spent, 1, False, used.get("cacheReadInputTokens", 0) or 0)
        if "text" not in delta:
            return []
        self._text.append(delta["text"])
        return [delta["text"]]

    def message(self) -> Message | None:
        calls = [call(id, name, "".join(pieces)) for id, name, pieces in self._calls]
        thinking = "".join(self._thinking)
        thoughts = [Reasoning(thinking, self._signature)] if thinking or self._signature else []
        return reply("".join(self._text), calls, thoughts)


def _replayed(message: Message) -> list[Any]:
    events: list[Any] = [{"messageStart": {"role": "assistant"}}]
    if message.text.strip():
        events += [
            {"contentBlockStart": {"start": {}}},
            {"contentBlockDelta": {"delta": {"text": message.text}}},
            {"contentBlockStop": {}},
        ]
    for each in message.tool_calls:
        events += [
            {"contentBlockStart": {"start": {"toolUse": {"toolUseId": each.id, "name": each.name}}}},
            {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(dict(each.args))}}}},
            {"contentBlockStop": {}},
        ]
    return [*events, {"messageStop": {"stopReason": "tool_use"}}]


def _answered(messages: Sequence[Any]) -> dict[str, Answered]:
    results = [block["toolResult"] for block in messages[-1]["content"] if "toolResult" in block] if messages else []
    return {
        each["toolUseId"]: Answered(_words(each) or "(no output)", each.get("status") == "error") for each in results
    }


def _words(result: Mapping[str, Any]) -> str:
    return "\n".join(block.get("text") or json.dumps(block.get("json", ""), default=str) for block in result["content"])


# -- its tools ---------------------------------------------------------------------------------------------------------


class _Failed(Exception):
    """The tool failed; Strands has made a result of it."""

    def __init__(self, event: Any, text: str) -> None:
        super().__init__(text)
        self.event = event


def _put_tool(loop: ForeignLoop, event: Any) -> None:
    """Put a tool that the run calls in the place of the one that was selected."""
    tool = event.selected_tool
    if tool is None or loop.is_inside_call:
        return
    inner, made = _threaded(tool), copy(tool)

    async def stream(tool_use: Any, invocation_state: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Cancellation: cuts the call."""
        seen: list[Any] = []

        async def perform(args: Mapping[str, Any]) -> object:
            last: Any = None
            async for each in inner.stream({**tool_use, "input": dict(args)}, invocation_state, **kwargs):
                if last is not None:
                    seen.append(last)
                last = each
            found = _result_in(last)
            if found.get("status") == "error":
                raise _Failed(last, _words(found))
            return last

        id, name = tool_use["toolUseId"], tool_use["name"]
        try:
            value: Any = await loop.call_tool(id, name, tool_use["input"], perform, _rendered)
        except _Failed as failed:
            value = failed.event
        for each in seen:
            yield each
        if isinstance(value, CallResult):
            status = "error" if value.failed else "success"
            result = {"toolUseId": id, "status": status, "content": [{"text": value.text}]}
            value = import_module("strands.types.events").ToolResultEvent(result)
        yield value

    made.stream = stream
    event.selected_tool = made


def _rendered(last: Any) -> object:
    return _words(_result_in(last))


def _result_in(event: Any) -> dict[str, Any]:
    """The result that the last event of a tool's stream is, or has."""
    return as_dict(getattr(event, "tool_result", None)) or as_dict(event)


def _threaded(tool: Any) -> Any:
    """The tool, or a copy whose plain function runs in a thread of the call."""
    function: Any = getattr(tool, "_tool_func", None)
    if function is None or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return tool

    @wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await in_call_thread(partial(function, *args, **kwargs))

    made = copy(tool)
    made._tool_func = run
    return made


# -- the conversation --------------------------------------------------------------------------------------------------


def to_native(messages: Sequence[Message]) -> list[Any]:
    """A conversation in its words: results are the user's, and one speaker has one message at a time."""
    made: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _spoken_blocks(message) if role == "assistant" else [_block(part) for part in message.parts]
        if made and made[-1]["role"] == role:
            made[-1]["content"] += blocks
        else:
            made.append({"role": role, "content": blocks})
    return made


def _spoken_blocks(message: Message) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [
        {"reasoningContent": {"reasoningText": {"text": part.text, "signature": part.signature}}}
        for part in message.parts
        if isinstance(part, Reasoning) and part.signature
    ]
    if said := spoken(message):
        blocks.append({"text": said})
    return blocks + [_call_block(each) for each in message.tool_calls]


def _call_block(made: ToolCall) -> dict[str, Any]:
    return {"toolUse": {"toolUseId": made.id, "name": made.name, "input": dict(made.args)}}


def _block(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"text": text}
        case ToolResult():
            content = [{"text": part.content}, *map(_block, part.parts)]
            status = "error" if part.is_error else "success"
            return {"toolResult": {"toolUseId": part.call_id, "status": status, "content": content}}
        case Image(data=bytes() as data):
            return {"image": {"format": part.media_type.partition("/")[2], "source": {"bytes": data}}}
        case File(data=bytes() as data):
            kind = part.media_type.partition("/")[2]
            return {"document": {"format": kind, "name": part.name or "file", "source": {"bytes": data}}}
        case _:
            raise UsageError("Strands takes no image or file by address: load it, and pass its data")
