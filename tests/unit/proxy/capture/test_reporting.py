"""The final report of a producer, when Kafka is slow to take it."""

import asyncio
from datetime import UTC, datetime

import pytest

from inference_store.inference.producer_reports import decode
from inference_store.platform.settings import CaptureSettings
from inference_store.proxy.capture import reporting
from inference_store.proxy.capture.counts import Counts
from inference_store.proxy.capture.reporting import Reporting
from inference_store.proxy.capture.spools import Spools


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
    monkeypatch.setattr(reporting, "_SECONDS", 0.01)
    topic, counts = SlowTopic(), Counts("p", "p", datetime.now(UTC))
    settings = CaptureSettings.model_validate({"proxy_spool": "off"})
    reports = Reporting(topic, counts, Spools(settings, counts, None))
    sending = asyncio.create_task(reports.send_final_reports(600))
    await topic.came.wait()
    done, _ = await asyncio.wait({sending}, timeout=0.1)
    assert not done
    topic.answers.set()
    report = await sending
    assert report.final
    assert [decode(sent) for sent in topic.reports] == [report]
