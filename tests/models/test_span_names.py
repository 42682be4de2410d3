"""Spans carry the names that providers and price tables know, not the strings that choose a model here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from genai_prices import Usage, calc_price
from opentelemetry.sdk.trace import ReadableSpan

from safepoint import Agent
from safepoint.agent.model import Model
from safepoint.models import AnthropicModel, BedrockModel, GeminiModel, LocalModel, OpenAIModel
from safepoint.testing import ScriptedModel, say
from tests.agent.test_telemetry import Traces

NOWHERE = "http://127.0.0.1:9"
"""Nothing listens there: the call fails, and its span has begun with the names all the same."""


def named(model: Model) -> tuple[str, object, object]:
    """The name of the model call's span, and the model and provider on it."""

    async def main() -> ReadableSpan:
        traces = Traces()
        async with traces.start(Agent("a", model=model, retries=0)) as run:
            await run.wait()
        (span,) = [span for span in traces.ended if span.name.startswith("chat ")]
        return span

    span = asyncio.run(main())
    about = span.attributes or {}
    return span.name, about.get("gen_ai.request.model"), about.get("gen_ai.provider.name")


BEDROCK = "anthropic.claude-sonnet-4-5-20250929-v1:0"
PRICED: dict[tuple[str, str], Callable[[], Model]] = {
    ("gpt-5", "openai"): lambda: OpenAIModel("gpt-5"),
    ("claude-sonnet-4-5", "anthropic"): lambda: AnthropicModel("claude-sonnet-4-5", api_key="k", base_url=NOWHERE),
    (BEDROCK, "aws.bedrock"): lambda: BedrockModel(BEDROCK, api_key="k", base_url=NOWHERE, region="eu-north-1"),
    ("gemini-2.5-pro", "gcp.gemini"): lambda: GeminiModel("gemini-2.5-pro", api_key="k", base_url=NOWHERE),
}


@pytest.mark.parametrize(("model", "provider"), PRICED)
def test_a_price_table_knows_the_names_on_the_span(model: str, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert named(PRICED[model, provider]()) == (f"chat {model}", model, provider)
    assert calc_price(Usage(input_tokens=1000, output_tokens=10), model, provider_id=provider).total_price > 0


def test_a_server_at_an_address_is_named_for_the_provider_or_its_host() -> None:
    assert named(OpenAIModel("llama", base_url=f"{NOWHERE}/v1")) == ("chat llama", "llama", "127.0.0.1")
    assert named(OpenAIModel("llama", base_url=f"{NOWHERE}/v1", name="mine")) == ("chat llama", "llama", "127.0.0.1")
    known = {
        "https://api.deepseek.com": "deepseek",
        "https://api.groq.com/openai/v1": "groq",
        "https://api.mistral.ai/v1": "mistral_ai",
        "https://api.x.ai/v1": "x_ai",
        "https://mine.openai.azure.com/openai/v1": "azure.ai.openai",
        "https://api.openai.com/v1": "openai",
        "https://openrouter.ai/api/v1": "openrouter",
        "https://llm.example.org/v1": "llm.example.org",
    }
    assert {address: OpenAIModel("m", base_url=address).provider_name for address in known} == known
    assert calc_price(Usage(input_tokens=1000), "deepseek-chat", provider_id="deepseek").total_price > 0


def test_models_on_this_machine_have_their_own_names() -> None:
    small, other = LocalModel(), LocalModel(weights="/somewhere/Qwen3-4B-Q4_K_M.gguf")
    assert (small.model_name, small.provider_name) == ("SmolLM2-135M-Instruct.Q4_1", "llama.cpp")
    assert (other.model_name, other.provider_name) == ("Qwen3-4B-Q4_K_M", "llama.cpp")
    ollama = OpenAIModel("llama3.2", provider="ollama")
    assert (ollama.model_name, ollama.provider_name) == ("llama3.2", "ollama")


def test_a_model_that_says_nothing_more_has_its_name_and_no_provider() -> None:
    assert named(ScriptedModel(say("hi"), name="my:model")) == ("chat my:model", "my:model", None)
