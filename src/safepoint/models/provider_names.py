"""Who answers at an address, in the words of OpenTelemetry's conventions: what `gen_ai.provider.name` says."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

OPENAI: Final = "openai"
_DOMAINS: Final = {
    "openai.com": OPENAI,
    "openai.azure.com": "azure.ai.openai",
    "deepseek.com": "deepseek",
    "groq.com": "groq",
    "mistral.ai": "mistral_ai",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
}


def provider_at(base_url: str | None) -> str:
    """The provider's name in the conventions, or else the host's: they allow it, and nothing untrue is said."""
    if base_url is None:
        return OPENAI
    host = urlsplit(base_url).hostname or base_url
    return next((name for domain, name in _DOMAINS.items() if host == domain or host.endswith(f".{domain}")), host)
