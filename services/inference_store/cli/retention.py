"""`inference-store retention`"""

import argparse
import asyncio

import uvloop

from inference_store.retention.run import run as retain
from inference_store.store.settings import RetentionSettings

from .start import started


def add_arguments(_: argparse.ArgumentParser) -> None:
    """Everything is a setting."""


def run(_: argparse.Namespace) -> int:
    """Delete by policy until stopped."""
    settings = started(RetentionSettings, "retention")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(retain(settings))
    return 0
