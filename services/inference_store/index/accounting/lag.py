"""The ingesters' lag, as they measured it: the api has no connection to Kafka."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import consumer_lag

from .partition_id import PartitionId


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The end of a partition's log, and the arrival of the oldest record that is not written."""

    end_offset: int
    oldest_waiting_at: datetime | None


@dataclass(frozen=True, slots=True)
class MeasuredEnd(LogEnd):
    """The same, with the time of the measurement."""

    measured_at: datetime


async def store_ends(connection: AsyncConnection, ends: Mapping[PartitionId, LogEnd]) -> None:
    """Store what an ingester has measured of its partitions; the newest measurement stays."""
    rows = [
        {
            **partition_id.values,
            "end_offset": end.end_offset,
            "oldest_waiting_at": end.oldest_waiting_at,
        }
        for partition_id, end in sorted(ends.items())  # in one order everywhere
    ]
    if not rows:
        return
    insertion = upsert(consumer_lag).values(rows)
    changes = {
        name: insertion.excluded[name]
        for name in ("end_offset", "oldest_waiting_at", "measured_at")
    }
    keys = consumer_lag.primary_key.columns
    await connection.execute(insertion.on_conflict_do_update(index_elements=keys, set_=changes))


async def find_ends(connection: AsyncConnection) -> dict[PartitionId, MeasuredEnd]:
    """Return what was measured last of each partition and epoch."""
    return {
        PartitionId(row.cluster, row.topic, row.epoch, row.partition): MeasuredEnd(
            row.end_offset, row.oldest_waiting_at, row.measured_at
        )
        for row in await connection.execute(select(consumer_lag))
    }
