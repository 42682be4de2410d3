"""Whose seal a thought carries. A provider takes back only what it has signed itself, and refuses a foreign signature.

A conversation may change providers between two steps: by `fallback`, by resuming on another agent. So the signature in
our history begins with the provider's name and with what was signed: `anthropic:thinking:…`. Converters send back their
own and leave out the rest.
"""

from __future__ import annotations

from safepoint.history.parts import Reasoning


def seal(provider: str, kind: str, signature: str) -> str:
    return f"{provider}:{kind}:{signature}"


def unseal(provider: str, thought: Reasoning) -> tuple[str, str] | None:
    """What was signed and the bare signature; None if this provider did not sign it."""
    whose, _, rest = (thought.signature or "").partition(":")
    kind, separator, signature = rest.partition(":")
    return (kind, signature) if whose == provider and separator and signature else None
