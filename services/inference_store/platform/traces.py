"""Traces, configured by OpenTelemetry's own environment variables; off, at no cost, without them.

They are on if OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is set, or
OTEL_TRACES_EXPORTER is `otlp`, and OTEL_SDK_DISABLED is not `true`. Spans go over OTLP/HTTP from a
thread with a bounded queue: if the collector is slow or unavailable they are dropped, and nothing
waits for them.

Attributes hold our own names and counts: no payload, no id, no value of a filter, and of an error
only its class.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import Histogram

# Logs one line instead of many equal ones: aiokafka logs an unavailable broker 50 times a
# second.

_EVERY_SECONDS = 30.0


class LogThrottle(logging.Filter):
    """Passes each kind of message of a library once in 30 s."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record passes. The kinds are the library's own, so they are few."""
        now, kind = time.monotonic(), str(record.msg)
        if now - self._logged_at.get(kind, -_EVERY_SECONDS) < _EVERY_SECONDS:
            return False
        self._logged_at[kind] = now
        return True


def throttle_logs(library: str) -> None:
    """Add the filter to every logger of a library: filters are not inherited."""
    for name in list(logging.root.manager.loggerDict):
        if name == library or name.startswith(f"{library}."):
            logger = logging.getLogger(name)
            if not any(isinstance(filter, LogThrottle) for filter in logger.filters):
                logger.addFilter(LogThrottle())


if TYPE_CHECKING:  # imported when traces are on
    from opentelemetry.sdk.trace import TracerProvider


Attributes: TypeAlias = Mapping[str, str | int | bool]
_STOP_SECONDS = 3.0
_NOTHING = nullcontext(INVALID_SPAN)
_W3C = TraceContextTextMapPropagator()
_log = structlog.get_logger()


class _Tracing:
    """The process's one tracer, if traces are on."""

    provider: "TracerProvider | None" = None
    tracer: trace.Tracer | None = None


def is_requested(environment: Mapping[str, str]) -> bool:
    """Return whether the environment requests traces."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter:
        return exporter == "otlp"
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return any(environment.get(name, "").strip() for name in names)


def configure(service: str) -> None:
    """Begin to trace this process, if the environment requests it."""
    if not is_requested(os.environ):
        return
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = next((os.environ[name] for name in names if os.environ.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        # A service must not fail only because it cannot be traced.
        _log.warning("no traces: only http/protobuf is spoken", action="traces", asked=protocol)
        return
    _Tracing.provider = _provider(service)
    _Tracing.tracer = _Tracing.provider.get_tracer("inference_store")


def _provider(service: str) -> "TracerProvider":
    # Half a second of imports that only a traced process pays.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    resource = Resource.create()  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": f"inference-store-{service}"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    throttle_logs("opentelemetry")
    return provider


def stop() -> None:
    """Send the remaining spans, for at most three seconds."""
    provider, _Tracing.provider, _Tracing.tracer = _Tracing.provider, None, None
    if provider is not None:
        # A daemon: an exporter that hangs must not keep the process.
        thread = threading.Thread(target=provider.shutdown, daemon=True)
        thread.start()
        thread.join(_STOP_SECONDS)


def is_on() -> bool:
    """Return whether this process traces."""
    return _Tracing.tracer is not None


def begin(
    name: str,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Attributes | None = None,
    *,
    headers: Mapping[str, str] | None = None,
) -> Span:
    """Return a span that its caller ends; its parent is in the W3C `headers`, else it is the
    current one."""
    tracer = _Tracing.tracer
    if tracer is None:
        return INVALID_SPAN
    parent: Context | None = None if headers is None else _W3C.extract(headers, Context())
    return tracer.start_span(name, parent, kind, attributes)


@contextmanager
def within(span: Span) -> Iterator[Span]:
    """Make the span the parent of spans inside.

    Notes an error's class, not its text.
    """
    if _Tracing.tracer is None:
        yield span
        return
    with trace.use_span(span, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except Exception as error:  # whatever it is: note it, and raise it
            failed(span, type(error).__name__)
            raise


def span(
    name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None
) -> AbstractContextManager[Span]:
    """Return a span around the block, only below another one: idle polling makes no traces."""
    if _Tracing.tracer is None or not trace.get_current_span().is_recording():
        return _NOTHING
    return ended(begin(name, kind, attributes))


@contextmanager
def ended(span: Span) -> Iterator[Span]:
    """Act as `within`, and end the span."""
    try:
        with within(span):
            yield span
    finally:
        span.end()


def failed(span: Span, kind: str) -> None:
    """Mark the span as failed with this kind of error."""
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))


def link(span: Span, traceparents: Iterable[str]) -> None:
    """Link a span to the contexts of events: at most OTEL_SPAN_LINK_COUNT_LIMIT, which is 128."""
    if not span.is_recording():
        return
    for traceparent in dict.fromkeys(traceparents):
        linked = trace.get_current_span(_W3C.extract({"traceparent": traceparent}, Context()))
        if linked.get_span_context().trace_flags.sampled:
            span.add_link(linked.get_span_context())


def ids() -> dict[str, str]:
    """Return the current span's ids, as logs name them; empty if there is none."""
    if _Tracing.tracer is None:
        return {}
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
    }


@contextmanager
def stage(histogram: Histogram, name: str) -> Iterator[None]:
    """Time the block under the histogram's label `name`, even if it fails."""
    began = time.perf_counter()
    try:
        with span(name):
            yield
    finally:
        histogram.labels(name).observe(time.perf_counter() - began)
