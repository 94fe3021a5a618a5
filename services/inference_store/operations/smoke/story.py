"""Publish one inference, find it through the api, and erase it again."""

import asyncio
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from inference_store.inference.errors import BlobsAway
from inference_store.objects import Blobs
from inference_store.platform.kafka import client_arguments

from .capture import MODEL, Capture
from .rest import Refused, Rest
from .settings import SmokeSettings

_PAUSE_SECONDS = 0.2
Say = Callable[[str], None]


class Failed(Exception):
    """A step did not come to its end; the text says which, and what to look at."""


def tell(settings: SmokeSettings, api: Rest, *, seconds: float, say: Say) -> None:
    """Each step once, said as it ends. Raises Failed, Refused, BlobsAway and KafkaError."""
    capture = Capture()
    _registered(api)
    say(f"the api answers at {api.address}, and lets us in")
    try:
        _stored(settings, capture)
        say(f"three blobs are in the bucket {settings.s3_bucket}")
        asyncio.run(_publish(settings, capture.event))
    except (BlobsAway, KafkaError, OSError):
        say(_removed(settings, capture))
        raise
    try:
        _answered(settings, api, capture, seconds=seconds, say=say)
    except (Failed, Refused):
        say(_erased_after_all(api, capture))
        raise


def _answered(
    settings: SmokeSettings, api: Rest, capture: Capture, *, seconds: float, say: Say
) -> None:
    """From the published event to its erasure."""
    began = time.monotonic()
    say(f"the event of {capture.inference_id} is on the topic {settings.kafka_topic}")
    indexed(api, MODEL, capture.inference_id, seconds=seconds)
    say(f"an ingester has indexed it: {time.monotonic() - began:.1f} s after the event")
    _asked(api, capture)
    say("a query by metadata and prediction finds it, and its datum is what was written")
    erased(api, MODEL, capture.inference_id)
    say("it is hidden again, and its erasure is on its way")


def _registered(api: Rest) -> None:
    """The model is there, also for an ingester that refuses unknown ones."""
    try:
        api.ask("GET", f"/v1/models/{MODEL}")
    except Refused as refused:
        if refused.status != 404:
            raise
        body = {"name": "Smoke test", "task_type": "image_classification"}
        api.ask("PUT", f"/v1/models/{MODEL}", body)


def _stored(settings: SmokeSettings, capture: Capture) -> None:
    with Blobs(settings) as blobs:
        for key, data in capture.blobs.items():
            blobs.put(blobs.parse(key), data, content_type="application/octet-stream")


async def _publish(settings: SmokeSettings, event: bytes) -> None:
    connection = client_arguments(settings)
    producer = AIOKafkaProducer(**connection, acks="all", request_timeout_ms=10_000)
    await producer.start()
    try:
        await producer.send_and_wait(settings.kafka_topic, event)
    finally:
        await producer.stop()


def indexed(api: Rest, model: str, inference_id: str, *, seconds: float) -> dict[str, Any]:
    """The inference, once an ingester has indexed it. Raises Failed and Refused."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return dict(orjson.loads(api.ask("GET", path_of(model, inference_id))))
        except Refused as refused:
            if refused.status != 404:
                raise
        if time.monotonic() > deadline:
            raise Failed(
                f"{inference_id} was not indexed within {seconds:g} s: look at the"
                " ingester's /health/ready and at GET /v1/dead-letters."
            )
        time.sleep(_PAUSE_SECONDS)


def _asked(api: Rest, capture: Capture) -> None:
    answer = api.ask("POST", f"/v1/models/{MODEL}/inferences/query", capture.question)
    found = [each["inference_id"] for each in orjson.loads(answer)["items"]]
    if found != [capture.inference_id]:
        raise Failed(f"the query found {found} and not {capture.inference_id} alone")
    if api.ask("GET", f"{path_of(MODEL, capture.inference_id)}/data") != capture.data:
        raise Failed(f"the datum of {capture.inference_id} is not what was written")


def erased(api: Rest, model: str, inference_id: str) -> None:
    """Erase it, and see that it is hidden at once. Raises Failed and Refused."""
    path = path_of(model, inference_id)
    api.ask("DELETE", path)
    try:
        api.ask("GET", path)
    except Refused as refused:
        if refused.status == 404:
            return
        raise
    raise Failed(f"{inference_id} is shown still, after it was erased")


def _removed(settings: SmokeSettings, capture: Capture) -> str:
    """No event names them: nobody else would ever delete these objects."""
    try:
        with Blobs(settings) as blobs:
            faults = blobs.delete_objects([blobs.parse(key) for key in capture.blobs])
    except BlobsAway as away:
        return f"what was stored below {capture.folder}/ may be there still: {away}"
    if faults:
        return f"what was stored below {capture.folder}/ is there still: delete it"
    return "what was stored is deleted again"


def _erased_after_all(api: Rest, capture: Capture) -> str:
    """The event is out: its objects may only go by way of the api, or it would wait for them."""
    path = path_of(MODEL, capture.inference_id)
    try:
        api.ask("DELETE", path)
    except Refused as refused:
        if refused.status == 404:
            return f"once it is indexed, erase it: DELETE {path}"
        return f"it is not erased: {refused}"
    return "it is erased all the same"


def path_of(model: str, inference_id: str) -> str:
    """Where the api has an inference."""
    return f"/v1/models/{quote(model, safe='')}/inferences/{quote(inference_id, safe='')}"
