"""Spans of frameworks that use OpenTelemetry, counted where the SDK hands them over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.compare.contract import Spans


@dataclass(slots=True)
class OpenTelemetrySpans(Spans):
    """Both lists grow as spans begin and end in the global tracer provider."""

    @staticmethod
    def install() -> Spans:
        """Make the SDK's provider the global one, and count. Once in a process."""
        from opentelemetry import trace
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

        spans = OpenTelemetrySpans()

        class Counting(SpanProcessor):
            def on_start(self, span: Any, parent_context: Any = None) -> None:
                spans.begun.append(span.name)

            def on_end(self, span: Any) -> None:
                spans.ended.append(span.name)

        provider = TracerProvider()
        provider.add_span_processor(Counting())
        trace.set_tracer_provider(provider)
        return spans
