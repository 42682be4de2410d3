"""Agents of the OpenAI Agents SDK.

A clone of the agent is run, and of every agent that it can hand over to: each with a model that tells Safepoint what it
says, and with tools that Safepoint calls. The conversation is handed over as input items, so its own session is not
used. A resumed run gets the last reply again, from us in place of the model, and then makes the calls that are left.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
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
from safepoint.history.parts import File, Image, Message, Part, Text, ToolCall, ToolResult

PROMISES = Promises(framework="OpenAI Agents", tested=("0.24", "0.25"), own_store="replaced")
check_version("OpenAI Agents", "openai-agents", PROMISES.tested)

_ENDS = {"max_output_tokens": StopReason.MAX_TOKENS, "content_filter": StopReason.REFUSED}
_OURS = ("session", "conversation_id", "previous_response_id", "auto_previous_response_id")


def adapt(agent: object, **options: Unpack[AdaptOptions]) -> OpenAIAgent:
    """The agent of the OpenAI Agents SDK as an agent of Safepoint's."""
    given = options.get("run_options", {})
    if kept := [option for option in _OURS if option in given]:
        raise UsageError(
            f"run_options={{{kept[0]!r}: …}}: Safepoint keeps the conversation; write agent.run(session=…)"
        )
    return OpenAIAgent(agent, checked(options, getattr(agent, "name", "agent"), None), given)


class OpenAIAgent(ForeignAgent[Any, Any]):
    """An agent of the OpenAI Agents SDK."""

    promises = PROMISES

    def __init__(self, agent: Any, options: ForeignOptions, run_options: Mapping[str, Any]) -> None:
        super().__init__(options, tool_names=[tool.name for tool in agent.tools])
        self._agent = agent
        self._run_options = dict(run_options)

    async def carry_out(self, loop: ForeignLoop) -> Outcome:
        """Cancellation: the SDK's run is cancelled, and its task awaited."""
        library = import_module("agents")
        given = dict(self._run_options)
        config = given.pop("run_config", None) or library.RunConfig()
        clones = _Clones(loop, config)
        if config.model is not None:
            config = replace(config, model=clones.model(config.model))
        if loop.deps is not None:
            given["context"] = loop.deps
        items = to_native(loop.closed_messages)
        result = library.Runner.run_streamed(clones.of(self._agent), items, run_config=config, **given)
        try:
            async for _ in result.stream_events():
                pass
        finally:
            if not result.is_complete:
                result.cancel()
            task = result.run_loop_task
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
        if result.interruptions:
            raise SafepointError(
                "needs_approval=… has no place in this run: in a tool write `await tool_context().interrupt(…)`"
            )
        output = result.final_output
        return Outcome(_text_of(output), output, _ENDS.get(clones.cut_off, StopReason.END_TURN))

    def value_of(self, text: str) -> object:
        from pydantic import TypeAdapter, ValidationError

        kind: Any = self._agent.output_type
        if kind in (None, str) or not isinstance(kind, type):
            return text
        try:
            return TypeAdapter[Any](kind).validate_json(text)
        except ValidationError:
            return text


def _text_of(output: object) -> str | None:
    if output is None or isinstance(output, str):
        return output
    from pydantic import TypeAdapter

    return TypeAdapter[Any](type(output)).dump_json(output).decode()


