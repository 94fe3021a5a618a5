"""Sidecars are written in turns, with a sign of life before each, and one to Postgres between."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from inference_store.index.parked import Schedule
from inference_store.index.sidecars import Sidecar
from inference_store.inference.events import StorageKey
from inference_store.ingester.write import Writer

HOUR = timedelta(hours=1)
NOTHING: Any = None


class Puts:
    """Notes what is written, the beats and the statements between."""

    def __init__(self) -> None:
        self.seen: list[int | str] = []
        self.keys: list[StorageKey] = []

    def beat(self) -> None:
        self.seen.append("beat")

    async def execute(self, statement: Any) -> None:
        self.seen.append(str(statement))

    def put_many(self, objects: Sequence[tuple[StorageKey, bytes]], *, content_type: str) -> None:
        assert content_type == "application/json"
        self.seen.append(len(objects))
        self.keys += [key for key, _ in objects]


async def test_many_sidecars_beat_between_them() -> None:
    puts: Any = Puts()
    schedule = Schedule(HOUR, HOUR, HOUR)
    writer = Writer(NOTHING, NOTHING, schedule, puts, partition_target=1, beat=puts.beat)
    sidecars = [Sidecar(StorageKey("bucket", str(number)), b"{}") for number in range(120)]
    await writer.put(puts, sidecars)
    assert puts.seen == ["beat", 50, "beat", "SELECT 1", 50, "beat", "SELECT 1", 20]
    assert puts.keys == [sidecar.place for sidecar in sidecars]
    await writer.put(puts, [])
    assert len(puts.keys) == 120
