"""The smoke test without a proxy: publish one inference, find it through the api, and erase it."""

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.objects import Blobs
from inference_store.platform.kafka import client_arguments

from .capture import MODEL, Capture
from .registration import register_model
from .rest import Refused, Rest
from .settings import SmokeSettings

_PAUSE_SECONDS = 0.2
Say = Callable[[str], None]


class Failed(Exception):
    """A step did not succeed; the text says which, and what to check."""


def run_steps(settings: SmokeSettings, api: Rest, *, seconds: float, say: Say) -> None:
    """Run each step once, and report it as it ends.

    Raises Failed, Refused, ObjectStoreUnavailable and KafkaError.
    """
    capture = Capture()
    register_model(api)
    say(f"the api answers at {api.address}, and lets us in")
    try:
        _store_blobs(settings, capture)
        say(f"three blobs are in the bucket {settings.s3_bucket}")
        asyncio.run(_publish(settings, capture.event, seconds))
    except (ObjectStoreUnavailable, KafkaError, OSError):
        say(_remove_objects(settings, capture))
        raise
    try:
        _run_from_event(settings, api, capture, seconds=seconds, say=say)
    except (Failed, Refused):
        say(_erase_published(api, capture))
        raise


def _run_from_event(
    settings: SmokeSettings, api: Rest, capture: Capture, *, seconds: float, say: Say
) -> None:
    """Run the steps from the published event to its erasure."""
    began = time.monotonic()
    say(f"the event of {capture.inference_id} is on the topic {settings.kafka_topic}")
    wait_indexed(api, MODEL, capture.inference_id, seconds=seconds)
    say(f"an ingester has indexed it: {time.monotonic() - began:.1f} s after the event")
    _check_query(api, capture)
    say("a query by metadata and prediction finds it, and its datum is what was written")
    erase(api, MODEL, capture.inference_id)
    say("it is hidden again, and its erasure is on its way")


def _store_blobs(settings: SmokeSettings, capture: Capture) -> None:
    with Blobs(settings) as blobs:
        for key, data in capture.blobs.items():
            blobs.put(blobs.parse(key), data, content_type="application/octet-stream")


async def _publish(settings: SmokeSettings, event: bytes, seconds: float) -> None:
    """Publish the event; Kafka has so many seconds for each answer."""
    connection = client_arguments(settings)
    milliseconds = math.ceil(1000 * seconds)
    producer = AIOKafkaProducer(**connection, acks="all", request_timeout_ms=milliseconds)
    await producer.start()
    try:
        await producer.send_and_wait(settings.kafka_topic, event)
    finally:
        await producer.stop()


def wait_indexed(api: Rest, model: str, inference_id: str, *, seconds: float) -> dict[str, Any]:
    """Return the inference, once an ingester has indexed it. Raises Failed and Refused."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return dict(orjson.loads(api.ask("GET", build_path(model, inference_id))))
        except Refused as refused:
            if refused.status != 404:
                raise
        if time.monotonic() > deadline:
            raise Failed(
                f"{inference_id} was not indexed within {seconds:g} s: look at the"
                " ingester's /health/ready and at GET /v1/dead-letters. If the api at"
                f" {api.address}, which was asked, is another store's, name yours by --api."
            )
        time.sleep(_PAUSE_SECONDS)


def _check_query(api: Rest, capture: Capture) -> None:
    answer = api.ask("POST", f"/v1/models/{MODEL}/inferences/query", capture.question)
    ids = [item["inference_id"] for item in orjson.loads(answer)["items"]]
    if ids != [capture.inference_id]:
        raise Failed(f"the query found {ids} and not {capture.inference_id} alone")
    if api.ask("GET", f"{build_path(MODEL, capture.inference_id)}/data") != capture.data:
        raise Failed(f"the datum of {capture.inference_id} is not what was written")


def erase(api: Rest, model: str, inference_id: str) -> None:
    """Erase it, and check that it is hidden at once. Raises Failed and Refused."""
    path = build_path(model, inference_id)
    api.ask("DELETE", path)
    try:
        api.ask("GET", path)
    except Refused as refused:
        if refused.status == 404:
            return
        raise
    raise Failed(f"{inference_id} is shown still, after it was erased")


def _remove_objects(settings: SmokeSettings, capture: Capture) -> str:
    """Delete objects that no event names: nobody else would ever delete them."""
    try:
        with Blobs(settings) as blobs:
            faults = blobs.delete_objects([blobs.parse(key) for key in capture.blobs])
    except ObjectStoreUnavailable as error:
        return f"what was stored below {capture.folder}/ may be there still: {error}"
    if faults:
        return f"what was stored below {capture.folder}/ is there still: delete it"
    return "what was stored is deleted again"


def _erase_published(api: Rest, capture: Capture) -> str:
    """Erase an inference whose event is published: its objects may only be deleted through the
    api."""
    path = build_path(MODEL, capture.inference_id)
    try:
        api.ask("DELETE", path)
    except Refused as refused:
        if refused.status == 404:
            return f"once it is indexed, erase it: DELETE {path}"
        return f"it is not erased: {refused}"
    return "it is erased all the same"


def build_path(model: str, inference_id: str) -> str:
    """Return the path of an inference in the api."""
    return f"/v1/models/{quote(model, safe='')}/inferences/{quote(inference_id, safe='')}"
