"""LangGraph: the documented graph of an agent (a model node and a `ToolNode`), a chat model of our own, a checkpointer.

The open-source library has no prompt stop of its own: a run is a task, which is cancelled. `RunControl.request_drain()`
stops it between two steps. `RetryPolicy` on the model node gives it a back-off.
"""

import asyncio
import json
import uuid

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import RunControl
from langgraph.types import RetryPolicy

from bench.compare.contract import Call, End, Framework, Live, Note, Result, Say, Spans, Subject, Throttled, Used


def read(messages):
    notes = []
    for message in messages:
        if isinstance(message, ToolMessage):
            result = Result(message.tool_call_id, str(message.content), message.status)
            before = notes.pop().results if notes and notes[-1].role == "tool" else ()
            notes.append(Note("tool", results=(*before, result)))
        elif isinstance(message, AIMessage):
            notes.append(Note("assistant", str(message.content), tuple(call["id"] for call in message.tool_calls)))
        elif isinstance(message, HumanMessage):
            notes.append(Note("user", str(message.content)))
    return notes


def write(note):
    if note.role == "user":
        return HumanMessage(note.text)
    if note.role == "tool":
        return ToolMessage(note.results[0].text, tool_call_id=note.results[0].id)
    return AIMessage(note.text, tool_calls=[{"name": "nothing", "args": {}, "id": call} for call in note.calls])


class Scripted(BaseChatModel):
    script: object

    @property
    def _llm_type(self):
        return "scripted"

    def _generate(self, *arguments, **options):
        raise NotImplementedError

    def _reply(self, messages):
        return self.script.reply(answered=isinstance(messages[-1], ToolMessage), read=lambda: read(messages))

    async def _agenerate(self, messages, stop=None, run_manager=None, **options):
        words, calls = [], []
        async for chunk in self._reply(messages):
            if isinstance(chunk, Say):
                words.append(chunk.text)
            elif isinstance(chunk, Call):
                calls.append({"name": chunk.name, "args": chunk.arguments, "id": chunk.id})
        usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
        message = AIMessage("".join(words), tool_calls=calls, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _astream(self, messages, stop=None, run_manager=None, **options):
        calls = 0
        async for chunk in self._reply(messages):
            if isinstance(chunk, Say):
                message = AIMessageChunk(chunk.text)
            elif isinstance(chunk, Call):
                piece = {"name": chunk.name, "args": json.dumps(chunk.arguments), "id": chunk.id, "index": calls}
                message = AIMessageChunk("", tool_call_chunks=[{**piece, "type": "tool_call_chunk"}])
                calls += 1
            elif isinstance(chunk, Used):
                total = chunk.input + chunk.output
                usage = {"input_tokens": chunk.input, "output_tokens": chunk.output, "total_tokens": total}
                message = AIMessageChunk("", usage_metadata=usage)
            generation = ChatGenerationChunk(message=message)
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text if isinstance(chunk, Say) else "", chunk=generation)
            yield generation


class LangGraphAgent(Subject):
    def __init__(self, plan, handlers):
        self.plan = plan
        self._base = []
        self._config = {"configurable": {"thread_id": uuid.uuid4().hex}, "callbacks": handlers if plan.traced else []}
        tools = [_tool(ability.function, ability.name) for ability in plan.abilities]
        tools += [_tool(child.as_tool(), child.plan.name) for child in plan.children]
        model = Scripted(script=plan.script)

        async def ask(state):
            return {"messages": [await model.ainvoke(state["messages"])]}

        retry = RetryPolicy(initial_interval=60.0, retry_on=Throttled, jitter=False)
        builder = StateGraph(MessagesState).add_node("model", ask, retry_policy=retry).add_edge(START, "model")
        if tools:
            builder.add_node("tools", ToolNode(tools)).add_edge("tools", "model")
            builder.add_conditional_edges("model", tools_condition)
        self.graph, self.kept = builder.compile(), builder.compile(checkpointer=InMemorySaver())

    def as_tool(self):
        async def delegate(input: str) -> str:
            """Hand a task to the sub-agent."""
            return await self.stream(input)

        return delegate

    def remember(self, notes):
        self._base = list(map(write, notes))

    def _input(self, prompt):
        return {"messages": [*self._base, HumanMessage(prompt)]}

    async def call(self, prompt):
        return (await self.graph.ainvoke(self._input(prompt)))["messages"][-1].content

    async def stream(self, prompt):
        words = []
        async for chunk, _ in self.graph.astream(self._input(prompt), stream_mode="messages"):
            if isinstance(chunk, AIMessageChunk):
                words.append(chunk.content)
        return "".join(words)

    def start(self, prompt):
        control = RunControl()
        task = asyncio.create_task(self._end(prompt, control))
        return Live(task, task.cancel, control.request_drain)

    async def _end(self, prompt, control):
        how = "finished"
        asked = {"messages": [HumanMessage(prompt)]}
        try:
            async for _ in self.kept.astream(asked, self._config, stream_mode="messages", control=control):
                pass
        except (asyncio.CancelledError, GraphDrained):
            how = "stopped"
        messages = (await self.kept.aget_state(self._config)).values.get("messages", [])
        told = [message.usage_metadata for message in messages if getattr(message, "usage_metadata", None)]
        return End(
            how,
            lambda: read(messages),
            text=str(messages[-1].content) if messages else "",
            used=(sum(each["input_tokens"] for each in told), sum(each["output_tokens"] for each in told)),
        )


def _tool(function, name):
    if asyncio.iscoroutinefunction(function):
        return StructuredTool.from_function(coroutine=function, name=name)
    return StructuredTool.from_function(function, name=name)


class Counting(AsyncCallbackHandler):
    def __init__(self):
        self.seen = Spans()

    async def _begin(self, *arguments, run_id, **options):
        self.seen.begun.append(str(run_id))

    async def _end(self, *arguments, run_id, **options):
        self.seen.ended.append(str(run_id))

    on_chain_start = on_chat_model_start = on_tool_start = _begin
    on_chain_end = on_chain_error = on_llm_end = on_llm_error = on_tool_end = on_tool_error = _end


class Adapter(Framework):
    package = "langgraph"
    stopped_by = "`task.cancel()`"
    backs_off = True

    def __init__(self):
        self._counting = Counting()

    def make(self, plan):
        return LangGraphAgent(plan, [self._counting])

    def spans(self):
        return self._counting.seen
