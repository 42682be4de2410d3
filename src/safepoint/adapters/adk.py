"""Agents of Google's ADK.

Each run gets a runner of its own with a new session in memory that begins with our conversation, and a plugin that
tells Safepoint what the models say and puts tools that Safepoint calls in the place of its own. A resumed run gets the
last reply again, from us in place of the model, and then makes the calls that are left.
"""

from __future__ import annotations

import inspect
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
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
from safepoint.errors import ModelError
from safepoint.history.parts import File, Image, Message, Part, Reasoning, Text, ToolCall, ToolResult

PROMISES = Promises(framework="ADK", tested=("2.13", "3"), own_store="replaced")
check_version("ADK", "google-adk", PROMISES.tested)

_USER = "safepoint"
_ENDS = {"MAX_TOKENS": StopReason.MAX_TOKENS, "SAFETY": StopReason.REFUSED, "PROHIBITED_CONTENT": StopReason.REFUSED}


def adapt(agent: object, **options: Unpack[AdaptOptions]) -> AdkAgent:
    """The agent, or the runner, of ADK as an agent of Safepoint's. A runner gives its services and plugins too."""
    given: Any = agent
    runner: Any = given if hasattr(given, "session_service") else None
    root: Any = runner.agent if runner is not None else given
    return AdkAgent(root, runner, checked(options, root.name, None), options.get("run_options", {}))


class AdkAgent(ForeignAgent[Any, Any]):
    """An agent of ADK."""

    promises = PROMISES

    def __init__(self, agent: Any, runner: Any, options: ForeignOptions, run_options: Mapping[str, Any]) -> None:
        tools = [getattr(tool, "name", None) or getattr(tool, "__name__", None) for tool in getattr(agent, "tools", ())]
        super().__init__(options, tool_names=[name for name in tools if name])
        self._agent = agent
        self._runner = runner
        self._run_options = dict(run_options)

    async def carry_out(self, loop: ForeignLoop) -> Outcome:
        """Cancellation: closes the stream of events, which ends the agents below it."""
        watch = _plugin(loop)
        runner, session = await self._session(loop, watch)
        *_, last = to_native(loop.closed_messages)
        given = dict(self._run_options)
        if "run_config" not in given:
            configs = import_module("google.adk.agents.run_config")
            given["run_config"] = configs.RunConfig(streaming_mode=configs.StreamingMode.SSE)
        events = runner.run_async(user_id=_USER, session_id=session.id, new_message=last, **given)
        failed: Any = None
        try:
            async for event in events:
                if not event.partial:
                    failed = event if event.error_code and not event.content else None
        finally:
            await events.aclose()
        if failed is not None:
            raise ModelError(f"{failed.error_code}: {failed.error_message or 'no reason was given'}")
        return Outcome(stop_reason=_ENDS.get(watch.ended_by, StopReason.END_TURN))

    async def _session(self, loop: ForeignLoop, watch: Any) -> tuple[Any, Any]:
        """A runner with a session that holds all but the last message. Cancellation: the run has not begun."""
        library = import_module("google.adk.runners")
        service = import_module("google.adk.sessions").InMemorySessionService()
        kind = import_module("google.adk.events").Event
        given = self._runner
        name = given.app_name if given is not None else "safepoint"
        services: dict[str, Any] = {}
        if given is not None:
            services = {
                "artifact_service": given.artifact_service,
                "memory_service": given.memory_service,
                "credential_service": getattr(given, "credential_service", None),
            }
        theirs = as_list(getattr(getattr(given, "plugin_manager", None), "plugins", None))
        runner = library.Runner(
            agent=self._agent, app_name=name, session_service=service, plugins=[*theirs, watch], **services
        )
        state = as_dict(loop.deps) or None
        session = await service.create_session(app_name=name, user_id=_USER, state=state)
        for content in to_native(loop.closed_messages)[:-1]:
            author = self._agent.name if content.role == "model" else "user"
            if any(part.function_response for part in content.parts):
                author = self._agent.name
            await service.append_event(session, kind(author=author, content=content, invocation_id="before"))
        return runner, session


# -- its models and tools ----------------------------------------------------------------------------------------------


def _plugin(loop: ForeignLoop) -> Any:
    """A plugin that watches one run."""
    base: Any = import_module("google.adk.plugins.base_plugin").BasePlugin
    replay = [loop.reply_to_replay]

    class Watch(base):  # type: ignore[misc]  # the library is not there for the type checker
        ended_by = ""

        def __init__(self) -> None:
            base.__init__(self, "safepoint")

        async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> Any:
            """Cancellation: the run stops here."""
            if loop.is_inside_call:
                return None
            for name, tool in llm_request.tools_dict.items():
                llm_request.tools_dict[name] = _watched_tool(tool, loop)
            again = replay.pop() if replay else None
            if again is not None:
                return _replayed(again)
            await loop.begin_model(llm_request.model or "model", _answered(llm_request.contents))
            return None

        async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> Any:
            """Cancellation: the run stops here."""
            if loop.is_inside_call or _REPLAYED in as_dict(llm_response.custom_metadata):
                return None
            parts = as_list(getattr(llm_response.content, "parts", None))
            if llm_response.partial:
                for part in parts:
                    if part.text:
                        (loop.think if part.thought else loop.say)(part.text)
                return None
            if llm_response.content is None and llm_response.error_code:
                loop.fail_model(ModelError(f"{llm_response.error_code}: {llm_response.error_message}"))
                return None
            for part in parts:
                if part.function_call and not part.function_call.id:
                    part.function_call.id = f"adk-{uuid.uuid4()}"
            self.ended_by = getattr(llm_response.finish_reason, "name", "")
            await loop.end_model(from_parts(parts), _usage(llm_response.usage_metadata))
            return None

        async def on_model_error_callback(self, *, callback_context: Any, llm_request: Any, error: Any) -> Any:
            """Never waits. Cancellation: none."""
            if not loop.is_inside_call:
                loop.fail_model(error)

    return Watch()


