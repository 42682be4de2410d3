"""Every provider's model keeps the rules for models, over real sockets: cancelled at each of its waits, too."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from safepoint.agent.model import Model
from safepoint.models import AnthropicModel, GeminiModel, OpenAIModel, OpenAIResponsesModel
from safepoint.testing import ModelSetup, Situation, check_model
from tests.models import anthropic_stream, gemini_stream, openai_stream, responses_stream
from tests.models.anthropic_stream import delta, end, start, stop
from tests.models.openai_stream import DONE, completion, piece
from tests.models.raw_server import RawServer, Say, answer, fall_silent, raw_server, reset, say, stream


@dataclass(frozen=True)
class Provider:
    model: Callable[[RawServer], Model]
    answer: Sequence[object]
    call: Sequence[object]
    words: int
    """How many events of the answer have words, but not its end."""

    def act(self, situation: Situation) -> Say:
        some = stream(self.answer[: self.words], chunked=True).removesuffix(b"0\r\n\r\n")
        match situation:
            case Situation.ANSWER:
                return say(stream(self.answer, chunked=True))
            case Situation.TOOL_CALL:
                return say(stream(self.call, chunked=True))
            case Situation.SILENT:
                return fall_silent()
            case Situation.STALLS:
                return fall_silent(some)
            case Situation.BUSY:
                return say(answer(503, {"error": {"message": "busy"}}))
            case Situation.BREAKS:
                return reset(some)
            case Situation.ENDS_EARLY:
                return say(stream(self.answer[: self.words], chunked=True))


PROVIDERS = {
    "openai": Provider(
        lambda server: OpenAIModel("m", base_url=f"{server.address}/v1"),
        openai_stream.ANSWER,
        [piece(0, '{"place": ', id="a", name="look"), piece(0, '"attic"}'), completion({}, "tool_calls"), DONE],
        4,
    ),
    "responses": Provider(
        lambda server: OpenAIResponsesModel("m", base_url=f"{server.address}/v1"),
        responses_stream.ANSWER,
        responses_stream.numbered(
            *responses_stream.BEGIN, *responses_stream.call(0, "a", '{"place": ', '"attic"}'), responses_stream.END
        ),
        9,
    ),
    "anthropic": Provider(
        lambda server: AnthropicModel("m", api_key="k", base_url=server.address),
        anthropic_stream.ANSWER,
        [
            anthropic_stream.BEGIN,
            start(0, type="tool_use", id="a", name="look", input={}),
            delta(0, "input_json_delta", partial_json='{"place": "attic"}'),
            stop(0),
            *end("tool_use"),
        ],
        -3,
    ),
    "gemini": Provider(
        lambda server: GeminiModel("gemini-3", api_key="k", base_url=server.address),
        gemini_stream.ANSWER,
        [gemini_stream.response(gemini_stream.call("attic", "fc_1", thoughtSignature="AAEC"), finish="STOP")],
        3,
    ),
}


# They share the part that waits, so one of them is enough for every day.
EACH = [name if name == "openai" else pytest.param(name, marks=pytest.mark.proof) for name in PROVIDERS]


@pytest.mark.parametrize("name", EACH)
def test_a_providers_model_keeps_the_rules_for_models(name: str) -> None:
    provider = PROVIDERS[name]

    @asynccontextmanager
    async def make(situation: Situation) -> AsyncGenerator[ModelSetup]:
        async with raw_server(provider.act(situation)) as server:
            yield ModelSetup(provider.model(server), lambda: server.open)

    check_model(make, virtual=False)
