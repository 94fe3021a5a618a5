"""Metrics and traces of a call, whatever becomes of it."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN

from inference_store.platform import traces
from inference_store.platform.metrics import SHOWN
from inference_store.proxy.exchange import Exchange
from inference_store.proxy.observed_call import Describe, ObservedCall, Outcome
from inference_store.proxy.protocols import PROTOCOLS, Call
from inference_store.proxy.rest.forwarded_call import CALLER_GONE
from inference_store.proxy.rest.observation import classify, describe

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALL = Call(PROTOCOLS["v2"], "infer", "a-model")


def read_sample(name: str, **labels: str) -> float:
    return SHOWN["proxy"].get_sample_value(f"inference_store_proxy_{name}", labels) or 0.0


def nothing() -> tuple[traces.Attributes, Mapping[str, str]]:
    raise AssertionError("asked though it is not traced")


def called() -> tuple[traces.Attributes, Mapping[str, str]]:
    return {"rpc.system": "grpc"}, {"traceparent": f"00-{TRACE}-{PARENT}-01"}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans that are exported while traces are on."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(traces._Tracing, "tracer", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


def test_it_is_under_way_and_then_has_a_time() -> None:
    labels = {"protocol": "v2", "upstream": "one", "outcome": "ok"}
    under_way = read_sample("calls_in_progress", transport="rest")
    before = read_sample("call_seconds_count", **labels)
    watched = ObservedCall("rest", CALL, "one", nothing)
    assert read_sample("calls_in_progress", transport="rest") == under_way + 1
    assert watched.span is INVALID_SPAN
    watched.end("ok", 200)
    assert read_sample("calls_in_progress", transport="rest") == under_way
    assert read_sample("call_seconds_count", **labels) == before + 1


def find_ended_span(
    spans: InMemorySpanExporter, outcome: Outcome, status: int | None
) -> ReadableSpan:
    said_: Describe = called
    ObservedCall("grpc", CALL, "one", said_).end(outcome, status)
    (span,) = spans.get_finished_spans()
    return span


def test_a_span_continues_the_callers_trace(spans: InMemorySpanExporter) -> None:
    span = find_ended_span(spans, "ok", 0)
    assert span.parent is not None
    assert span.context is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert (span.name, span.kind.name) == ("v2 infer", "SERVER")
    assert span.status.is_unset
    assert dict(span.attributes or {}) == {
        "rpc.system": "grpc",
        "rpc.grpc.status_code": 0,
        "inference_store.protocol": "v2",
        "inference_store.upstream": "one",
        "inference_store.outcome": "ok",
    }


@pytest.mark.parametrize(("status", "kind"), [(14, "14"), (None, "no_answer")])
def test_a_failure_is_marked(spans: InMemorySpanExporter, status: int | None, kind: str) -> None:
    span = find_ended_span(spans, "failed", status)
    assert not span.status.is_ok
    assert not span.status.is_unset
    assert (span.attributes or {})["error.type"] == kind


def test_calls_that_only_pass_are_timed_without_a_span(spans: InMemorySpanExporter) -> None:
    labels = {"protocol": "none", "upstream": "one", "outcome": "refused"}
    before = read_sample("call_seconds_count", **labels)
    ObservedCall("rest", None, "one", nothing).end("refused", 404)
    assert read_sample("call_seconds_count", **labels) == before + 1
    assert not spans.get_finished_spans()


def test_each_end_has_its_outcome() -> None:
    for outcome, status, error, is_forwarded in (
        ("ok", 200, None, True),
        ("ok", 304, None, True),
        ("refused", 404, None, True),
        ("failed", 503, None, True),
        ("failed", None, "the upstream one did not answer in time", True),
        ("failed", 200, "the upstream one cannot be reached: it broke off", True),
        ("failed", None, None, True),
        ("refused", None, "the request's target is no path", False),
        ("gone", None, CALLER_GONE, True),
        ("gone", 200, CALLER_GONE, True),
    ):
        exchange = Exchange(transport="rest", method="POST", path="/", received_at=NOW)
        exchange.forwarded_at = NOW if is_forwarded else None
        exchange.http_status, exchange.error = status, error
        assert classify(exchange) == outcome


def test_a_span_holds_only_method_and_context_of_a_request() -> None:
    scope = {"method": "BREW", "scheme": "http", "http_version": "1.1", "path": "/secret"}
    headers = [(b"traceparent", b"00-1"), (b"authorization", b"Bearer x")]
    headers += [(b"tracestate", b"a\xff")]
    attributes, context = describe(scope, headers)
    assert attributes["http.request.method"] == "_OTHER"
    assert "secret" not in repr(attributes)
    assert context == {"traceparent": "00-1", "tracestate": "a\xff"}
