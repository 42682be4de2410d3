"""Agents of Pydantic AI.

It keeps no conversation of its own: each run gets ours as `message_history`, closed or with open calls. Its hooks see
model requests and tool calls whole; its plain functions run in an executor, which is ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Unpack

from safepoint.adapters.options import AdaptOptions, check_version, checked
from safepoint.adapters.replies import call, reply, spoken
from safepoint.agent.foreign import ForeignAgent, ForeignOptions
from safepoint.agent.foreign_loop import Answered, ForeignLoop, Outcome
from safepoint.agent.foreign_tool import CallResult, CallThreads, tool_context
from safepoint.agent.promises import Promises
from safepoint.agent.result import StopReason
from safepoint.agent.usage import Usage
from safepoint.history.parts import File, Image, Message, Part, Reasoning, Text, ToolCall, ToolResult

PROMISES = Promises(framework="Pydantic AI", tested=("2.66", "3"), steering=True, own_pauses=True)
check_version("Pydantic AI", "pydantic-ai-slim", PROMISES.tested)

# What a call remembers that Pydantic AI itself has put off: for an approval, or for a result from outside.
_DEFERRED = "pydantic_ai:deferred"
_ENDS = {"length": StopReason.MAX_TOKENS, "content_filter": StopReason.REFUSED}


def adapt(agent: object, **options: Unpack[AdaptOptions]) -> PydanticAgent:
    """The agent of Pydantic AI as an agent of Safepoint's."""
    return PydanticAgent(
        agent, checked(options, getattr(agent, "name", None) or "agent", None), options.get("run_options", {})
    )


class PydanticAgent(ForeignAgent[Any, Any]):
    """An agent of Pydantic AI."""

    promises = PROMISES

    def __init__(self, agent: Any, options: ForeignOptions, run_options: Mapping[str, Any]) -> None:
        super().__init__(options, tool_names=_names_of_tools(agent))
        self._agent = agent
        self._run_options = dict(run_options)
        self._threads = CallThreads()
        self._adapter: Any = None

    async def carry_out(self, loop: ForeignLoop) -> Outcome:
        """Cancellation: Pydantic AI ends its own tasks and lets it through."""
        library = import_module("pydantic_ai")
        watch = _Watch(loop, self._run_options)
        given = self._run_options | watch.options() | self._opening(loop, watch)
        if loop.deps is not None:
            given["deps"] = loop.deps
        with self._agent.using_thread_executor(self._threads):
            result: Any = await self._agent.run(**given)
        if isinstance(result.output, library.DeferredToolRequests):
            await watch.ask(result.output)
        last = result.response
        text = last.text if last.text and not last.tool_calls else self._text_of(result.output)
        return Outcome(text, result.output, _ENDS.get(str(last.finish_reason), StopReason.END_TURN))

    def _opening(self, loop: ForeignLoop, watch: _Watch) -> dict[str, Any]:
        messages = loop.messages
        if len(messages) == 1 and messages[0].role == "user":
            return {"user_prompt": _content(messages[0].parts)}  # it adds its system prompt to a new conversation only
        history = to_native(messages, self._provider())
        given: dict[str, Any] = {"message_history": history}
        deferred = {each.id: loop.memory(each.id) for each in loop.open_calls if _DEFERRED in loop.memory(each.id).once}
        if deferred:
            library = import_module("pydantic_ai")
            results = library.DeferredToolResults()
            for id, memory in deferred.items():
                if memory.once[_DEFERRED] == "approval":
                    results.approvals[id] = _approval(library, memory.answers[-1])
                else:
                    results.calls[id] = memory.answers[-1]
            given["deferred_tool_results"] = results
        return given

    def _provider(self) -> str | None:
        model = self._run_options.get("model") or getattr(self._agent, "model", None)
        return getattr(model, "system", None)

    def _text_of(self, output: object) -> str:
        if isinstance(output, str):
            return output
        from pydantic import TypeAdapter

        return TypeAdapter[Any](type(output)).dump_json(output).decode()

    def value_of(self, text: str) -> object:
        from pydantic import TypeAdapter, ValidationError

        kind: Any = self._agent.output_type
        if kind is str or not isinstance(kind, type):
            return text
        try:
            return TypeAdapter[Any](kind).validate_json(text)
        except ValidationError:
            return text


