"""A script for a pod of the product's image: `python - COMMAND …`. It only uses Services.

load MODEL              publish until /tmp/stop appears, at least LEAST; send requests meanwhile
publish MODEL N         publish N inferences
api METHOD PATH [BODY]  send a request; print {"status", "body"}
objects PREFIX          print how many objects are left
"""

import asyncio
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import obstore
from aiokafka import AIOKafkaProducer
from obstore.store import S3Store

RATE = 100.0
# However fast the change during the load is.
LEAST = 500
STOP = "/tmp/stop"


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


def send_request(method: str, path: str, body: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(
        os.environ["API"] + path,
        method=method,
        data=body.encode() if body else None,
        headers={
            "Content-Type": "application/json",
            "Authorization": f"Bearer {read_setting('API_TOKEN')}",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


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
            time.sleep(0.2)


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
    blobs, number, began = open_store(), 0, time.monotonic()
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
            ahead = number / RATE - (time.monotonic() - began)
            if ahead > 0:
                await asyncio.sleep(ahead)
    finally:
        await producer.stop()
    return number


def main(command: str, *arguments: str) -> None:
    if command == "load":
        asyncio.run(publish_and_request(*arguments))
    elif command == "publish":
        target = int(arguments[1])
        print(asyncio.run(publish_while(arguments[0], lambda number: number < target, share=1)))
    elif command == "api":
        status, text = send_request(*arguments)
        body = (json.loads(text) if status else text) if text else None
        print(json.dumps({"status": status, "body": body}))
    elif command == "objects":
        print(sum(len(part) for part in obstore.list(open_store(), prefix=arguments[0])))


main(*sys.argv[1:])
