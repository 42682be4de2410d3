"""Runs as OpenTelemetry metrics, under the names of the conventions, and `safepoint.stop.duration`.

Imported only where OpenTelemetry is installed: see `telemetry`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opentelemetry.metrics import Histogram, Meter

from safepoint._core.endings import Cancellation
from safepoint.agent.usage import Usage

_SECONDS: Final = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
_STOPS: Final = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60]
_TOKENS: Final = [4**power for power in range(14)]
_LABELS: Final = (
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.response.model",
    "server.address",
    "server.port",
)
"""Attributes of a span that have few values."""


class Metrics:
    """The instruments of one meter."""

    def __init__(self, meter: Meter) -> None:
        self._duration = _seconds(meter, "gen_ai.client.operation.duration", "How long a model call took.", _SECONDS)
        self._first = _seconds(
            meter, "gen_ai.client.operation.time_to_first_chunk", "From a request to its first words.", _SECONDS
        )
        self._stop = _seconds(meter, "safepoint.stop.duration", "From a request to stop to the stop.", _STOPS)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage",
            unit="{token}",
            description="Tokens of a model call, as its provider counted them.",
            explicit_bucket_boundaries_advisory=_TOKENS,
        )

    def model_call_ended(
        self, about: Mapping[str, object], seconds: float, usage: Usage, error: BaseException | None
    ) -> None:
        labels = _labels(about)
        failed = {"error.type": type(error).__qualname__} if error is not None else {}
        self._duration.record(max(seconds, 0.0), {**labels, **failed})
        if usage.model_calls and not usage.estimated:
            self._tokens.record(usage.input_tokens, {**labels, "gen_ai.token.type": "input"})
            self._tokens.record(usage.output_tokens, {**labels, "gen_ai.token.type": "output"})

    def first_words(self, about: Mapping[str, object], seconds: float) -> None:
        self._first.record(max(seconds, 0.0), _labels(about))

    def stopped(self, cancellation: Cancellation) -> None:
        seconds = cancellation.stopped_at - cancellation.asked_at
        labels = {"safepoint.cancel.level": cancellation.level.name.lower()}
        self._stop.record(max(seconds, 0.0), {**labels, "safepoint.cancel.source": str(cancellation.reason.source)})


def _seconds(meter: Meter, name: str, description: str, buckets: list[float]) -> Histogram:
    return meter.create_histogram(name, unit="s", description=description, explicit_bucket_boundaries_advisory=buckets)


def _labels(about: Mapping[str, object]) -> dict[str, str | int]:
    return {name: value for name in _LABELS if isinstance(value := about.get(name), str | int)}