class _Watch:
    """The hooks around one run."""

    def __init__(self, loop: ForeignLoop, run_options: Mapping[str, Any]) -> None:
        self._loop = loop
        self._given = run_options
        self._heard: Sequence[Message] = ()

    def options(self) -> dict[str, Any]:
        capabilities = import_module("pydantic_ai.capabilities")
        hooks = capabilities.Hooks()
        hooks.on.run(self.whole_run)
        hooks.on.model_request(self.model_request)
        hooks.on.before_model_request(self.before_model_request)
        hooks.on.tool_execute(self.tool_execute)
        # A conversation that goes on has no system prompt of its agent's.
        prompt = [capabilities.ReinjectSystemPrompt()] if len(self._loop.messages) > 1 else []
        return {
            "capabilities": [*self._given.get("capabilities", ()), hooks, *prompt],
            "event_stream_handler": self.read,
        }

    async def read(self, context: Any, events: AsyncIterable[Any]) -> None:
        """Cancellation: ends the reading."""
        theirs = self._given.get("event_stream_handler")
        if theirs is not None:
            await theirs(context, self._seen(events))
            return
        async for _ in self._seen(events):
            pass

    async def _seen(self, events: AsyncIterable[Any]) -> AsyncIterable[Any]:
        async for event in events:
            piece = getattr(event, "part", None) if event.event_kind == "part_start" else getattr(event, "delta", None)
            kind = getattr(piece, "part_kind", None) or getattr(piece, "part_delta_kind", None)
            words = getattr(piece, "content", None) or getattr(piece, "content_delta", None)
            if words and kind == "text":
                self._loop.say(words)
            elif words and kind == "thinking":
                self._loop.think(words)
            yield event

    async def whole_run(self, context: Any, *, handler: Callable[[], Any]) -> Any:
        """Pydantic AI does this in a task beside the run. Cancellation: ends it."""
        self._loop.visit()
        return await handler()

    async def model_request(self, context: Any, *, request_context: Any, handler: Callable[[Any], Any]) -> Any:
        """Cancellation: cuts the request; Pydantic AI closes the provider's connection."""
        self._heard = await self._loop.begin_model(request_context.model.model_id, _answered(context.messages))
        try:
            response = await handler(request_context)
        except Exception as error:
            self._loop.fail_model(error)
            raise
        await self._loop.end_model(from_response(response), _usage(response.usage))
        return response

    async def before_model_request(self, context: Any, request_context: Any) -> Any:
        """Never waits. Cancellation: none."""
        heard, self._heard = self._heard, ()
        for message in heard:
            context.enqueue(_content(message.parts))
        return request_context

    async def tool_execute(
        self, context: Any, *, call: Any, tool_def: Any, args: Any, handler: Callable[[Any], Any]
    ) -> Any:
        """Cancellation: cuts the call."""
        made = await self._loop.call_tool(call.tool_call_id, call.tool_name, args, handler, _rendered)
        return made.text if isinstance(made, CallResult) else made

    async def ask(self, deferred: Any) -> None:
        """Calls that wait for a person. Cancellation: the run ends with their questions."""
        asked = [(part, "approval") for part in deferred.approvals] + [(part, "result") for part in deferred.calls]
        await asyncio.gather(*(self._ask(part, what) for part, what in asked))

    async def _ask(self, part: Any, what: str) -> None:
        args = part.args_as_dict()

        async def wait(_args: Mapping[str, Any]) -> object:
            context = tool_context()
            await context.once(_DEFERRED, lambda: what)
            return await context.interrupt({"tool": part.tool_name, "args": args, "wanted": what})

        await self._loop.call_tool(part.tool_call_id, part.tool_name, args, wait)


def _approval(library: Any, answer: object) -> object:
    if answer is True:
        return True
    return library.ToolDenied(answer if isinstance(answer, str) else "a person said no")


