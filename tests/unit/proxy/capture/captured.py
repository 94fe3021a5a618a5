"""Exchanges and requests that are captured as a capture process does it, and what is written."""

import base64
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from inference_store.grpc_messages import message
from inference_store.inference.events import Buckets, InferenceEvent, decode
from inference_store.inference.metadata import read_metadata
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.prepare import ChosenExchange, Preparation
from inference_store.proxy.capture.process import Inbox, SentExchange, write_exchange
from inference_store.proxy.capture.registrations import Work
from inference_store.proxy.capture.segments import Blob, Event, Segment, read_segment
from inference_store.proxy.configuration import Configuration, Rules
from inference_store.proxy.exchange import Body, Exchange, Headers
from inference_store.proxy.protocols import PROTOCOLS, Call, recognise_call
from inference_store.proxy.routing import Route
from tests.exchanges import exchange, rebuild_messages
from tests.settings import make_settings

BUCKETS = Buckets(default="b", allowed=frozenset())
JSON: Headers = [("content-type", "application/json")]
NAMED_PROTOCOLS = PROTOCOLS.keys() - {"raw", "raw-grpc"}
UNKNOWN, BATCHED, VISION = Rules(), Rules(batched=True), Rules(task_type="object_detection")
INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
INFER_REST = "/v2/models/m/infer"


Tensors: TypeAlias = Sequence[tuple[str, Sequence[int], Sequence[Any]]]
"""The datatype, shape and values of each."""
CONTENTS: Final[Mapping[str, str]] = {
    "INT8": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
CODES: Final = {"INT8": "b", "INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d"}


class Written(NamedTuple):
    """The objects of an exchange, its events, and the problems of its capture."""

    blobs: Sequence[Blob]
    messages: Sequence[Event]
    problems: Sequence[str]


def write(chosen: ChosenExchange, sequence: int = 1) -> Written:
    """Write an exchange as single objects; what is read back from its segment is the same."""
    segment = Segment(chosen.model_id, prefix="captures", packed=False, opened=0.0)
    prepared = chosen.lay_out(segment, "p", sequence)
    segment.append(prepared)
    segment.close()
    contents = read_segment(segment.tar)
    assert contents.events == prepared.events
    return Written(contents.objects, prepared.events, tuple(chosen.problems))


class Captured(NamedTuple):
    """What is written of an exchange."""

    prepared: Written

    @property
    def events(self) -> Sequence[InferenceEvent]:
        """The events as the ingester decodes them."""
        messages = self.prepared.messages
        now = datetime.now(UTC)
        return [decode(sent.value, record_time=now, buckets=BUCKETS) for sent in messages]

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [orjson.loads(sent.value) for sent in self.prepared.messages]

    def list_blobs(self, kind: str) -> list[bytes]:
        return [blob.data for blob in self.prepared.blobs if blob.key.endswith(f"/{kind}")]

    def find_metadata(self, index: int = 0) -> dict[str, Any]:
        result: dict[str, Any] = orjson.loads(self.list_blobs("metadata")[index])
        return result

    def find_response(self) -> Any:
        blobs = self.list_blobs("response")
        return orjson.loads(blobs[0]) if blobs else None

    def list_entries(self) -> dict[str, str | None]:
        """The client's metadata as the ingester reads them from the blob, and from the event."""
        metadata = read_metadata(self.list_blobs("metadata")[0])
        assert metadata.problem is None
        assert read_metadata(self.documents[0]["metadata"].encode()) == metadata
        return {entry.key: entry.value for entry in metadata.entries if entry.section == "extended"}

    @property
    def requests(self) -> list[dict[str, Any]]:
        """What is stored of the request with each inference, by batch index."""
        return [orjson.loads(blob)["request"] for blob in self.list_blobs("metadata")]

    @property
    def data(self) -> dict[int, bytes]:
        """The data objects by batch index."""
        blobs = {blob.key: blob.data for blob in self.prepared.blobs}
        keys = enumerate(event.get("data_storage_key") for event in self.documents)
        return {index: blobs[key] for index, key in keys if key}

    def rebuild(self, index: int = 0) -> list[bytes]:
        """Rebuild a request's messages. Raise AssertionError if they were not kept."""
        request = self.requests[index]
        assert request["messages"] is not None, request["why"]
        return rebuild_messages(request["messages"], self.data.get(index, b""))

    def holds(self, secret: bytes) -> bool:
        """Whether it is in anything that is written, escaped, in JSON in a text, or as base64."""
        written = [blob.data for blob in self.prepared.blobs]
        for sent in self.prepared.messages:
            written += [sent.key, sent.value]
        return any(secret in text for text in _list_contents(written))


def _list_contents(written: Sequence[bytes]) -> list[bytes]:
    """List the bytes, and each text in their JSON without its escapes and codings."""
    listed: list[bytes] = []
    waiting: list[Any] = [*written]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str):
            if len(value) % 4 == 0 and len(value) > 8 and value.isascii():
                with suppress(ValueError):
                    waiting.append(base64.b64decode(value, validate=True))
            waiting.append(value.encode())
        elif isinstance(value, bytes):
            listed.append(value)
            if value[:1] in (b"{", b"[", b'"'):
                with suppress(orjson.JSONDecodeError):
                    waiting.append(orjson.loads(value))
    return listed


