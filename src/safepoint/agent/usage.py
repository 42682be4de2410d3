"""The tokens that a run used."""

from __future__ import annotations

from typing import Final

from safepoint._values import Value


class Usage(Value, frozen=True):
    """Tokens in and out, over all model calls. `estimated`: part of it is our estimate, as for a call that was cut.

    `cached_tokens` is the part of the input that the provider had in its cache, `reasoning_tokens` the part of the
    output that was thinking; both are included in the totals.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    model_calls: int = 0
    estimated: bool = False
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        if self is NO_USAGE or other is NO_USAGE:
            return other if self is NO_USAGE else self
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.model_calls + other.model_calls,
            self.estimated or other.estimated,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )


NO_USAGE: Final = Usage()
