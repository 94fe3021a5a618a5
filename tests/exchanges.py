"""Exchanges as a proxy hands them over, in a small protocol of our own (JSON with base64 inputs),
and requests as they are stored."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from inference_store.inference.json_text import UnreadableJson, read_exactly, write_json
from inference_store.inference.stored_requests import write
from inference_store.proxy.exchange import Body, Exchange
from inference_store.proxy.protocols import PROTOCOLS
from inference_store.proxy.protocols.documents import decode
from inference_store.proxy.protocols.protocol import Call, Inference, Model, Problem, Reading
from tests.console.pictures import encode_png


def png(width: int = 4, height: int = 3, *, rows: int | None = None) -> bytes:
    """Return a grey image; `rows`: how many it has, whatever height it says."""
    lines = (b"\0" + b"\x80" * width) * (height if rows is None else rows)
    return encode_png(width, height, lines)


def read(exchange: Exchange, call: Call, model: Model) -> Reading:
    """Read an inference for each input, with the output of the same index."""
    del call, model
    try:
        plain = decode(exchange.request.bytes, exchange.request_headers, 1 << 20)
        request = read_exactly(plain)
        inputs = [base64.b64decode(input_["data"][0]) for input_ in request["inputs"]]
        envelopes = [input_.get("parameters", {}).get("metadata") for input_ in request["inputs"]]
    except (UnreadableJson, KeyError, TypeError, ValueError) as error:
        problem = Problem(f"{type(error).__name__} in the request", ("request", "unreadable"))
        whole = Inference(data=exchange.request.bytes or None, response=exchange.response.bytes)
        return Reading(inferences=[whole], problem=problem)
    answer = orjson.loads(exchange.response.bytes) if exchange.response.parts else {}
    outputs = answer.get("outputs", [])
    inferences = [
        Inference(
            data=data,
            response=orjson.dumps({"outputs": outputs[i : i + 1]}) if outputs else None,
            metadata=() if envelope is None else (write_json(envelope).encode(),),
        )
        for i, (data, envelope) in enumerate(zip(inputs, envelopes, strict=True))
    ]
    return Reading(
        inferences=inferences,
        items="inputs",
        request_id=request.get("id"),
        response_id=answer.get("id"),
        error=answer.get("error"),
        standard={"prompts": ["what?"]} if "prompts" in request else {},
    )


PROTOCOL = replace(PROTOCOLS["raw"], name="images", read=read)
CALL = Call(PROTOCOL, "infer", model="detector", version="3")
RECEIVED_AT = datetime.now(UTC).replace(microsecond=123456) - timedelta(minutes=1)


def request_body(*images: bytes, metadata: Any = None, **more: Any) -> bytes:
    """Return the body of a request; every input has the `metadata`."""
    parameters = {} if metadata is None else {"parameters": {"metadata": metadata}}
    inputs = [
        {"name": "image", "data": [base64.b64encode(image).decode()], **parameters}
        for image in images or (png(),)
    ]
    return orjson.dumps({**more, "inputs": inputs})


def response_body(*scores: float, **more: Any) -> bytes:
    outputs = [
        {"name": "predictions", "datatype": "BYTES", "shape": [1], "data": [detection(score)]}
        for score in scores or (0.9,)
    ]
    return orjson.dumps({**more, "outputs": outputs})


def detection(score: float) -> dict[str, Any]:
    return {"label": "person", "score": score, "xmin": 0, "ymin": 0, "xmax": 2, "ymax": 2}


def exchange(body: bytes | None = None, answer: bytes | None = None, /, **changes: Any) -> Exchange:
    """Return the exchange of a successful call."""
    request = request_body() if body is None else body
    response = response_body() if answer is None else answer
    new_exchange = Exchange(
        transport="rest",
        method="POST",
        path="/v2/models/detector/infer",
        request_headers=[("content-type", "application/json")],
        request=Body(parts=(request,) if request else (), size=len(request)),
        response_headers=[("content-type", "application/json")],
        response=Body(parts=(response,) if response else (), size=len(response)),
        http_status=200,
        received_at=RECEIVED_AT,
        forwarded_at=RECEIVED_AT + timedelta(milliseconds=1),
        responded_at=RECEIVED_AT + timedelta(milliseconds=21),
        finished_at=RECEIVED_AT + timedelta(milliseconds=22),
    )
    return replace(new_exchange, **changes)


def rebuild_messages(messages: Sequence[Sequence[Any]], data: bytes) -> list[bytes]:
    """Rebuild the messages of a stored request. `data`: the data blob."""
    return [b"".join(_read_part(part, data) for part in parts) for parts in messages]


def _read_part(part: Any, data: bytes) -> bytes:
    if isinstance(part, str):
        return part.encode()
    return base64.b64decode(part["base64"]) if "base64" in part else write(part, data)
