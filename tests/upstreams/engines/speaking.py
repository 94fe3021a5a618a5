"""Triton's own clients, and calls of any gRPC method: a question a line, and an answer a line.

Questions and answers are JSON; bytes in it are base64. See clients.py, which asks.
"""

import base64
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import grpc
import modzy_model_pb2
import numpy as np
import tritonclient.grpc
import tritonclient.http
from google.protobuf import json_format
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

_Question = Mapping[str, Any]
_LARGEST_MESSAGE = 64 * 2**20
_SECONDS = 60.0


def main() -> None:
    # Whatever else is printed is not an answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    sys.stdout = sys.stderr
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = _DONE[question["do"]](question)
        except InferenceServerException as exc:
            answer = {"error": exc.message(), "status": exc.status()}
        print(json.dumps(answer), file=answers, flush=True)


def _infer_http(question: _Question) -> Any:
    with tritonclient.http.InferenceServerClient(question["address"]) as client:
        answer = client.infer(
            inputs=_inputs(tritonclient.http, question, binary_data=question["binary"]),
            outputs=_outputs(tritonclient.http, question, binary_data=question["binary"]),
            headers=question.get("headers"),
            **_named(question),
        )
        return _said(answer, answer.get_response())


def _infer_grpc(question: _Question) -> Any:
    with tritonclient.grpc.InferenceServerClient(question["address"]) as client:
        answer = client.infer(
            inputs=_inputs(tritonclient.grpc, question),
            outputs=_outputs(tritonclient.grpc, question),
            headers=question.get("headers"),
            client_timeout=_SECONDS,
            **_named(question),
        )
        return _said(answer, json_format.MessageToDict(answer.get_response()))


def _stream_grpc(question: _Question) -> Any:
    """Every answer to one request; the last one may be empty and only say that it is the last."""
    answers: list[Any] = []
    with tritonclient.grpc.InferenceServerClient(question["address"]) as client:
        client.start_stream(lambda result, error: answers.append(error or result))
        client.async_stream_infer(
            inputs=_inputs(tritonclient.grpc, question),
            outputs=_outputs(tritonclient.grpc, question),
            **_named(question),
        )
        client.stop_stream()
    return [
        {"error": one.message()}
        if isinstance(one, InferenceServerException)
        else _said(one, json_format.MessageToDict(one.get_response()))
        for one in answers
    ]


def _named(question: _Question) -> dict[str, Any]:
    return {
        "model_name": question["model"],
        "request_id": question.get("id", ""),
        "parameters": question.get("parameters"),
    }


def _inputs(client: Any, question: _Question, **options: Any) -> list[Any]:
    made = []
    for one in question["inputs"]:
        tensor = client.InferInput(one["name"], one["shape"], one["datatype"])
        tensor.set_data_from_numpy(_array(one), **options)
        made.append(tensor)
    return made


def _outputs(client: Any, question: _Question, **options: Any) -> list[Any] | None:
    names = question.get("outputs")
    return names and [client.InferRequestedOutput(name, **options) for name in names]


def _array(tensor: _Question) -> Any:
    if tensor["datatype"] == "BYTES":
        elements = [base64.b64decode(one) for one in tensor["data"]]
        return np.array(elements, dtype=np.object_).reshape(tensor["shape"])
    dtype = triton_to_np_dtype(tensor["datatype"])
    return np.array(tensor["data"], dtype=dtype).reshape(tensor["shape"])


def _said(answer: Any, response: Mapping[str, Any]) -> dict[str, Any]:
    """Id and model as the answer names them, its parameters, and its tensors by name."""
    names = [one["name"] for one in response.get("outputs", ())]
    return {
        "id": response.get("id", ""),
        "model": response.get("model_name") or response.get("modelName"),
        "parameters": response.get("parameters", {}),
        "outputs": {name: _listed(answer.as_numpy(name)) for name in names},
    }


def _listed(array: Any) -> Any:
    if array is not None and array.dtype == np.object_:
        # from JSON they are texts
        raw = (one if isinstance(one, bytes) else one.encode() for one in array.ravel())
        flat = [base64.b64encode(one).decode() for one in raw]
        return np.array(flat, dtype=np.object_).reshape(array.shape).tolist()
    return None if array is None else array.tolist()


def _call(question: _Question) -> Any:
    """Any method with messages as bytes: what came back, and all that gRPC says beside it."""
    options = [
        ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
        ("grpc.max_send_message_length", _LARGEST_MESSAGE),
    ]
    with grpc.insecure_channel(question["address"], options=options) as channel:
        metadata = tuple((name, value) for name, value in question.get("metadata", ()))
        ask: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            question["method"]
        )
        call = ask(
            (base64.b64decode(one) for one in question["requests"]),
            metadata=metadata,
            timeout=question.get("timeout", _SECONDS),
            compression=_COMPRESSIONS[question.get("compression", "")],
        )
        responses: list[bytes] = []
        with suppress(grpc.RpcError):  # its code and details are read below
            responses.extend(call)
        return {
            "responses": [base64.b64encode(one).decode() for one in responses],
            "code": call.code().name,
            "details": call.details(),
            "initial": _pairs(call.initial_metadata()),
            "trailing": _pairs(call.trailing_metadata()),
        }


def _pairs(metadata: Iterable[tuple[str, str | bytes]] | None) -> list[list[str]]:
    return [
        [name, value if isinstance(value, str) else base64.b64encode(value).decode()]
        for name, value in metadata or ()
    ]


def _encode(question: _Question) -> str:
    message = json_format.ParseDict(question["value"], _message(question["message"]))
    return base64.b64encode(message.SerializeToString(deterministic=True)).decode()


def _decode(question: _Question) -> Any:
    message = _message(question["message"])
    message.ParseFromString(base64.b64decode(question["value"]))
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _message(name: str) -> Any:
    kind = getattr(service_pb2, name, None) or getattr(modzy_model_pb2, name)
    return kind()


_COMPRESSIONS = {
    "": grpc.Compression.NoCompression,
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
}
_DONE: dict[str, Callable[[_Question], Any]] = {
    "infer_http": _infer_http,
    "infer_grpc": _infer_grpc,
    "stream_grpc": _stream_grpc,
    "call": _call,
    "encode": _encode,
    "decode": _decode,
}

if __name__ == "__main__":
    main()
