"""Exchanges as tests write them, and what the ingester would read of the answers."""

from datetime import UTC, datetime
from typing import Any

import orjson

from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import Prediction, read_predictions, task_type_of
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols import PROTOCOLS, Call, Model, Reading, recognised


def body(raw: bytes, *, whole: bool = True, size: int | None = None) -> Body:
    return Body(parts=[raw] if raw else [], size=len(raw) if size is None else size, whole=whole)


def exchange(
    path: str,
    request: Any,
    response: Any = None,
    *,
    status: int | None = 200,
    sent: Headers = (("content-type", "application/json"),),
    answered: Headers = (("content-type", "application/json"),),
    method: str = "POST",
) -> Exchange:
    """What is not bytes is written as JSON; no response: no answer came."""
    return Exchange(
        transport="rest",
        method=method,
        path=path,
        request_headers=sent,
        request=body(_raw(request)),
        response_headers=answered,
        response=body(_raw(response)),
        http_status=status,
        received_at=datetime.now(UTC),
    )


def read(went: Exchange, **model: Any) -> Reading:
    """Recognised among all protocols but the raw ones, and read."""
    names = [name for name in PROTOCOLS if not name.startswith("raw")]
    call = recognised(names, went.transport, went.method, went.path)
    assert call is not None, f"{went.path} is not recognised"
    return call.protocol.read(went, call, Model(**model))


def read_by(name: str, went: Exchange, **model: Any) -> Reading:
    protocol = PROTOCOLS[name]
    call = protocol.recognise(protocol, went.method, went.path) or Call(protocol, "infer")
    return protocol.read(went, call, Model(**model))


def predictions(response: bytes | None, task_type: str | None) -> list[Prediction]:
    """As the ingester reads them, every element."""
    found = read_predictions(response, task_type=task_type_of(task_type))
    assert found.problem is None, found.problem
    assert found.items is not None
    return list(found.items)


def metadata(envelopes: Any) -> dict[str, Any]:
    """Keys and values, as the ingester reads one envelope."""
    (envelope,) = envelopes
    found = read_metadata(envelope)
    assert found.problem is None, found.problem
    return {entry.key: entry.value for entry in found.entries}


def _raw(value: Any) -> bytes:
    if value is None:
        return b""
    return value if isinstance(value, bytes) else orjson.dumps(value)
