"""Exchanges of V2 as a caller and a model server would have them."""

import json
import struct
from typing import Any, TypeAlias

from inference_store.proxy.exchange import Exchange, Headers
from inference_store.proxy.protocols import tensors
from inference_store.proxy.protocols.protocol import Call, Model, Reading
from inference_store.proxy.protocols.v2 import V2_REST, parse
from tests.unit.proxy.protocols import exchanged

JPEG = b"\xff\xd8\xff\xe0 a photograph \xff\xd9"
PNG = b"\x89PNG\r\n\x1a\n a drawing"
VISION = Model(task_type="OBJECT_DETECTION")
Content: TypeAlias = bytes | dict[str, Any] | list[Any]


def encode_body(content: Content) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content).encode()


def make_exchange(
    request: Content, response: Content = b"", *, path: str = "/v2/models/m/infer", **more: Any
) -> Exchange:
    """Make an exchange without headers. `more`: as for the function of all protocols."""
    bodies = encode_body(request), encode_body(response)
    return exchanged.make_exchange(path, *bodies, **({"sent": (), "answered": ()} | more))


def read_exchange(sample: Exchange, model: Model | None = None) -> Reading:
    call = V2_REST.recognise(sample.method, sample.path)
    assert isinstance(call, Call)
    return V2_REST.read(sample, call, model or Model())


def read(request: Any, response: Any = b"", model: Model | None = None, **more: Any) -> Reading:
    return read_exchange(make_exchange(request, response, **more), model)


def parse_request(document: dict[str, Any]) -> tensors.Content:
    return parse(encode_body(document), "request")


def parse_response(document: dict[str, Any]) -> tensors.Content:
    return parse(encode_body(document), "response")


def make_tensor(datatype: str, shape: list[int], *, name: str = "x", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": datatype, **more}


def make_text_tensor(*data: Any, name: str = "x", **more: Any) -> dict[str, Any]:
    """Make a BYTES tensor."""
    return {"name": name, "shape": [len(data)], "datatype": "BYTES", "data": list(data), **more}


def make_lengths(head: bytes) -> Headers:
    """Make the header of binary tensors behind this JSON."""
    return [("inference-header-content-length", str(len(head)))]


def prefix_lengths(*elements: bytes) -> bytes:
    """Return raw BYTES elements, each behind its length."""
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)
