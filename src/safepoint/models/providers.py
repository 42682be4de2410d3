"""Providers that speak OpenAI's chat completions, by the name that chooses them.

One row says everything that differs: where the provider answers, which variable holds its key, and where it departs
from OpenAI's rules. To add a provider, add a row; the table in the guide is made from this one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from safepoint.errors import ModelNotReady
from safepoint.models.quirks import OPENAI_QUIRKS, Quirks

PLAIN: Final = Quirks()
LLAMACPP: Final = Quirks(tool_choices=("auto", "none", "required"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One row. `base_url` is the address, `url_variable` the variable that may name another one.

    `key` is the variable with the key; a server on this machine may do without one (`key_optional`). `otel` is the name
    in OpenTelemetry's conventions. `small` is a model to begin with; empty for a provider whose key is often set for
    other purposes, and for a server whose models only its owner knows.
    """

    name: str
    title: str
    base_url: str
    key: str
    otel: str
    url_variable: str = ""
    key_optional: bool = False
    small: str = ""
    quirks: Quirks = PLAIN
    address: Callable[[str], str] = str

    def find_address(self, environment: Mapping[str, str] = os.environ) -> str:
        address = self.address(environment.get(self.url_variable, "").strip() or self.base_url)
        if not address:
            raise ModelNotReady(f"{self.name}:NAME needs an address: type `export {self.url_variable}=https://…`")
        return address

    def find_key(self, choice: str, environment: Mapping[str, str] = os.environ) -> str:
        """The key from its variable; `ModelNotReady` names the variable if it is missing."""
        key = environment.get(self.key, "").strip() if self.key else ""
        if key or self.key_optional:
            return key or "none"
        raise ModelNotReady(f"{choice} needs a key: type `export {self.key}=…`, or write api_key=…")


def ollama_address(host: str) -> str:
    """The address of Ollama's compatible interface, from the variable that Ollama itself reads."""
    scheme, separator, rest = host.strip().rpartition("://")
    rest = rest.rstrip("/").replace("0.0.0.0", "127.0.0.1", 1)
    if ":" not in rest and not separator:
        rest += ":11434"
    return f"{scheme or 'http'}://{rest}/v1"


def azure_address(endpoint: str) -> str:
    """The v1 address of a resource of Azure OpenAI, which needs no version of the API."""
    root = endpoint.strip().rstrip("/").removesuffix("/openai/v1").removesuffix("/openai")
    return f"{root}/openai/v1" if root else ""


