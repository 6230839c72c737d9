"""Sends spans of jobs, parts and batches to an OpenTelemetry collector, if an environment variable names one.

The SDK and its OTLP exporter are in the extra `otel`. They are imported only if OTEL_EXPORTER_OTLP_ENDPOINT or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set. They read these and all other OTEL_* variables themselves.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from ortdeploy.events import log
from ortdeploy.shell import pip_install

OnBatch = Callable[[float, float, int], None]
"""Takes begin and end of a batch, in seconds of perf_counter, and its number of rows."""

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_DISABLED = "OTEL_SDK_DISABLED"
_NAME = "OTEL_SERVICE_NAME"
_FLUSH_MS = 5000
"""Milliseconds that a job waits at most for a collector when it ends."""


class JobTrace:
    """The span of one job, with the spans of its parts and batches."""

    def __init__(self, tracer: Any, attributes: Mapping[str, Any]) -> None:
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415  only where traces are sent

        self._tracer = tracer
        self._span = tracer.start_span("job", attributes=_told(attributes))
        self._below = set_span_in_context(self._span)
        self._offset = time.time_ns() - _ns(time.perf_counter())

    def part(self, began: float, **attributes: Any) -> None:
        """Record a part that is committed now; `began` is of perf_counter, in seconds."""
        self._note("part", began, time.perf_counter(), attributes)

    def batch(self, began: float, ended: float, rows: int) -> None:
        """Record a batch that ran; `began` and `ended` are of perf_counter, in seconds. Thread-safe."""
        self._note("batch", began, ended, {"rows": rows})

    def end(self, *, reason: str | None, **attributes: Any) -> None:
        """End the span; `reason` is why the job failed, or None."""
        from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415

        self._span.set_attributes(_told(attributes))
        if reason is not None:
            self._span.set_status(Status(StatusCode.ERROR, reason))
        self._span.end()

    def _note(self, name: str, began: float, ended: float, attributes: Mapping[str, Any]) -> None:
        span = self._tracer.start_span(
            name, context=self._below, attributes=_told(attributes), start_time=self._offset + _ns(began)
        )
        span.end(end_time=self._offset + _ns(ended))


@contextmanager
def traced_job(**attributes: Any) -> Iterator[JobTrace | None]:
    """Yield the trace of a job; None if no collector is named or the SDK is missing."""
    provider = tracer_provider() if is_on() else None
    if provider is None:
        yield None
        return
    try:
        yield JobTrace(provider.get_tracer("ortdeploy"), attributes)
    finally:
        provider.force_flush(_FLUSH_MS)


def is_on() -> bool:
    """Return whether the environment names a collector."""
    return any(os.environ.get(name) for name in _ENDPOINTS) and os.environ.get(_DISABLED, "").lower() != "true"


@cache
def tracer_provider() -> Any:
    """Return the provider of tracers; None, with a warning in the log, if the packages are not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        log.warning("traces.unsent", reason=f"{error}; {pip_install('ortdeploy[otel]')}")
        return None
    own = {} if os.environ.get(_NAME) else {"service.name": "ortdeploy"}
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _told(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that have a value, with `ortdeploy.` before their names."""
    return {f"ortdeploy.{name}": value for name, value in attributes.items() if value is not None}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
