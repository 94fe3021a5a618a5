"""Up to when an object must have been written to be judged: its event may be still to come.

Blobs are written before their event. So an object is no orphan while

- an event is unread in Kafka that is not newer: the books have each partition's next offset, and
  Kafka the time of the record there;
- a producer that was running then reports that exchanges lie in its spool;
- it is younger than the grace, in which a producer has its event out.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store.kafka import inspection
from inference_store.store.settings import KafkaSettings
from inference_store.store.tables import kafka_partition, producer_report


@dataclass(frozen=True, slots=True)
class Bound:
    """Objects from `before` on are not judged; None: none is. `because` says why, to people."""

    before: datetime | None
    because: str


async def bound(
    connection: AsyncConnection,
    settings: KafkaSettings | None,
    *,
    grace_seconds: float,
    now: datetime | None = None,
) -> Bound:
    """The bound of today. Where Kafka cannot be asked nothing is judged."""
    now = now or datetime.now(UTC)
    if settings is None:
        return Bound(None, "no settings of Kafka that can be used, so its events are not known")
    try:
        unread = await inspection.oldest_unread(settings, await _read(connection, settings))
    except inspection.AWAY as error:
        said = str(error) or type(error).__name__
        return Bound(None, f"Kafka cannot be asked for its oldest unread event: {said}"[:500])
    spooled = await _spooled_since(connection)
    grace = timedelta(seconds=grace_seconds)
    bounds = [(now, "every event has been read, and no producer reports a spool")]
    if unread is not None:
        bounds.append((unread, f"the oldest unread event is of {unread:%Y-%m-%d %H:%M:%S} UTC"))
    if spooled is not None:
        said = f"a producer that reports a spool runs since {spooled:%Y-%m-%d %H:%M:%S} UTC"
        bounds.append((spooled, said))
    at, because = min(bounds)
    return Bound(at - grace, f"{because}; grace {grace_seconds:g} s")


async def _read(connection: AsyncConnection, settings: KafkaSettings) -> dict[int, int]:
    """The next offset of each partition, of its newest epoch."""
    here = kafka_partition.c
    query = (
        select(here.partition, here.next)
        .where(here.cluster == settings.kafka_cluster, here.topic == settings.kafka_topic)
        .ext(distinct_on(here.partition))
        .order_by(here.partition, here.epoch.desc())
    )
    return {row.partition: row.next for row in await connection.execute(query)}


async def _spooled_since(connection: AsyncConnection) -> datetime | None:
    """Since when the first of the producers runs of whom the newest report names a spool."""
    here = producer_report.c
    newest = (
        select(here.spooled, here.booted_at)
        .ext(distinct_on(here.producer))
        .order_by(here.producer, here.reported_at.desc())
        .subquery()
    )
    query = select(newest.c.booted_at).where(newest.c.spooled > 0)
    found: datetime | None = await connection.scalar(query.order_by(newest.c.booted_at).limit(1))
    return found