_ROWS: Final = (
    Provider(
        name="azure",
        title="Azure OpenAI",
        base_url="",
        url_variable="AZURE_OPENAI_ENDPOINT",
        key="AZURE_OPENAI_API_KEY",
        otel="azure.ai.openai",
        quirks=OPENAI_QUIRKS,
        address=azure_address,
    ),
    Provider(
        name="groq",
        title="Groq",
        base_url="https://api.groq.com/openai/v1",
        key="GROQ_API_KEY",
        otel="groq",
        small="openai/gpt-oss-20b",
    ),
    Provider(
        name="mistral",
        title="Mistral",
        base_url="https://api.mistral.ai/v1",
        key="MISTRAL_API_KEY",
        otel="mistral_ai",
        small="mistral-small-latest",
        # It refuses unknown options with 422, ids that are not nine letters or digits, and a user message that follows
        # a result: "Unexpected role 'user' after role 'tool'". A stopped or steered run has exactly that.
        quirks=Quirks(usage_option=False, short_ids=True, user_after_tool=False),
    ),
    Provider(
        name="deepseek",
        title="DeepSeek",
        base_url="https://api.deepseek.com/v1",
        key="DEEPSEEK_API_KEY",
        otel="deepseek",
        small="deepseek-chat",
    ),
    Provider(
        name="openrouter",
        title="OpenRouter",
        base_url="https://openrouter.ai/api/v1",
        key="OPENROUTER_API_KEY",
        otel="openrouter",
        small="openrouter/auto",
    ),
    Provider(
        name="together",
        title="Together AI",
        base_url="https://api.together.xyz/v1",
        key="TOGETHER_API_KEY",
        otel="together",
        small="openai/gpt-oss-120b",
    ),
    Provider(
        name="fireworks",
        title="Fireworks AI",
        base_url="https://api.fireworks.ai/inference/v1",
        key="FIREWORKS_API_KEY",
        otel="fireworks",
        small="accounts/fireworks/models/gpt-oss-20b",
    ),
    Provider(
        name="xai",
        title="xAI",
        base_url="https://api.x.ai/v1",
        key="XAI_API_KEY",
        otel="x_ai",
        small="grok-4-1-fast-non-reasoning",
    ),
    Provider(
        name="cerebras",
        title="Cerebras",
        base_url="https://api.cerebras.ai/v1",
        key="CEREBRAS_API_KEY",
        otel="cerebras",
        small="gpt-oss-120b",
        quirks=OPENAI_QUIRKS,
    ),
    Provider(
        name="nvidia",
        title="NVIDIA",
        base_url="https://integrate.api.nvidia.com/v1",
        key="NVIDIA_API_KEY",
        otel="nvidia",
        small="openai/gpt-oss-20b",
    ),
    Provider(
        name="huggingface",
        title="Hugging Face inference providers",
        base_url="https://router.huggingface.co/v1",
        key="HF_TOKEN",
        otel="huggingface",
    ),
    Provider(
        name="github",
        title="GitHub Models",
        base_url="https://models.github.ai/inference",
        key="GITHUB_TOKEN",
        otel="github",
    ),
    Provider(
        name="moonshotai",
        title="Moonshot AI",
        base_url="https://api.moonshot.ai/v1",
        key="MOONSHOT_API_KEY",
        otel="moonshot_ai",
        small="kimi-k2.6",
        # With thinking on, which is the default, a forced call is refused: "incompatible with thinking enabled".
        quirks=Quirks(tool_choices=("auto", "none")),
    ),
    Provider(
        name="zai",
        title="Z.ai",
        base_url="https://api.z.ai/api/paas/v4",
        key="ZAI_API_KEY",
        otel="zai",
        small="glm-5.3-flash",
        quirks=Quirks(tool_choices=("auto",)),
    ),
    Provider(
        name="qwen",
        title="Alibaba Cloud Model Studio",
        base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        url_variable="DASHSCOPE_BASE_URL",
        key="DASHSCOPE_API_KEY",
        otel="alibaba_cloud",
        small="qwen-plus",
        quirks=Quirks(tool_choices=("auto", "none", "name")),
    ),
    Provider(
        name="ollama",
        title="an Ollama server",
        base_url="127.0.0.1:11434",
        url_variable="OLLAMA_HOST",
        key="OLLAMA_API_KEY",
        otel="ollama",
        key_optional=True,
        # It takes `tool_choice` and does not look at it (ollama/ollama#17921).
        quirks=Quirks(tool_choices=()),
        address=ollama_address,
    ),
    Provider(
        name="lmstudio",
        title="LM Studio's server",
        base_url="http://127.0.0.1:1234/v1",
        url_variable="LMSTUDIO_BASE_URL",
        key="LMSTUDIO_API_KEY",
        otel="lmstudio",
        key_optional=True,
        quirks=LLAMACPP,
    ),
    Provider(
        name="llamacpp",
        title="llama.cpp's server",
        base_url="http://127.0.0.1:8080/v1",
        url_variable="LLAMACPP_BASE_URL",
        key="LLAMA_API_KEY",
        otel="llama.cpp",
        key_optional=True,
        quirks=LLAMACPP,
    ),
    Provider(
        name="vllm",
        title="a vLLM server",
        base_url="http://127.0.0.1:8000/v1",
        url_variable="VLLM_BASE_URL",
        key="VLLM_API_KEY",
        otel="vllm",
        key_optional=True,
    ),
)
COMPATIBLE: Final[Mapping[str, Provider]] = {row.name: row for row in _ROWS}


# Who answers at an address, in the words of OpenTelemetry's conventions: what `gen_ai.provider.name` says.
_DOMAINS: Final = {
    "api.openai.com": "openai",
    "openai.azure.com": "azure.ai.openai",
    "perplexity.ai": "perplexity",
    **{host: row.otel for row in _ROWS if (host := urlsplit(row.base_url).hostname) and not row.key_optional},
}


def provider_at(base_url: str | None) -> str:
    """The provider's name in the conventions; otherwise the host's name, which they allow."""
    if base_url is None:
        return "openai"
    host = urlsplit(base_url).hostname or base_url
    return next((name for domain, name in _DOMAINS.items() if host == domain or host.endswith(f".{domain}")), host)