@cache
def make_preparation(**changes: Any) -> Preparation:
    return Preparation(make_settings(ProxySettings, proxy_upstream="http://up", **changes))


def capture(
    sample: Exchange,
    rules: Rules | None = None,
    *,
    call: Call | None = None,
    model: str = "m",
    protocol: str | None = None,
    by_name: Sequence[Rules] | None = None,
    **settings: Any,
) -> Captured:
    """Capture an exchange of a call, or of the call that one or any named protocol recognises."""
    if call is None:
        names = {protocol} if protocol else NAMED_PROTOCOLS
        call = recognise_call(names, sample.transport, sample.method, sample.path)
        assert call is not None, sample.path
    preparation = make_preparation(**settings)
    work = Work(sample, call, rules or Rules(), model, by_name=by_name)
    chosen = preparation.choose(work)
    assert chosen is not None
    return Captured(write(chosen))


def receive(raw: bytes, size: int = 1 << 30) -> list[SentExchange]:
    """Return the exchanges that come of bytes through the socket, so many at a time."""
    came: list[SentExchange] = []
    inbox = Inbox(came.extend, lambda: None)
    while raw:
        room = inbox.get_buffer(-1)
        part, raw = raw[: min(size, len(room))], raw[min(size, len(room)) :]
        room[: len(part)] = part
        inbox.buffer_updated(len(part))
    return came


def read_handed(exchange: Exchange, route: Route, rules: Rules | None = None) -> Captured:
    """Return what the capture process writes of an exchange that was handed over."""
    assert route.call is not None
    (sent,) = receive(write_exchange(exchange, route.call, route, 0))
    work = sent.work(PROTOCOLS, Configuration((), [rules] if rules else []))
    preparation = make_preparation(proxy_redaction_key="k")
    chosen = preparation.choose(work)
    assert chosen is not None
    return Captured(write(chosen))


class SampleRequest(NamedTuple):
    """A request, and the answer that makes a batch of it."""

    protocol: str
    path: str
    messages: Sequence[bytes]
    answer: bytes = b"{}"
    headers: Headers = ()
    rules: Rules = UNKNOWN
    answer_headers: Headers = ()


