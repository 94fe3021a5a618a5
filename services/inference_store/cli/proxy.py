"""`inference-store proxy`"""

import argparse
import asyncio

import uvloop

from inference_store.platform.settings import Checks, ProxySettings, UpstreamSettings
from inference_store.proxy.run import read_configuration, serve

from .start import start_service

CHECKS: Checks = {UpstreamSettings: read_configuration}

SETTINGS = ProxySettings


def add_arguments(_: argparse.ArgumentParser) -> None:
    """Add no arguments: the settings are enough."""


def run(_: argparse.Namespace) -> int:
    """Forward calls until stopped."""
    settings = start_service(ProxySettings, "proxy", CHECKS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))
    return 0
