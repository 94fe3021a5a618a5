import asyncio

import pytest
from aiokafka.errors import KafkaConnectionError

from inference_store.ingester.patience import Patience, Stopped
from inference_store.store.errors import BlobsAway


async def test_work_is_tried_until_its_server_is_back() -> None:
    patience = Patience(asyncio.Event(), first_seconds=0.001)
    failures: list[Exception] = [BlobsAway("gone"), KafkaConnectionError(), OSError("refused")]
    seen = []

    async def work() -> str:
        seen.append(dict(patience.away))
        if failures:
            raise failures.pop(0)
        return "done"

    assert await patience.until_done(work) == "done"
    assert [sorted(away) for away in seen] == [
        [],
        ["object store"],
        ["kafka", "object store"],
        ["kafka", "object store", "postgres"],
    ]
    assert patience.away == {}


async def test_a_stop_ends_the_wait() -> None:
    stop = asyncio.Event()
    patience = Patience(stop, first_seconds=60)

    async def work() -> None:
        stop.set()
        raise BlobsAway("gone")

    with pytest.raises(Stopped):
        await patience.until_done(work)


async def test_what_is_no_servers_fault_goes_up_at_once() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Patience(asyncio.Event(), first_seconds=60).until_done(work)