def _rendered(value: object) -> object:
    """What the ledger has of a tool's value."""
    kind = getattr(value, "kind", None)
    return getattr(value, "return_value", value) if kind == "tool-return" else value


def _names_of_tools(agent: Any) -> Iterable[str]:
    return [name for toolset in agent.toolsets for name in getattr(toolset, "tools", ())]


def _answered(messages: Sequence[Any]) -> dict[str, Answered]:
    """What the last request says about calls: results that Pydantic AI made itself are among them."""
    found: dict[str, Answered] = {}
    for part in messages[-1].parts if messages else ():
        if part.part_kind == "tool-return":
            found[part.tool_call_id] = Answered(part.model_response_str() or "(no output)")
        elif part.part_kind in ("retry-prompt", "retry-feedback") and getattr(part, "tool_call_id", None):
            found[part.tool_call_id] = Answered(part.model_response(), failed=True)
    return found


def _usage(used: Any) -> Usage | None:
    if not used.input_tokens and not used.output_tokens:
        return None
    thought = used.details.get("reasoning_tokens", 0) if used.details else 0
    return Usage(used.input_tokens, used.output_tokens, 1, False, used.cache_read_tokens, thought)


def from_response(response: Any) -> Message | None:
    """Its reply as a message."""
    text: list[str] = []
    calls: list[ToolCall] = []
    reasoning: list[Reasoning] = []
    for part in response.parts:
        if part.part_kind == "text":
            text.append(part.content)
        elif part.part_kind == "thinking":
            reasoning.append(Reasoning(part.content, part.signature or None))
        elif part.part_kind == "tool-call":
            calls.append(call(part.tool_call_id, part.tool_name, part.args))
    return reply("".join(text), calls, reasoning)


def to_native(messages: Sequence[Message], provider: str | None = None) -> list[Any]:
    """A conversation in its words. `provider`: whose signatures the reasoning has."""
    words = import_module("pydantic_ai.messages")
    made: list[Any] = []
    for message in messages:
        if message.role == "assistant":
            made.append(words.ModelResponse(_response_parts(words, message, provider), state=_state_of(message)))
        elif message.role == "user":
            made.append(words.ModelRequest([words.UserPromptPart(_content(message.parts))]))
        else:
            made.append(
                words.ModelRequest([_result(words, part) for part in message.parts if isinstance(part, ToolResult)])
            )
    return made


def _state_of(message: Message) -> str:
    """Pydantic AI closes the calls of an interrupted reply itself, so only one without calls is marked."""
    cut = any(isinstance(part, Text) and part.incomplete for part in message.parts)
    return "interrupted" if cut and not message.tool_calls else "complete"


def _response_parts(words: Any, message: Message, provider: str | None) -> list[Any]:
    parts: list[Any] = [
        words.ThinkingPart(part.text, signature=part.signature, provider_name=provider if part.signature else None)
        for part in message.parts
        if isinstance(part, Reasoning)
    ]
    if said := spoken(message):
        parts.append(words.TextPart(said))
    return parts + [words.ToolCallPart(each.name, dict(each.args), each.id) for each in message.tool_calls]


def _result(words: Any, part: ToolResult) -> Any:
    outcome = "success" if not part.is_error else "failed" if part.state == "failed" else "interrupted"
    content: Any = part.content
    if part.parts:
        content = [part.content, *_content(part.parts)]
    return words.ToolReturnPart(part.name, content, part.call_id, outcome=outcome)


def _content(parts: Iterable[Part]) -> Any:
    words = import_module("pydantic_ai.messages")
    made: list[Any] = []
    for part in parts:
        match part:
            case Text(text):
                made.append(text)
            case Image(data=bytes() as data) | File(data=bytes() as data):
                made.append(words.BinaryContent(data, media_type=part.media_type))
            case Image(url=str() as url):
                made.append(words.ImageUrl(url))
            case File(url=str() as url):
                made.append(words.DocumentUrl(url))
            case _:
                pass
    return made[0] if len(made) == 1 and isinstance(made[0], str) else made
