"""`inference-store api`"""

import argparse
import asyncio
import sys

import uvloop

from inference_store.api.access import OpenToAll
from inference_store.api.run import serve
from inference_store.store.settings import ApiSettings

from .start import started


def add_arguments(_: argparse.ArgumentParser) -> None:
    """Everything is a setting."""


def run(_: argparse.Namespace) -> int:
    """Serve until stopped."""
    settings = started(ApiSettings, "api")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings))
    except OpenToAll as open_to_all:
        sys.exit(str(open_to_all))
    return 0