def capture_request(request: SampleRequest) -> Captured:
    body = Body(parts=request.messages, size=sum(map(len, request.messages)))
    changes: dict[str, Any] = {
        "request_headers": request.headers,
        "response_headers": [*JSON, *request.answer_headers],
    }
    if PROTOCOLS[request.protocol].transport == "grpc":
        changes = {"transport": "grpc", "method": request.path, "http_status": None, "grpc_code": 0}
    sample = exchange(b"", request.answer, path=request.path, request=body, **changes)
    return capture(sample, request.rules, protocol=request.protocol)


def make_sized_request(head: bytes, tail: bytes, rules: Rules = UNKNOWN) -> SampleRequest:
    """Make a V2 request of this JSON and the bytes of the tensors behind it."""
    headers = [("inference-header-content-length", str(len(head)))]
    return SampleRequest("v2", INFER_REST, [head + tail], b"", headers, rules)


def pack(datatype: str, values: Sequence[Any]) -> bytes:
    """Return the raw contents of a tensor; bytes are such contents."""
    if isinstance(values, bytes):
        return values
    if datatype == "BYTES":
        return b"".join(len(value).to_bytes(4, "little") + value for value in values)
    return struct.pack(f"<{len(values)}{CODES[datatype]}", *values)


def write_message(tensors: Tensors, rules: Rules = UNKNOWN, *, raw: bool) -> SampleRequest:
    """Make a request over gRPC with raw or typed contents."""
    built = message("inference.ModelInferRequest")(model_name="m")
    for at, (datatype, shape, values) in enumerate(tensors):
        added = built.inputs.add(name=f"t{at}", datatype=datatype, shape=shape)
        if raw:
            built.raw_input_contents.append(pack(datatype, values))
        else:
            getattr(added.contents, CONTENTS[datatype]).extend(values)
    return SampleRequest("v2-grpc", INFER, [bytes(built.SerializeToString())], b"", rules=rules)


def write_binary(
    tensors: Tensors,
    rules: Rules = UNKNOWN,
    *,
    as_json: Sequence[int] = (),
    write: Callable[[Any], bytes] = lambda value: json.dumps(value).encode(),
) -> SampleRequest:
    """Make a request over REST with the tensors behind the JSON; `as_json`: those inside it."""
    inputs: list[dict[str, Any]] = []
    tail = b""
    for at, (datatype, shape, values) in enumerate(tensors):
        tensor: dict[str, Any] = {"name": f"t{at}", "datatype": datatype, "shape": shape}
        if at in as_json:
            data = [
                value.decode("latin-1") if isinstance(value, bytes) else value for value in values
            ]
            inputs.append(tensor | {"data": data})
        else:
            raw = pack(datatype, values)
            inputs.append(tensor | {"parameters": {"binary_data_size": len(raw)}})
            tail += raw
    return make_sized_request(write({"inputs": inputs}), tail, rules)


def encode_run(*items: dict[str, bytes]) -> bytes:
    """Encode OMI's request of these items: files by name."""
    inputs = [message("InputItem")(input=item) for item in items]
    return bytes(message("RunRequest")(inputs=inputs).SerializeToString())


def check_rebuilt(request: SampleRequest, *, count: int | None = None) -> Captured:
    """Check that the rebuilt request is equal, and has `count` data; of a batch, that each rebuilt
    request has the datum and the metadata of its inference alone."""
    captured = capture_request(request)
    assert count is None or len(captured.data) == count
    if len(captured.requests) == 1:
        assert captured.rebuild() == [part for part in request.messages if part or is_grpc(request)]
        return captured
    last = len(captured.requests) - 1
    for index in sorted({0, 1, last}):
        stored = captured.requests[index]
        headers = [(name, value) for name, value in stored["headers"]]
        alone = request._replace(messages=captured.rebuild(index), headers=headers, answer=b"")
        again = capture_request(alone)
        assert again.data == {0: captured.data[index]}
        assert again.find_metadata()["metadata"] == captured.find_metadata(index)["metadata"]
    return captured


def is_grpc(request: SampleRequest) -> bool:
    return PROTOCOLS[request.protocol].transport == "grpc"
