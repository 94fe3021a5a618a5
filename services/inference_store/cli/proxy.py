"""`inference-store proxy`"""

import argparse
import asyncio

import uvloop

from inference_store.platform.settings import Checks, ProxySettings, UpstreamSettings
from inference_store.proxy.run import read_configuration, serve

from .command import Command, start_service

CHECKS: Checks = {UpstreamSettings: read_configuration}


def run(_: argparse.Namespace) -> int:
    """Forward calls until stopped."""
    settings = start_service(ProxySettings, "proxy", CHECKS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))
    return 0


PROXY = Command(run, ProxySettings)
