"""A collector of traces: it receives OTLP over HTTP like a real one, and records the spans."""

import asyncio
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A received span; ids in hexadecimal."""

    service: str
    name: str
    kind: int
    trace: str
    id: str
    parent: str
    links: Sequence[tuple[str, str]]
    attributes: dict[str, Any]
    failed: bool
    events: int


class Collector:
    """Listens on a free port of 127.0.0.1, and delays every request by `hang_seconds`."""

    def __init__(self, *, hang_seconds: float = 0) -> None:
        self.spans: list[ReceivedSpan] = []
        self.requests = 0
        self._hang_seconds = hang_seconds
        self._runner: web.AppRunner | None = None
        self.endpoint = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/v1/traces", self._receive)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.endpoint = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def environment(self) -> dict[str, str]:
        """Return the settings with which a service sends its traces here soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200"}

    def find_spans(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def find_descendants(self, span: ReceivedSpan) -> list[ReceivedSpan]:
        children = [other for other in self.spans if other.parent == span.id]
        return children + [
            grandchild for child in children for grandchild in self.find_descendants(child)
        ]

    async def _receive(self, request: web.Request) -> web.Response:
        self.requests += 1
        await asyncio.sleep(self._hang_seconds)
        body = await request.read()
        if request.headers.get("Content-Encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        self.spans += _read_spans(trace_service_pb2.ExportTraceServiceRequest.FromString(body))
        answer = trace_service_pb2.ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")


def _read_spans(request: trace_service_pb2.ExportTraceServiceRequest) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            service=_read_attributes(resource.resource.attributes)["service.name"],
            name=span.name,
            kind=span.kind,
            trace=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
            attributes=_read_attributes(span.attributes),
            failed=span.status.code == 2,
            events=len(span.events),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _read_attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
