"""`inference-store retention`"""

import argparse
import asyncio
import gc

import uvloop
from pydantic import ValidationError

from inference_store.erasure.log import signing_keys
from inference_store.objects.clients import web_identity
from inference_store.platform.settings import (
    BlobSettings,
    CertificateSettings,
    Checks,
    KafkaSettings,
    RetentionSettings,
)
from inference_store.retention.run import run as retain

from .command import Command, start_service

CHECKS: Checks = {CertificateSettings: signing_keys, BlobSettings: web_identity}


def run(_: argparse.Namespace) -> int:
    """Delete by policy until stopped."""
    settings = start_service(RetentionSettings, "retention", CHECKS)
    # A batch is thousands of objects without reference cycles; see the ingester.
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(retain(settings, kafka=_read_kafka_settings()))
    return 0


def _read_kafka_settings() -> KafkaSettings | None:
    """Return the settings of Kafka, where events may be unread.

    Deletion needs no Kafka: the service starts without it.
    """
    try:
        return KafkaSettings()
    except ValidationError:
        return None


RETENTION = Command(run, RetentionSettings)
