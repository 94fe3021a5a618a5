"""`inference-store api`"""

import argparse
import asyncio

import uvloop

from inference_store.access.rights import read_roles
from inference_store.api.run import serve
from inference_store.objects.clients import web_identity
from inference_store.platform.settings import ApiSettings, BlobSettings, Checks, RoleSettings

from .command import Command, start_service

CHECKS: Checks = {BlobSettings: web_identity, RoleSettings: read_roles}


def run(_: argparse.Namespace) -> int:
    """Serve until stopped."""
    settings = start_service(ApiSettings, "api", CHECKS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))
    return 0


API = Command(run, ApiSettings)
