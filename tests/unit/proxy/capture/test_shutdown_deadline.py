"""A proxy ends within its grace, whatever Kafka does."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from inference_store.inference.events import StorageKey
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.captures import Captures
from inference_store.proxy.capture.shutdown_deadline import ShutdownDeadline
from inference_store.proxy.rules import Rules
from tests.exchanges import CALL, PROTOCOL, exchange, request_body
from tests.settings import make_settings

from .recording import make_start


class Bucket:
    def put(self, key: StorageKey, data: bytes, *, content_type: str) -> None: ...


class Silent:
    """A Kafka that never answers, and cannot be left, either."""

    async def publish(self, *_: object, **__: object) -> None:
        await asyncio.Event().wait()

    report = close = publish


@pytest.mark.parametrize("spool", ["off", "overflow"])
async def test_the_end_is_within_the_grace_while_kafka_is_silent(
    tmp_path: Path, spool: Any
) -> None:
    settings = make_settings(
        ProxySettings,
        proxy_upstream="http://up",
        proxy_report_seconds=0.05,
        proxy_spool=spool,
        proxy_spool_directory=tmp_path,
    )
    captures = Captures(settings, start=make_start(Bucket(), Silent(), {PROTOCOL.name: PROTOCOL}))
    await captures.start()
    body = request_body()
    reservation = captures.begin(len(body))
    assert reservation is not None
    reservation.finish(exchange(body), CALL, Rules(), "m")
    began = time.monotonic()
    assert await captures.stop(4.0) == 1
    assert time.monotonic() - began < 60
    # what it would have said is there for whoever comes next
    assert await asyncio.to_thread(_count_reports, tmp_path) == (spool == "overflow")


def _count_reports(root: Path) -> int:
    return len(list(root.glob("*/report")))


async def test_gives_up_slow_work_and_reports_failures() -> None:
    deadline = ShutdownDeadline(0.05)
    assert 0 < deadline.seconds_left <= 0.05
    await deadline.run(asyncio.Event().wait())
    assert deadline.seconds_left == 0

    async def fail() -> None:
        raise OSError("why")

    with pytest.raises(OSError, match="why"):
        await ShutdownDeadline(5).run(fail())
