"""A proxy ends within its grace, whatever Kafka does, and its final report is not lost."""

import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from inference_store.inference.producer_reports import decode
from inference_store.platform.settings import CaptureSettings, ProxySettings
from inference_store.proxy.capture import process, reporting
from inference_store.proxy.capture.captures import Captures
from inference_store.proxy.capture.counts import Counts
from inference_store.proxy.capture.reporting import Reporting
from inference_store.proxy.capture.shutdown_deadline import ShutdownDeadline
from inference_store.proxy.capture.spools import Spools
from tests.exchanges import PROTOCOL
from tests.settings import make_settings

from .recording import Bucket, hand_over, make_start, wait_until_true


class Silent:
    """A Kafka that never answers, and cannot be left, either."""

    def __init__(self) -> None:
        self.was_asked = threading.Event()

    async def publish(self, *_: object, **__: object) -> None:
        self.was_asked.set()
        await asyncio.Event().wait()

    report = close = publish


@pytest.mark.parametrize("spool", ["off", "overflow"])
async def test_the_end_is_within_the_grace_while_kafka_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spool: Any
) -> None:
    monkeypatch.setattr(process, "_FINAL_REPORT_SECONDS", 300.0)  # the process ends by itself
    settings = make_settings(
        ProxySettings,
        proxy_upstream="http://up",
        proxy_report_seconds=300,
        proxy_spool=spool,
        proxy_spool_directory=tmp_path,
    )
    kafka = Silent()
    captures = Captures(settings, start=make_start(Bucket(), kafka, {PROTOCOL.name: PROTOCOL}))
    await captures.start()
    assert hand_over(captures) == 1
    await wait_until_true(kafka.was_asked.is_set)
    assert await captures.stop(0) == 1
    # what it would have said is there for whoever comes next
    reports = await asyncio.to_thread(lambda: list(tmp_path.glob("*/report")))
    assert len(reports) == (spool == "overflow")


async def test_gives_up_slow_work_and_reports_failures() -> None:
    assert 0 < ShutdownDeadline(600).seconds_left <= 600
    deadline = ShutdownDeadline(0)
    await deadline.run(asyncio.Event().wait())
    assert deadline.seconds_left == 0

    async def fail() -> None:
        raise OSError("why")

    with pytest.raises(OSError, match="why"):
        await ShutdownDeadline(600).run(fail())


class SlowTopic:
    """Acknowledges a report once it is told to."""

    def __init__(self) -> None:
        self.reports: list[bytes] = []
        self.came, self.answers = asyncio.Event(), asyncio.Event()

    async def publish(self, *_: object, **__: object) -> None:
        raise AssertionError("nothing is captured")

    async def report(self, _: bytes, value: bytes) -> None:
        self.reports.append(value)
        self.came.set()
        await self.answers.wait()

    async def close(self) -> None: ...


async def test_without_a_spool_the_final_report_waits_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reporting, "_SECONDS", 0.0)
    monkeypatch.setattr(reporting, "_FINAL_SECONDS", 300.0)
    topic, counts = SlowTopic(), Counts("p", "p", datetime.now(UTC))
    settings = CaptureSettings.model_validate({"proxy_spool": "off"})
    reports = Reporting(topic, counts, Spools(settings, counts, None))
    sending = asyncio.create_task(reports.send_final_reports(600))
    await topic.came.wait()
    for _ in range(100):  # it would give up in the first turns
        await asyncio.sleep(0)
    assert not sending.done()
    topic.answers.set()
    report = await sending
    assert report.final
    assert [decode(sent) for sent in topic.reports] == [report]
