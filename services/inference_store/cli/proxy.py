"""`inference-store proxy`"""

import argparse
import asyncio

import uvloop

from inference_store.proxy.run import serve
from inference_store.store.settings import ProxySettings

from .start import started


def add_arguments(_: argparse.ArgumentParser) -> None:
    """Everything is a setting."""


def run(_: argparse.Namespace) -> int:
    """Pass calls through until stopped."""
    settings = started(ProxySettings, "proxy")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))
    return 0
