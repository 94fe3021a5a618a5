"""Exchanges as tests write them, and what the ingester would read of the answers."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from inference_store.inference.metadata import read_metadata
from inference_store.inference.task_types import Prediction, read_predictions, task_type_of
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols import PROTOCOLS, Call, Model, Reading, recognise_call

PIXEL = b"\x89PNG\r\n\x1a\n pixel"
RECEIVED_AT = datetime(2026, 11, 1, tzinfo=UTC)
JSON: Headers = (("content-type", "application/json"),)


def make_body(raw: bytes, *, whole: bool = True, size: int | None = None) -> Body:
    return Body(parts=[raw] if raw else [], size=len(raw) if size is None else size, whole=whole)


def make_exchange(
    path: str,
    request: Any,
    response: Any = None,
    *,
    status: int | None = 200,
    sent: Headers = JSON,
    answered: Headers = JSON,
) -> Exchange:
    """Make an exchange. All but bytes is written as JSON; without a response no answer came."""
    return Exchange(
        transport="rest",
        method="POST",
        path=path,
        request_headers=sent,
        request=make_body(_encode(request)),
        response_headers=answered,
        response=make_body(_encode(response)),
        http_status=status,
        received_at=RECEIVED_AT,
        forwarded_at=RECEIVED_AT,
        first_part_at=RECEIVED_AT + timedelta(milliseconds=21.5),
    )


def make_grpc_exchange(
    path: str, requests: Sequence[bytes], responses: Sequence[bytes], code: int = 0, **more: Any
) -> Exchange:
    return Exchange(
        transport="grpc",
        method=path,
        path=path,
        request=Body(parts=requests, size=sum(map(len, requests))),
        response=Body(parts=responses, size=sum(map(len, responses))),
        grpc_code=code,
        received_at=RECEIVED_AT,
        **more,
    )


def read(sample: Exchange, **model: Any) -> Reading:
    """Read an exchange by the protocol that recognises it; raw protocols are left out."""
    names = [name for name in PROTOCOLS if not name.startswith("raw")]
    call = recognise_call(names, sample.transport, sample.method, sample.path)
    assert call is not None, f"{sample.path} is not recognised"
    return call.protocol.read(sample, call, Model(**model))


def read_call(
    path: str, request: Any, response: Any = None, *, task_type: str | None = None, **more: Any
) -> Reading:
    """Read the exchange of a call. `more`: as for `make_exchange`."""
    return read(make_exchange(path, request, response, **more), task_type=task_type)


def read_by(name: str, sample: Exchange, **model: Any) -> Reading:
    protocol = PROTOCOLS[name]
    call = protocol.recognise(sample.method, sample.path) or Call(protocol, "infer")
    return protocol.read(sample, call, Model(**model))


def list_data(reading: Reading) -> list[bytes | None]:
    return [inference.data for inference in reading.inferences]


def list_predictions(response: bytes | None, task_type: str | None) -> list[Prediction]:
    """Return the predictions as the ingester reads them, every element."""
    result = read_predictions(response, task_type=task_type_of(task_type))
    assert result.problem is None, result.problem
    assert result.items is not None
    return list(result.items)


def list_texts(reading: Reading) -> list[list[str | None]]:
    return [
        [row.text for row in list_predictions(inference.response, reading.task_type)]
        for inference in reading.inferences
    ]


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
