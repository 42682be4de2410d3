"""Each provider's stream, cut at every byte (a sample here; every single one in `make proof`)."""

from __future__ import annotations

import asyncio

import pytest

from safepoint.agent.model import ModelRequest
from safepoint.models import openai_wire
from safepoint.models.openai import OpenAIModel
from tests.models.every_byte import Wire, cut_everywhere
from tests.models.openai_stream import ANSWER, CALLS
from tests.models.raw_server import stream


def _openai(address: str) -> OpenAIModel:
    return OpenAIModel("m", base_url=f"{address}/v1")


def _check_openai(request: ModelRequest) -> None:
    openai_wire.check_payload(openai_wire.to_payload("m", request))


WIRES = {
    f"openai, {kind}, {'chunks' if chunked else 'to the end'}": Wire(
        _openai, stream(events, chunked=chunked), text, calls, _check_openai
    )
    for kind, events, text, calls in (
        ("words", ANSWER, "Once upon a time in Łódź.", 0),
        ("calls", CALLS, "Looking.", 2),
    )
    for chunked in (True, False)
}


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_that_is_cut_anywhere_leaves_a_valid_conversation(wire: str) -> None:
    whole, cut = asyncio.run(cut_everywhere(WIRES[wire], 37))
    assert whole >= 1
    assert cut >= 20


@pytest.mark.proof
@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_that_is_cut_at_every_byte_leaves_a_valid_conversation(wire: str) -> None:
    whole, cut = asyncio.run(cut_everywhere(WIRES[wire], 1))
    print(f"\n{wire}: {whole + cut} places, {whole} replies whole, {cut} cut")
    assert cut >= 500
