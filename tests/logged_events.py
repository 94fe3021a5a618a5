"""Events as request loggers send them over HTTP, byte for byte.

KServe's were recorded of its own `pkg/logger` (v0.15.2) at
`http://logger:se%20cret@127.0.0.1:19100/cloudevents`; Seldon's are as its executor (1.18.2) writes
them with the SDK that it has.
"""

import json
import struct
from base64 import b64encode
from typing import Any

TOKEN = "se cret"
_KSERVE = """\
POST /cloudevents HTTP/1.1\r
Host: 127.0.0.1:19100\r
User-Agent: Go-http-client/1.1\r
Content-Length: {length}\r
Authorization: Basic bG9nZ2VyOnNlIGNyZXQ=\r
Ce-Component: predictor\r
Ce-Endpoint: default\r
Ce-Id: {id}\r
Ce-Inferenceservicename: sklearn-iris\r
Ce-Metadata: {metadata}\r
Ce-Namespace: default\r
Ce-Source: http://localhost:9081/\r
Ce-Specversion: 1.0\r
Ce-Time: {time}\r
Ce-Type: org.kubeflow.serving.inference.{side}\r
Content-Type: {kind}\r
Accept-Encoding: gzip\r
\r
"""
_SELDON = """\
POST /cloudevents HTTP/1.1\r
Host: 127.0.0.1:19100\r
User-Agent: Go-http-client/1.1\r
Content-Length: {length}\r
Authorization: Basic bG9nZ2VyOnNlIGNyZXQ=\r
Ce-Endpoint: default\r
Ce-Id: {id}\r
Ce-Inferenceservicename: wines\r
Ce-Modelid: classifier\r
Ce-Namespace: seldon\r
Ce-Protocol: v2\r
Ce-Requestid: {call}\r
Ce-Source: http://:8000/\r
Ce-Specversion: 1.0\r
Ce-Time: {time}\r
Ce-Type: io.seldon.serving.inference.{side}\r
Content-Type: {kind}\r
Accept-Encoding: gzip\r
\r
"""
ID = "46a791cd-c5f7-4c39-9239-202ae074d2e1"
_TIMES = {"request": "2026-11-30T14:12:58.321859836Z", "response": "2026-11-30T14:12:58.324373136Z"}
JSON, BINARY = "application/json", "application/octet-stream"
V1 = b'{"instances": [[6.8, 2.8, 4.8, 1.4]]}', b'{"predictions":[1]}'
V2 = (
    b'{"id":"a-1","inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1.5,2.5]}]}',
    b'{"model_name":"iris","model_version":"v1","id":"a-1","outputs":[{"name":"predict",'
    b'"shape":[1],"datatype":"INT64","data":[1]}]}',
)
TENSORS = (
    b'{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","parameters":{"binary_data_size":8}}]}'
    + struct.pack("<2f", 1.5, 2.5),
    b'{"model_name":"iris","outputs":[{"name":"o","shape":[2],"datatype":"FP32",'
    b'"parameters":{"binary_data_size":8}}]}' + struct.pack("<2f", 1, 2),
)


def kserve(
    side: str,
    body: bytes,
    *,
    id: str = ID,
    kind: str = JSON,
    metadata: Any = None,
    time: str = "",
) -> bytes:
    """Return the request of KServe's logger. An answer has the content type of its request."""
    empty: Any = {} if side == "request" else None
    head = _KSERVE.format(
        length=len(body),
        id=id,
        metadata=json.dumps(metadata or empty, separators=(",", ":")),
        side=side,
        kind=kind,
        time=time or _TIMES[side],
    )
    return head.encode() + body


def seldon(side: str, body: bytes, *, id: str, call: str = "puid-1") -> bytes:
    """Return the request of Seldon's logger: the two events of a call have ids of their own."""
    head = _SELDON.format(
        length=len(body), id=id, call=call, side=side, kind=JSON, time=_TIMES[side]
    )
    return head.encode() + body


def document(side: str, data: Any = None, **changes: Any) -> dict[str, Any]:
    """Return an event as the JSON of structured mode; bytes as `data_base64`."""
    coded = {"data_base64": b64encode(data).decode()} if isinstance(data, bytes) else {"data": data}
    return {
        "specversion": "1.0",
        "id": ID,
        "source": "http://localhost:9081/",
        "type": f"org.kubeflow.serving.inference.{side}",
        "time": _TIMES[side],
        "datacontenttype": JSON,
        "inferenceservicename": "sklearn-iris",
        "namespace": "default",
        **coded,
        **changes,
    }


def structured(document: Any, kind: str = "application/cloudevents+json", *more: str) -> bytes:
    """Return a request in structured mode."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    lines = (
        "POST /cloudevents HTTP/1.1",
        "Host: proxy",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        f"Authorization: Bearer {TOKEN}",
        *more,
    )
    return "\r\n".join((*lines, "", "")).encode() + body