class _Clones:
    """The agents of one run: each is cloned once, so that they may hand over to one another."""

    def __init__(self, loop: ForeignLoop, config: Any) -> None:
        self._loop = loop
        self._config = config
        self._made: dict[int, Any] = {}
        # Why the provider cut the last reply off, if it did.
        self.cut_off = ""
        self.replay = loop.reply_to_replay

    def of(self, agent: Any) -> Any:
        if id(agent) in self._made:
            return self._made[id(agent)]
        made = agent.clone(
            model=self.model(agent.model),
            model_settings=agent.model_settings,
            tools=[self._tool(tool) for tool in agent.tools],
            handoffs=[],
        )
        self._made[id(agent)] = made
        made.handoffs = [self._handoff(each) for each in agent.handoffs]
        if agent.mcp_servers:
            object.__setattr__(made, "get_mcp_tools", self._mcp_tools(agent))
        return made

    def model(self, model: Any) -> Any:
        kind = import_module("agents").Model
        found = model if isinstance(model, kind) else self._config.model_provider.get_model(model)
        return _watched_model(found, self._loop, self)

    def _handoff(self, handoff: Any) -> Any:
        if not hasattr(handoff, "on_invoke_handoff"):
            return self.of(handoff)

        async def invoke(context: Any, text: str) -> Any:
            return self.of(await handoff.on_invoke_handoff(context, text))

        return replace(handoff, on_invoke_handoff=invoke)

    def _mcp_tools(self, agent: Any) -> Callable[[Any], Any]:
        async def tools(context: Any) -> list[Any]:
            return [self._tool(tool) for tool in await agent.get_mcp_tools(context)]

        return tools

    def _tool(self, tool: Any) -> Any:
        if not hasattr(tool, "on_invoke_tool"):
            return tool  # a hosted tool: the provider runs it
        made, perform, loop = replace(tool), _performer(tool), self._loop
        failed = import_module("agents.tool").maybe_invoke_function_tool_failure_error_function

        async def invoke(context: Any, text: str) -> Any:
            if loop.is_inside_call:
                return await tool.on_invoke_tool(context, text)
            args = call("", tool.name, text).args

            async def body(given: Mapping[str, Any]) -> object:
                return await perform(context, text if given == args else json.dumps(dict(given)))

            try:
                value = await loop.call_tool(context.tool_call_id, tool.name, args, body, _rendered)
            except Exception as error:
                answer = await failed(function_tool=tool, context=context, error=error)
                if answer is None:
                    raise
                return answer
            return value.text if isinstance(value, CallResult) else value

        made.on_invoke_tool = invoke
        return made


def _performer(tool: Any) -> Callable[[Any, str], Any]:
    """What carries out the tool and raises its error; a plain function runs in a thread of the call."""
    inner = replace(tool)
    inner._failure_error_function, inner._use_default_failure_error_function = None, False
    function: Any = getattr(tool, "__wrapped__", None)
    if function is None or inspect.iscoroutinefunction(function):
        return inner.on_invoke_tool  # type: ignore[no-any-return]  # of the library

    @wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await in_call_thread(partial(function, *args, **kwargs))

    made = import_module("agents").function_tool(
        run, name_override=tool.name, strict_mode=tool.strict_json_schema, failure_error_function=None
    )
    return made.on_invoke_tool  # type: ignore[no-any-return]  # as above


def _rendered(value: Any) -> object:
    if several := as_list(value):
        return "\n".join(str(_rendered(each)) for each in several)
    return getattr(value, "text", None) or str(value)


# -- its models --------------------------------------------------------------------------------------------------------


