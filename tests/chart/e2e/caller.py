"""Runs in a pod of the product's image: `python - COMMAND …`, below a line that sets PICTURE.

rest URL MODEL ID        send the picture over REST; prints status, answer, its digest
grpc HOST:PORT MODEL ID  the same over gRPC
calls URL MODEL          call until /tmp/stop appears, at least LEAST; prints what failed
get URL                  prints what is there
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


def post(url: str, said: object) -> tuple[int, bytes]:
    request = urllib.request.Request(
        url, data=json.dumps(said).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        return 0, str(error).encode()


def rest(url: str, model: str, name: str) -> None:
    image = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [PICTURE]}
    said = {"id": name, "parameters": {"metadata": CAMERA}, "inputs": [image]}
    status, answer = post(f"{url}/v2/models/{model}/infer", said)
    digest = hashlib.sha256(base64.b64decode(PICTURE)).hexdigest()
    print(json.dumps({"status": status, "answer": answer.decode(), "digest": digest}))


def over_grpc(target: str, model: str, name: str) -> None:
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
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=message("inference.ModelInferResponse").FromString,
        )
        answer = call(request, timeout=60, metadata=[("inference-store-metadata", CAMERA)])
    print(json.dumps({"model": answer.model_name, "id": answer.id}))


def calls(url: str, model: str) -> None:
    """Each on a connection of its own, as callers come and go."""
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
    print(json.dumps({"asked": number, "failed": failed}))


def get(url: str) -> None:
    with urllib.request.urlopen(url, timeout=20) as answer:
        print(answer.read().decode())


COMMANDS: Mapping[str, Callable[..., None]] = {
    "rest": rest,
    "grpc": over_grpc,
    "calls": calls,
    "get": get,
}
COMMANDS[sys.argv[1]](*sys.argv[2:])
