"""Each provider's stream, cut at every byte (a sample here; every single one in `make proof`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from safepoint.agent.model import Model, ModelRequest
from safepoint.models import anthropic_wire, gemini_wire, openai_wire, responses_wire
from safepoint.models.anthropic import AnthropicModel, BedrockModel
from safepoint.models.gemini import GeminiModel
from safepoint.models.openai import OpenAIModel
from safepoint.models.responses import OpenAIResponsesModel
from tests.models import anthropic_stream, gemini_stream, openai_stream, responses_stream
from tests.models.every_byte import Wire, cut_everywhere
from tests.models.raw_server import stream


@dataclass(frozen=True)
class Provider:
    model: Callable[[str], Model]
    answer: Sequence[object]
    calls: Sequence[object]
    payload: Callable[[str, ModelRequest], Mapping[str, Any]]  # Any: JSON
    check: Callable[[Mapping[str, Any]], None]

    def wire(self, kind: str, encode: Callable[[Sequence[object]], bytes]) -> Wire:
        def check(request: ModelRequest) -> None:
            self.check(self.payload("gemini-3", request))

        if kind == "words":
            return Wire(self.model, encode(self.answer), "Once upon a time in Łódź.", 0, check)
        return Wire(self.model, encode(self.calls), "Looking.", 2, check)


PROVIDERS = {
    "openai": Provider(
        lambda address: OpenAIModel("m", base_url=f"{address}/v1"),
        openai_stream.ANSWER,
        openai_stream.CALLS,
        openai_wire.to_payload,
        openai_wire.check_payload,
    ),
    "responses": Provider(
        lambda address: OpenAIResponsesModel("m", base_url=f"{address}/v1"),
        responses_stream.ANSWER,
        responses_stream.CALLS,
        responses_wire.to_payload,
        responses_wire.check_payload,
    ),
    "anthropic": Provider(
        lambda address: AnthropicModel("m", api_key="k", base_url=address),
        anthropic_stream.ANSWER,
        anthropic_stream.CALLS,
        anthropic_wire.to_payload,
        anthropic_wire.check_payload,
    ),
    "gemini": Provider(
        lambda address: GeminiModel("gemini-3", api_key="k", base_url=address),
        gemini_stream.ANSWER,
        gemini_stream.CALLS,
        gemini_wire.to_payload,
        gemini_wire.check_payload,
    ),
}
BEDROCK = Provider(
    lambda address: BedrockModel("m", api_key="k", base_url=address, region="eu-north-1"),
    anthropic_stream.ANSWER,
    anthropic_stream.CALLS,
    anthropic_wire.to_payload,
    anthropic_wire.check_payload,
)


def _chunks(events: Sequence[object]) -> bytes:
    return stream(events, chunked=True)


def _to_the_end(events: Sequence[object]) -> bytes:
    return stream(events, chunked=False)


def _frames(events: Any) -> bytes:  # Any: of the one kind that there is
    return anthropic_stream.bedrock_stream(events)


WIRES = {
    f"{name}, {kind}, {how}": provider.wire(kind, encode)
    for name, provider in PROVIDERS.items()
    for kind in ("words", "calls")
    for how, encode in (("chunks", _chunks), ("to the end", _to_the_end))
} | {f"bedrock, {kind}, frames": BEDROCK.wire(kind, _frames) for kind in ("words", "calls")}


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_that_is_cut_anywhere_leaves_a_valid_conversation(wire: str) -> None:
    whole, cut = asyncio.run(cut_everywhere(WIRES[wire], 151))
    assert whole >= 1
    assert cut >= 5


@pytest.mark.proof
@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_that_is_cut_at_every_byte_leaves_a_valid_conversation(wire: str) -> None:
    whole, cut = asyncio.run(cut_everywhere(WIRES[wire], 1))
    print(f"\n{wire}: {whole + cut} places, {whole} replies whole, {cut} cut")
    assert cut >= 500
