"""The broker as a part of the stack."""

import os
import sys
from dataclasses import dataclass

from .folder import LocalFolder
from .part import READY_SECONDS, Part, RunningPart

NAME = "kafka"


@dataclass(frozen=True, slots=True)
class Kafka:
    """A running broker."""

    running: RunningPart
    bootstrap_servers: str


def start_kafka(folder: LocalFolder, topic: str, partitions: int) -> Kafka:
    """Start the broker with an empty topic, and wait until it listens.

    Must be called by the main thread. Raises LocalStackError.
    """
    address = folder.run / "kafka.address"
    address.unlink(missing_ok=True)  # the last start's
    module = "inference_store.local.broker"
    part = Part(
        name=NAME,
        command=(sys.executable, "-m", module, str(address), topic, str(partitions)),
        environment=dict(os.environ),
        current_folder=folder.path,
    )
    running = RunningPart(part, folder)
    running.wait_ready(lambda: None if address.exists() else "no address yet", READY_SECONDS)
    return Kafka(running, address.read_text())
