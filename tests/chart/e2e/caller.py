"""A script for a pod of the product's image: `python - COMMAND …`, after a line that sets PICTURE.

rest URL MODEL ID        send the picture over REST; print status, answer and digest
grpc HOST:PORT MODEL ID  the same over gRPC
calls URL MODEL          call until /tmp/stop appears, at least LEAST times; print failures
get URL                  print the content of a URL
"""

import base64
import hashlib
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from inference_store.grpc_messages import message

PICTURE = globals().get("PICTURE", "")
LEAST = 100
STOP = "/tmp/stop"
CAMERA = json.dumps([{"key": "camera", "type": "string", "value": "door"}])


def post(url: str, document: object) -> tuple[int, bytes]:
    request = urllib.request.Request(
        url, data=json.dumps(document).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()


def call_rest(url: str, model: str, name: str) -> None:
    image = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [PICTURE]}
    request = {"id": name, "parameters": {"metadata": CAMERA}, "inputs": [image]}
    status, answer = post(f"{url}/v2/models/{model}/infer", request)
    digest = hashlib.sha256(base64.b64decode(PICTURE)).hexdigest()
    print(json.dumps({"status": status, "answer": answer.decode(), "digest": digest}))


def call_grpc(target: str, model: str, name: str) -> None:
    picture = base64.b64decode(PICTURE)
    request = message("inference.ModelInferRequest")(
        model_name=model,
        id=name,
        inputs=[{"name": "image", "datatype": "BYTES", "shape": [1]}],
        raw_input_contents=[len(picture).to_bytes(4, "little") + picture],
    )
    with grpc.insecure_channel(target) as channel:
        call: Any = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=lambda encoded: encoded.SerializeToString(),
            response_deserializer=message("inference.ModelInferResponse").FromString,
        )
        answer = call(request, timeout=60, metadata=[("inference-store-metadata", CAMERA)])
    print(json.dumps({"model": answer.model_name, "id": answer.id}))


def call_repeatedly(url: str, model: str) -> None:
    """Call repeatedly, each time on a new connection like different callers."""
    tensor = {"name": "pixels", "datatype": "FP64", "shape": [1, 64], "data": [0.0] * 64}
    failed, number = [], 0
    while number < LEAST or not os.path.exists(STOP):
        status, answer = post(
            f"{url}/v2/models/{model}/infer", {"id": f"call-{number}", "inputs": [tensor]}
        )
        if status != 200:
            failed.append((number, status, answer.decode()[:200]))
        number += 1
        time.sleep(0.05)
    print(json.dumps({"calls": number, "failed": failed}))


def print_url(url: str) -> None:
    with urllib.request.urlopen(url, timeout=60) as answer:
        print(answer.read().decode())


COMMANDS: Mapping[str, Callable[..., None]] = {
    "rest": call_rest,
    "grpc": call_grpc,
    "calls": call_repeatedly,
    "get": print_url,
}
COMMANDS[sys.argv[1]](*sys.argv[2:])
