"""Runs in a pod of the product's image: `python - COMMAND …`, reached through Services alone.

load MODEL  publish until /tmp/stop appears, at least LEAST; ask the api all the while
publish MODEL N     publish N inferences
api METHOD PATH [BODY]  one request; prints {"status", "body"}
objects PREFIX      how many objects are left
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
# However fast what goes on meanwhile.
LEAST = 500
STOP = "/tmp/stop"


def setting(name: str) -> str:
    return os.environ[f"INFERENCE_STORE_{name}"]


def store() -> S3Store:
    return S3Store(
        setting("S3_BUCKET"),
        endpoint=setting("S3_ENDPOINT"),
        access_key_id=setting("S3_ACCESS_KEY"),
        secret_access_key=setting("S3_SECRET_KEY"),
        region=setting("S3_REGION"),
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
        # The release's own server is made anew by an upgrade, on a disk that may be busy.
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


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


async def put(blobs: S3Store, folder: str, number: int) -> None:
    metadata = [{"key": "frame_number", "type": "int", "value": str(number)}]
    found = json.dumps([{"label": "person", "score": (number % 100) / 100}])
    output = {"name": "predictions", "shape": [1], "datatype": "BYTES", "data": [found]}
    response = {"outputs": [output]}
    await obstore.put_async(blobs, f"{folder}/data", b"datum %d" % number)
    await obstore.put_async(blobs, f"{folder}/metadata", json.dumps(metadata).encode())
    await obstore.put_async(blobs, f"{folder}/response", json.dumps(response).encode())


def event(model: str, number: int, folder: str) -> bytes:
    received = now()
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


def ask(method: str, path: str, body: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(
        os.environ["API"] + path,
        method=method,
        data=body.encode() if body else None,
        headers={
            "Content-Type": "application/json",
            "Authorization": f"Bearer {setting('API_TOKEN')}",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


class Asking(threading.Thread):
    """Asks the api all the while."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.asked = 0
        self.failed: list[tuple[str, int, str]] = []

    def run(self) -> None:
        while not os.path.exists(STOP):
            status, text = ask("GET", "/v1/models")
            self.asked += 1
            if status != 200:
                self.failed.append((now(), status, text[:200]))
            time.sleep(0.2)


async def load(model: str) -> None:
    asking = Asking()
    asking.start()
    published = await run(model, lambda n: n < LEAST or not os.path.exists(STOP), share=20)
    asking.join(30)
    print(json.dumps({"published": published, "asked": asking.asked, "failed": asking.failed}))


async def run(model: str, more: Callable[[int], bool], *, share: int) -> int:
    """Publish while there is more; `share` events have their blobs in common."""
    producer = AIOKafkaProducer(
        bootstrap_servers=setting("KAFKA_BOOTSTRAP_SERVERS"), acks="all", enable_idempotence=True
    )
    await producer.start()
    blobs, number, began = store(), 0, time.monotonic()
    try:
        while more(number):
            folder = f"{model}/{number}"
            await put(blobs, folder, number)
            events = [event(model, one, folder) for one in range(number, number + share)]
            sent = [await producer.send(setting("KAFKA_TOPIC"), one) for one in events]
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
        asyncio.run(load(*arguments))
    elif command == "publish":
        wanted = int(arguments[1])
        print(asyncio.run(run(arguments[0], lambda number: number < wanted, share=1)))
    elif command == "api":
        status, text = ask(*arguments)
        print(json.dumps({"status": status, "body": json.loads(text) if text else None}))
    elif command == "objects":
        print(sum(len(part) for part in obstore.list(store(), prefix=arguments[0])))


main(*sys.argv[1:])
