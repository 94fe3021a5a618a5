"""Exchanges as tests write them, and what the ingester would read of the answers."""

from datetime import UTC, datetime
from typing import Any

import orjson

from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import Prediction, read_predictions, task_type_of
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols import PROTOCOLS, Call, Model, Reading, recognise_call


def make_body(raw: bytes, *, whole: bool = True, size: int | None = None) -> Body:
    return Body(parts=[raw] if raw else [], size=len(raw) if size is None else size, whole=whole)


def make_exchange(
    path: str,
    request: Any,
    response: Any = None,
    *,
    status: int | None = 200,
    sent: Headers = (("content-type", "application/json"),),
    answered: Headers = (("content-type", "application/json"),),
    method: str = "POST",
) -> Exchange:
    """Make an exchange. All but bytes is written as JSON; without a response no answer came."""
    return Exchange(
        transport="rest",
        method=method,
        path=path,
        request_headers=sent,
        request=make_body(_encode(request)),
        response_headers=answered,
        response=make_body(_encode(response)),
        http_status=status,
        received_at=datetime.now(UTC),
    )


def read(sample: Exchange, **model: Any) -> Reading:
    """Read an exchange by the protocol that recognises it; raw protocols are left out."""
    names = [name for name in PROTOCOLS if not name.startswith("raw")]
    call = recognise_call(names, sample.transport, sample.method, sample.path)
    assert call is not None, f"{sample.path} is not recognised"
    return call.protocol.read(sample, call, Model(**model))


def read_by(name: str, sample: Exchange, **model: Any) -> Reading:
    protocol = PROTOCOLS[name]
    call = protocol.recognise(protocol, sample.method, sample.path) or Call(protocol, "infer")
    return protocol.read(sample, call, Model(**model))


def list_predictions(response: bytes | None, task_type: str | None) -> list[Prediction]:
    """Return the predictions as the ingester reads them, every element."""
    result = read_predictions(response, task_type=task_type_of(task_type))
    assert result.problem is None, result.problem
    assert result.items is not None
    return list(result.items)


def read_envelope(envelopes: Any) -> dict[str, Any]:
    """Return keys and values, as the ingester reads one envelope."""
    (envelope,) = envelopes
    result = read_metadata(envelope)
    assert result.problem is None, result.problem
    return {entry.key: entry.value for entry in result.entries}


def _encode(value: Any) -> bytes:
    if value is None:
        return b""
    return value if isinstance(value, bytes) else orjson.dumps(value)
