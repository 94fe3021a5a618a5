"""`inference-store ingester`"""

import argparse
import asyncio
import gc

import uvloop

from inference_store.ingester.run import run as ingest
from inference_store.objects.clients import web_identity
from inference_store.platform.settings import BlobSettings, IngesterSettings

from .command import Command, start_service


def run(_: argparse.Namespace) -> int:
    """Ingest until stopped."""
    settings = start_service(IngesterSettings, "ingester", {BlobSettings: web_identity})
    # A batch is 30,000 small tuples that live for a second: with Python's thresholds the garbage
    # collector would scan them repeatedly, 36 µs per event, and find nothing.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ingest(settings))
    return 0


INGESTER = Command(run, IngesterSettings)