_REPLAYED = "safepoint:replayed"


def _replayed(message: Message) -> Any:
    response = import_module("google.adk.models").LlmResponse
    return response(content=_spoken(message), turn_complete=True, custom_metadata={_REPLAYED: True})


def _watched_tool(tool: Any, loop: ForeignLoop) -> Any:
    """A copy of the tool whose calls are made by the run."""
    made, inner = copy(tool), _threaded(tool)

    async def run_async(*, args: dict[str, Any], tool_context: Any) -> Any:
        """Cancellation: cuts the call."""
        if loop.is_inside_call:
            return await tool.run_async(args=args, tool_context=tool_context)

        async def perform(given: Mapping[str, Any]) -> object:
            return await inner.run_async(args=dict(given), tool_context=tool_context)

        value = await loop.call_tool(tool_context.function_call_id, tool.name, args, perform, _rendered)
        if isinstance(value, CallResult):
            return {"error" if value.failed else "result": value.text}
        return value

    object.__setattr__(made, "run_async", run_async)
    return made


def _threaded(tool: Any) -> Any:
    """The tool, or a copy whose plain function runs in a thread of the call."""
    function: Callable[..., Any] | None = getattr(tool, "func", None)
    if function is None or not inspect.isfunction(function):
        return tool
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return tool
    if inspect.isgeneratorfunction(function):
        return tool

    @wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await in_call_thread(partial(function, *args, **kwargs))

    made = copy(tool)
    made.func = run
    return made


def _rendered(value: Any) -> object:
    found = as_dict(value)
    if len(found) == 1 and isinstance(found.get("result"), str):
        return found["result"]
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _usage(used: Any) -> Usage | None:
    if used is None or not (used.prompt_token_count or used.candidates_token_count):
        return None
    thought = used.thoughts_token_count or 0
    spent_out = (used.candidates_token_count or 0) + thought
    return Usage(used.prompt_token_count or 0, spent_out, 1, False, used.cached_content_token_count or 0, thought)


def _answered(contents: Sequence[Any]) -> dict[str, Answered]:
    found: dict[str, Answered] = {}
    for part in (contents[-1].parts or ()) if contents else ():
        answer = part.function_response
        if answer is not None and answer.id:
            failed = "error" in as_dict(answer.response)
            found[answer.id] = Answered(str(_rendered(answer.response)) or "(no output)", failed)
    return found


def from_parts(parts: Sequence[Any]) -> Message | None:
    """Its reply as a message."""
    text = "".join(part.text for part in parts if part.text and not part.thought)
    thoughts = [Reasoning(part.text) for part in parts if part.text and part.thought]
    made = [part.function_call for part in parts if part.function_call]
    return reply(text, [call(each.id, each.name, each.args or {}) for each in made], thoughts)


# -- the conversation --------------------------------------------------------------------------------------------------


def to_native(messages: Sequence[Message]) -> list[Any]:
    """A conversation as contents."""
    words = import_module("google.genai.types")
    made: list[Any] = []
    for message in messages:
        if message.role == "assistant":
            made.append(_spoken(message))
        else:
            made.append(words.Content(role="user", parts=[_part(words, part) for part in message.parts]))
    return made


def _spoken(message: Message) -> Any:
    words = import_module("google.genai.types")
    parts = [words.Part(text=said)] if (said := spoken(message)) else []
    calls = [_call_part(words, each) for each in message.tool_calls]
    return words.Content(role="model", parts=[*parts, *calls])


def _call_part(words: Any, made: ToolCall) -> Any:
    return words.Part(function_call=words.FunctionCall(id=made.id, name=made.name, args=dict(made.args)))


def _part(words: Any, part: Part) -> Any:
    match part:
        case Text(text):
            return words.Part(text=text)
        case ToolResult():
            response = {"error" if part.is_error else "result": part.content}
            return words.Part(
                function_response=words.FunctionResponse(id=part.call_id, name=part.name, response=response)
            )
        case Image(data=bytes() as data) | File(data=bytes() as data):
            return words.Part(inline_data=words.Blob(data=data, mime_type=part.media_type))
        case Image(url=str() as url) | File(url=str() as url):
            return words.Part(file_data=words.FileData(file_uri=url, mime_type=part.media_type))
        case _:
            return words.Part(text="")
