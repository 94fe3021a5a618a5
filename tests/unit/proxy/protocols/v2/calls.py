"""Exchanges of V2 as a caller and a model server would have them."""

import json
import struct
from datetime import UTC, datetime
from typing import Any

from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols.protocol import Call, Model, Reading
from inference_store.proxy.protocols.v2 import V2_REST
from inference_store.proxy.protocols.v2.documents import Document, request_of, response_of
from inference_store.proxy.protocols.v2.tensors import InferRequest, InferResponse

JPEG = b"\xff\xd8\xff\xe0 a photograph \xff\xd9"
PNG = b"\x89PNG\r\n\x1a\n a drawing"
VISION = Model(task_type="OBJECT_DETECTION")


def body(content: bytes | dict[str, Any] | list[Any]) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content).encode()


def exchange(
    request: bytes | dict[str, Any] | list[Any],
    response: bytes | dict[str, Any] | list[Any] = b"",
    *,
    path: str = "/v2/models/m/infer",
    request_headers: Headers = (),
    response_headers: Headers = (),
    status: int = 200,
) -> Exchange:
    asked, answered = body(request), body(response)
    return Exchange(
        transport="rest",
        method="POST",
        path=path,
        request_headers=request_headers,
        request=Body(parts=[asked], size=len(asked)),
        response_headers=response_headers,
        response=Body(parts=[answered], size=len(answered)),
        http_status=status,
        received_at=datetime(2026, 11, 1, tzinfo=UTC),
    )


def reading(seen: Exchange, model: Model | None = None) -> Reading:
    call = V2_REST.recognise(V2_REST, seen.method, seen.path)
    assert isinstance(call, Call)
    return V2_REST.read(seen, call, model or Model())


def read(request: Any, response: Any = b"", model: Model | None = None, **more: Any) -> Reading:
    return reading(exchange(request, response, **more), model)


def asked(document: dict[str, Any]) -> InferRequest:
    return request_of(Document(body(document)))


def answered(document: dict[str, Any]) -> InferResponse:
    return response_of(Document(body(document)))


def texts(*data: Any, name: str = "x", **more: Any) -> dict[str, Any]:
    """A BYTES tensor."""
    return {"name": name, "shape": [len(data)], "datatype": "BYTES", "data": list(data), **more}


def prefixed(*elements: bytes) -> bytes:
    """Raw BYTES elements."""
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)