def _watched_model(model: Any, loop: ForeignLoop, run: _Clones) -> Any:
    """A model that tells the run what it says."""
    base: Any = import_module("agents").Model

    class Watched(base):  # type: ignore[misc]  # the library is not there for the type checker
        async def close(self) -> None:
            """Cancellation: as the model's own."""
            await model.close()

        def get_retry_advice(self, request: Any) -> Any:
            return model.get_retry_advice(request)

        async def get_response(self, system: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
            """Cancellation: cuts the model's own call."""
            if loop.is_inside_call:
                return await model.get_response(system, input, *args, **kwargs)
            await loop.begin_model(_name_of(model), _answered(input))
            try:
                response = await model.get_response(system, input, *args, **kwargs)
            except Exception as error:
                loop.fail_model(error)
                raise
            await loop.end_model(from_items(response.output), _usage(response.usage))
            return response

        async def stream_response(self, system: Any, input: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            """Cancellation: closes the model's own stream."""
            if run.replay is not None:
                again, run.replay = run.replay, None
                for event in _replayed(again):
                    yield event
                return
            await loop.begin_model(_name_of(model), _answered(input))
            last: Any = None
            try:
                async for event in model.stream_response(system, input, *args, **kwargs):
                    if event.type == "response.output_text.delta":
                        loop.say(event.delta)
                    elif event.type in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
                        loop.think(event.delta)
                    if event.type in ("response.completed", "response.incomplete"):
                        last = event.response
                        details = getattr(last, "incomplete_details", None)
                        run.cut_off = getattr(details, "reason", None) or ""
                        await loop.end_model(from_items(last.output), _usage(last.usage))
                    yield event
            except Exception as error:
                loop.fail_model(error)
                raise

    return Watched()


def _name_of(model: Any) -> str:
    return str(getattr(model, "model", None) or type(model).__name__)


def _usage(used: Any) -> Usage | None:
    if used is None or not (used.input_tokens or used.output_tokens):
        return None
    cached = getattr(used.input_tokens_details, "cached_tokens", 0) or 0
    thought = getattr(used.output_tokens_details, "reasoning_tokens", 0) or 0
    return Usage(used.input_tokens, used.output_tokens, 1, False, cached, thought)


def _answered(items: Any) -> dict[str, Answered]:
    found: dict[str, Answered] = {}
    for item in map(as_dict, reversed(as_list(items))):
        kind = item.get("type")
        if kind == "function_call_output":
            output: Any = item.get("output")
            found[item["call_id"]] = Answered(output if isinstance(output, str) and output else json.dumps(output))
        elif kind not in ("function_call", "reasoning"):
            break
    return found


def from_items(items: Sequence[Any]) -> Message | None:
    """Its reply as a message."""
    text: list[str] = []
    calls: list[ToolCall] = []
    for item in items:
        if item.type == "message":
            text += [part.text if part.type == "output_text" else part.refusal for part in item.content]
        elif item.type == "function_call":
            calls.append(call(item.call_id, item.name, item.arguments))
    return reply("".join(text), calls)


def _replayed(message: Message) -> list[Any]:
    """The events of a stream that says this reply."""
    words = import_module("openai.types.responses")
    output = [
        words.ResponseFunctionToolCall(
            call_id=each.id, name=each.name, arguments=json.dumps(dict(each.args)), type="function_call"
        )
        for each in message.tool_calls
    ]
    if message.text.strip():
        part = words.ResponseOutputText(text=message.text, type="output_text", annotations=[])
        output.insert(
            0,
            words.ResponseOutputMessage(
                id="replayed", type="message", role="assistant", content=[part], status="completed"
            ),
        )
    response = words.Response(
        id="replayed",
        created_at=0,
        model="replayed",
        object="response",
        output=output,
        tool_choice="auto",
        tools=[],
        parallel_tool_calls=True,
    )
    done = [
        words.ResponseOutputItemDoneEvent(
            item=item, output_index=place, sequence_number=place, type="response.output_item.done"
        )
        for place, item in enumerate(output)
    ]
    end = words.ResponseCompletedEvent(response=response, sequence_number=len(done), type="response.completed")
    return [*done, end]


# -- the conversation --------------------------------------------------------------------------------------------------


def to_native(messages: Sequence[Message]) -> list[Any]:
    """A conversation as input items."""
    items: list[Any] = []
    for message in messages:
        if message.role == "user":
            items.append({"role": "user", "content": _content(message.parts)})
        elif message.role == "assistant":
            if said := spoken(message):
                items.append({"role": "assistant", "content": said})
            items += [_call_item(each) for each in message.tool_calls]
        else:
            for part in message.parts:
                if isinstance(part, ToolResult):
                    output: Any = part.content
                    if part.parts:
                        output = [{"type": "input_text", "text": part.content}, *map(_block, part.parts)]
                    items.append({"type": "function_call_output", "call_id": part.call_id, "output": output})
    return items


def _call_item(made: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(dict(made.args))
    return {"type": "function_call", "call_id": made.id, "name": made.name, "arguments": arguments}


def _content(parts: Sequence[Part]) -> Any:
    if len(parts) == 1 and isinstance(parts[0], Text):
        return parts[0].text
    return [_block(part) for part in parts]


def _block(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"type": "input_text", "text": text}
        case Image():
            return {"type": "input_image", "image_url": part.url or _data_url(part), "detail": "auto"}
        case File(url=str() as url):
            return {"type": "input_file", "file_url": url}
        case File():
            return {"type": "input_file", "file_data": _data_url(part), "filename": part.name or "file"}
        case _:
            raise SafepointError(f"{part!r} has no place in a prompt")


def _data_url(part: Image | File) -> str:
    return f"data:{part.media_type};base64,{base64.b64encode(part.data or b'').decode()}"
