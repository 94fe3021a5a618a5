"""The metrics of an ingester before any event: an alert also sees the first burst."""

from collections.abc import Callable
from pathlib import Path

import httpx

from inference_store.inference.events import DEAD_LETTER_REASONS
from tests.servers.fixtures import MakeEnvironment
from tests.service_process import Service


def test_counters_begin_at_zero(
    service_environment: MakeEnvironment, topic: Callable[..., str], tmp_path: Path
) -> None:
    ingester = Service("ingester", service_environment(KAFKA_TOPIC=topic()), tmp_path).wait_ready()
    try:
        metrics = httpx.get(f"{ingester.admin}/metrics", timeout=120).text
    finally:
        ingester.stop()
    for reason in DEAD_LETTER_REASONS:
        assert f'inference_store_ingester_dead_letters_total{{reason="{reason}"}} 0.0' in metrics
    for server in ("kafka", "postgres", "object store"):
        assert f'inference_store_ingester_trouble_total{{server="{server}"}} 0.0' in metrics
