"""The orphans are erased by the command, as an operator does it: first look, then erase."""

from pathlib import Path

from inference_store.inference.events import StorageKey
from inference_store.platform.settings import KafkaSettings, RetentionSettings
from tests.integration.retention.stored import Storing, environment_of
from tests.service_process import Service

from .conftest import Command


async def test_command_estimates_and_then_erases_orphans(
    storing: Storing,
    command: Command,
    settings: RetentionSettings,
    kafka: KafkaSettings,
    tmp_path: Path,
) -> None:
    for key in ("p/one", "p/two"):
        storing.blobs.put(StorageKey(storing.bucket, key), b"x", content_type="text/plain")
    changed = {"RECONCILE_PREFIXES": "p", "RECONCILE_GRACE_SECONDS": "0"}
    changed |= {"KAFKA_TOPIC": kafka.kafka_topic}
    code, report = await command("--repair", "erase", **changed)
    assert (code, report["counts"]["orphans"]) == (1, 2)
    assert (report["would_erase"]["objects"], report["would_erase"]["bytes"]) == (2, 2)
    assert {"p/one", "p/two"} <= storing.objects()
    environment = environment_of(settings) | {"INFERENCE_STORE_RECONCILE_GRACE_SECONDS": "0"}
    service = Service("retention", environment, tmp_path)
    try:
        for _ in range(2):  # the second call only follows the erasure
            code, erased = await command("--repair", "erase", "--report", report["id"])
            assert (code, erased["cause"], erased["objects"]) == (0, "orphans", 2)
    finally:
        service.stop()
    assert not {"p/one", "p/two"} & storing.objects()
