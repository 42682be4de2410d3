"""Google ADK: a `BaseLlm` of our own, a `Runner` with in-memory sessions, and `abort_signal`, the runner's own stop.

It has no back-off of its own: its documentation puts retries into the provider's HTTP client. Commands run in its
`EnvironmentToolset`.
"""

import asyncio
import inspect
import uuid

from google.adk.agents import Agent, RunConfig
from google.adk.agents.run_config import StreamingMode, ToolThreadPoolConfig
from google.adk.environment import LocalEnvironment
from google.adk.events import Event
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.environment import EnvironmentToolset
from google.adk.tools.function_tool import FunctionTool
from google.genai import types

from bench.compare.contract import Call, End, Framework, Live, Note, Result, Say, Subject, Used
from bench.compare.tracing import OpenTelemetrySpans

ABORTED = "INVOCATION_ABORTED"


def read(contents):
    notes = []
    for content in contents:
        parts = content.parts or []
        text = " ".join(part.text for part in parts if part.text)
        calls = tuple(part.function_call.id for part in parts if part.function_call)
        answers = [part.function_response for part in parts if part.function_response]
        if answers:
            told = ((answer.id, answer.response) for answer in answers)
            notes.append(Note("tool", results=tuple(Result(id, str(response)) for id, response in told)))
        if text or calls:
            notes.append(Note("user" if content.role == "user" else "assistant", text, calls))
    return notes


def write(note):
    if note.role == "tool":
        answers = (types.FunctionResponse(id=r.id, name="nothing", response={"result": r.text}) for r in note.results)
        return types.Content(role="user", parts=[types.Part(function_response=answer) for answer in answers])
    calls = [types.Part(function_call=types.FunctionCall(id=call, name="nothing", args={})) for call in note.calls]
    words = [types.Part(text=note.text)] if note.text else []
    return types.Content(role="user" if note.role == "user" else "model", parts=words + calls)


class Scripted(BaseLlm):
    script: object
    children: list[str]

    async def generate_content_async(self, llm_request, stream=False):
        contents = llm_request.contents
        answered = any(part.function_response for part in contents[-1].parts or ())
        words, calls, used = [], [], None
        async for chunk in self.script.reply(answered=answered, read=lambda: read(contents)):
            if isinstance(chunk, Say):
                words.append(chunk.text)
                if stream:
                    yield LlmResponse(content=_words(chunk.text), usage_metadata=used, partial=True)
            elif isinstance(chunk, Call):
                arguments = {"request": "go"} if chunk.name in self.children else chunk.arguments
                name = "Execute" if "command" in arguments else chunk.name
                function = types.FunctionCall(id=chunk.id, name=name, args=arguments)
                calls.append(types.Part(function_call=function))
            elif isinstance(chunk, Used):
                used = _usage(chunk)  # Gemini tells it with every chunk
        content = types.Content(role="model", parts=calls) if calls else _words("".join(words))
        yield LlmResponse(content=content, usage_metadata=_usage(Used(10, 5)), turn_complete=True)


def _words(text):
    return types.Content(role="model", parts=[types.Part(text=text)])


def _usage(used):
    return types.GenerateContentResponseUsageMetadata(
        prompt_token_count=used.input, candidates_token_count=used.output, total_token_count=used.input + used.output
    )


class AdkAgent(Subject):
    def __init__(self, plan):
        self.plan = plan
        self._session = None
        self._base = []
        tools = [_tool(ability) for ability in plan.abilities]
        tools += [AgentTool(child.agent) for child in plan.children]
        model = Scripted(model="scripted", script=plan.script, children=[child.plan.name for child in plan.children])
        self.agent = Agent(name=plan.name, description="An agent.", model=model, tools=tools)
        self._runner = InMemoryRunner(self.agent, app_name="bench")
        blocking = any(not inspect.iscoroutinefunction(ability.function) for ability in plan.abilities)
        pool = ToolThreadPoolConfig() if blocking else None
        self._streamed = RunConfig(streaming_mode=StreamingMode.SSE, tool_thread_pool_config=pool)

    async def remember(self, notes):
        self._base = list(map(write, notes))
        self._session = await self._new_session()

    async def _new_session(self):
        service = self._runner.session_service
        session = await service.create_session(app_name="bench", user_id="ann", session_id=uuid.uuid4().hex)
        for content in self._base:
            author = "user" if content.role == "user" and content.parts[0].text else self.plan.name
            await service.append_event(session, Event(author=author, content=content, invocation_id="old"))
        return session.id

    async def _run(self, prompt, **options):
        session, self._session = self._session or await self._new_session(), None
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        text = ""
        async for event in self._runner.run_async(user_id="ann", session_id=session, new_message=message, **options):
            if event.is_final_response() and event.content and event.content.parts:
                text = event.content.parts[0].text or ""
        return text

    async def call(self, prompt):
        return await self._run(prompt)

    async def stream(self, prompt):
        return await self._run(prompt, run_config=self._streamed)

    def start(self, prompt):
        signal = asyncio.Event()
        return Live(asyncio.create_task(self._end(prompt, signal)), signal.set)

    async def _end(self, prompt, signal):
        if self._session is None:
            self._session = await self._new_session()
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        how, text, used = "finished", "", (0, 0)
        async for event in self._runner.run_async(
            user_id="ann",
            session_id=self._session,
            new_message=message,
            run_config=self._streamed,
            abort_signal=signal,
        ):
            if event.error_code == ABORTED:
                how = "stopped"
            if event.usage_metadata:
                told = event.usage_metadata
                used = (told.prompt_token_count or used[0], told.candidates_token_count or used[1])
            if event.is_final_response() and event.content and event.content.parts and event.content.parts[0].text:
                text = event.content.parts[0].text
        session = await self._runner.session_service.get_session(
            app_name="bench", user_id="ann", session_id=self._session
        )
        contents = [event.content for event in session.events if event.content]
        return End(how, lambda: read(contents), text=text, used=used)


def _tool(ability):
    if ability.command:
        return EnvironmentToolset(environment=LocalEnvironment())
    tool = FunctionTool(ability.function)
    tool.name = ability.name
    return tool


class Adapter(Framework):
    package = "google-adk"
    stopped_by = "`run_async(abort_signal=…)`"

    def make(self, plan):
        return AdkAgent(plan)

    def spans(self):
        return OpenTelemetrySpans.install()
