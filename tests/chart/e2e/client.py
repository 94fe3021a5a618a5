"""A script for a pod of the product's image: `python - COMMAND …`. It only uses Services.

load MODEL              publish until /tmp/stop appears, at least LEAST; send requests meanwhile
publish MODEL N         publish N inferences
api METHOD PATH [BODY]  send a request; print {"status", "body"}
objects PREFIX          print how many objects are left
rest URL MODEL ID       send PICTURE over REST; print status and answer
grpc HOST:PORT MODEL ID the same over gRPC
calls URL MODEL         call until /tmp/stop appears, at least LEAST_CALLS times; print failures
"""

import asyncio
import base64
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import obstore
from aiokafka import AIOKafkaProducer
from obstore.store import S3Store

from inference_store.grpc_messages import message

# What is sent to a model, in base64: a line before the script sets it.
PICTURE = globals().get("PICTURE", "")
# Seconds between two events, two requests and two calls.
EVENT_PAUSE, REQUEST_PAUSE, CALL_PAUSE = 0.01, 0.2, 0.05
# However fast the change during the load is.
LEAST, LEAST_CALLS = 500, 100
STOP = "/tmp/stop"
CAMERA = json.dumps([{"key": "camera", "type": "string", "value": "door"}])


def read_setting(name: str) -> str:
    return os.environ[f"INFERENCE_STORE_{name}"]


def open_store() -> S3Store:
    return S3Store(
        read_setting("S3_BUCKET"),
        endpoint=read_setting("S3_ENDPOINT"),
        access_key_id=read_setting("S3_ACCESS_KEY"),
        secret_access_key=read_setting("S3_SECRET_KEY"),
        region=read_setting("S3_REGION"),
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
        # An upgrade replaces the server of the release, on a disk that may be busy.
        retry_config={
            "max_retries": 200,
            "retry_timeout": timedelta(minutes=3),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=1),
                "base": 2,
            },
        },
    )


def format_now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


async def put_blobs(blobs: S3Store, folder: str, number: int) -> None:
    metadata = [{"key": "frame_number", "type": "int", "value": str(number)}]
    prediction = json.dumps([{"label": "person", "score": (number % 100) / 100}])
    output = {"name": "predictions", "shape": [1], "datatype": "BYTES", "data": [prediction]}
    response = {"outputs": [output]}
    await obstore.put_async(blobs, f"{folder}/data", b"datum %d" % number)
    await obstore.put_async(blobs, f"{folder}/metadata", json.dumps(metadata).encode())
    await obstore.put_async(blobs, f"{folder}/response", json.dumps(response).encode())


def make_event(model: str, number: int, folder: str) -> bytes:
    received = format_now()
    return json.dumps(
        {
            "model_id": model,
            "inference_id": f"inference-{number}",
            "request_received_at": received,
            "request_forwarded_at": received,
            "request_responded_at": received,
            "event_published_at": received,
            "data_storage_key": f"{folder}/data",
            "inference_storage_key": f"{folder}/response",
            "metadata_storage_key": f"{folder}/metadata",
            "task_type": "Image Classification",
        }
    ).encode()


def send(url: str, body: bytes | None = None, **more: Any) -> tuple[int, str]:
    """Return the status and text of the answer; the status is 0 without an answer."""
    request = urllib.request.Request(
        url, data=body, **{"headers": {"Content-Type": "application/json"}, **more}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def send_request(method: str, path: str, body: str | None = None) -> tuple[int, str]:
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {read_setting('API_TOKEN')}",
    }
    url, content = os.environ["API"] + path, body.encode() if body else None
    return send(url, content, method=method, headers=headers)


class RequestLoop(threading.Thread):
    """Sends requests to the api until STOP appears."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.requests = 0
        self.failed: list[tuple[str, int, str]] = []

    def run(self) -> None:
        while not os.path.exists(STOP):
            status, text = send_request("GET", "/v1/models")
            self.requests += 1
            if status != 200:
                self.failed.append((format_now(), status, text[:200]))
            time.sleep(REQUEST_PAUSE)


async def publish_and_request(model: str) -> None:
    asking = RequestLoop()
    asking.start()
    published = await publish_while(
        model, lambda n: n < LEAST or not os.path.exists(STOP), share=20
    )
    asking.join(120)
    print(
        json.dumps({"published": published, "requests": asking.requests, "failed": asking.failed})
    )


async def publish_while(model: str, more: Callable[[int], bool], *, share: int) -> int:
    """Publish while `more` holds; `share` events share their blobs. Return the number of events."""
    producer = AIOKafkaProducer(
        bootstrap_servers=read_setting("KAFKA_BOOTSTRAP_SERVERS"),
        acks="all",
        enable_idempotence=True,
        # As long as that of the release may take to start again.
        request_timeout_ms=300_000,
    )
    await producer.start()
    blobs, number = open_store(), 0
    try:
        while more(number):
            folder = f"{model}/{number}"
            await put_blobs(blobs, folder, number)
            events = [
                make_event(model, event_number, folder)
                for event_number in range(number, number + share)
            ]
            sent = [await producer.send(read_setting("KAFKA_TOPIC"), message) for message in events]
            await asyncio.gather(*sent)
            number += share
            await asyncio.sleep(share * EVENT_PAUSE)
    finally:
        await producer.stop()
    return number


def print_api_answer(*arguments: str) -> None:
    status, text = send_request(*arguments)
    body = (json.loads(text) if status else text) if text else None
    print(json.dumps({"status": status, "body": body}))


def publish(model: str, target: str) -> None:
    print(asyncio.run(publish_while(model, lambda number: number < int(target), share=1)))


def print_objects(prefix: str) -> None:
    print(sum(len(part) for part in obstore.list(open_store(), prefix=prefix)))


def call_rest(url: str, model: str, name: str) -> None:
    image = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [PICTURE]}
    request = {"id": name, "parameters": {"metadata": CAMERA}, "inputs": [image]}
    status, answer = send(f"{url}/v2/models/{model}/infer", json.dumps(request).encode())
    print(json.dumps({"status": status, "answer": answer}))


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
    while number < LEAST_CALLS or not os.path.exists(STOP):
        request = {"id": f"call-{number}", "inputs": [tensor]}
        status, answer = send(f"{url}/v2/models/{model}/infer", json.dumps(request).encode())
        if status != 200:
            failed.append((number, status, answer[:200]))
        number += 1
        time.sleep(CALL_PAUSE)
    print(json.dumps({"calls": number, "failed": failed}))


COMMANDS: Mapping[str, Callable[..., None]] = {
    "load": lambda model: asyncio.run(publish_and_request(model)),
    "publish": publish,
    "api": print_api_answer,
    "objects": print_objects,
    "rest": call_rest,
    "grpc": call_grpc,
    "calls": call_repeatedly,
}
COMMANDS[sys.argv[1]](*sys.argv[2:])
