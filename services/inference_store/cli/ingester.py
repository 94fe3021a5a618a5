"""`inference-store ingester`"""

import argparse
import asyncio

import uvloop

from inference_store.ingester.run import run as ingest
from inference_store.store.settings import IngesterSettings

from .start import started


def add_arguments(_: argparse.ArgumentParser) -> None:
    """Everything is a setting."""


def run(_: argparse.Namespace) -> int:
    """Ingest until stopped."""
    settings = started(IngesterSettings, "ingester")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ingest(settings))
    return 0
