"""Finds the time before which an object must have been written to be judged.

Blobs are written before their event, and no record says how late an event may come: one that waited
for Kafka is new in the topic, and its objects are old. So the ends of the topic are noted, and an
object is an orphan only if it was written, by the grace period, before

- a note up to which every event has been read since, whenever it came;
- the start of any producer that reports a spool, whoever found it;
- the last report of a producer that did not end well: what it wrote since may wait.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.tables import kafka_partition, producer_report
from inference_store.platform.settings import KafkaSettings

# How long to wait for a producer that did not end well, after its last report.
_HEARD: Final = timedelta(days=7)
# A topic in which nothing was read for so long is no longer in use.
_READ: Final = timedelta(days=30)
NEVER: Final = datetime.min.replace(tzinfo=UTC)


class NotKnown(Exception):
    """The reason why nothing can be judged, for people."""


@dataclass(frozen=True, slots=True)
class Note:
    """The ends of a topic's partitions, `at` a time."""

    at: datetime
    cluster: str
    topic: str
    ends: Mapping[int, int]

    @property
    def document(self) -> dict[str, Any]:
        """The note as it is stored."""
        ends = {str(partition): end for partition, end in self.ends.items()}
        return {"cluster": self.cluster, "topic": self.topic, "ends": ends}

    @classmethod
    def of(cls, at: datetime, document: Mapping[str, Any]) -> "Note":
        """Read a stored note."""
        ends = {int(partition): end for partition, end in document["ends"].items()}
        return cls(at, document["cluster"], document["topic"], ends)


@dataclass(frozen=True, slots=True)
class Bound:
    """Objects from `before` on are not judged; None: none is judged. `because`: the reason, for
    people."""

    before: datetime | None
    because: str


async def note_end(connection: AsyncConnection, settings: KafkaSettings | None) -> Note:
    """Note where the topic ends now. Raises NotKnown if that cannot be read."""
    # Imported by a reconciliation alone: nothing else of the api or retention needs aiokafka.
    from inference_store.platform.kafka import inspection  # noqa: PLC0415

    if settings is None:
        raise NotKnown("no settings of Kafka that can be used, so its events are not known")
    await _refuse_others(connection, settings)
    # before the request to Kafka: what is read meanwhile lies before the end
    read, at = await _read_offsets(connection, settings), datetime.now(UTC)
    try:
        ends = {number: end for number, (_, end) in (await inspection.ends(settings)).items()}
    except inspection.KAFKA_ERRORS as error:
        reason = str(error) or type(error).__name__
        raise NotKnown(f"Kafka cannot be asked where its topic ends: {reason}"[:500]) from error
    if not ends:
        raise NotKnown(f"Kafka has no topic {settings.kafka_topic}")
    if recreated := sorted(number for number, end in ends.items() if read.get(number, 0) > end):
        raise NotKnown(
            f"partition {recreated[0]} ends before what was read of it: the topic was created"
            " again, and no ingester has noticed that yet"
        )
    return Note(at, settings.kafka_cluster, settings.kafka_topic, ends)


async def is_read(connection: AsyncConnection, settings: KafkaSettings, note: Note) -> bool:
    """Return whether every event that was in the topic then has been read. Raises NotKnown."""
    from inference_store.platform.kafka import inspection  # noqa: PLC0415  (as above)

    if (note.cluster, note.topic) != (settings.kafka_cluster, settings.kafka_topic):
        return False
    read = await _read_offsets(connection, settings)
    unread = {number: end for number, end in note.ends.items() if read.get(number, 0) < end}
    if not unread:
        return True
    try:
        return not await inspection.has_unread(settings, read, unread)
    except inspection.KAFKA_ERRORS as error:
        reason = str(error) or type(error).__name__
        raise NotKnown(f"Kafka cannot be asked for its unread events: {reason}"[:500]) from error


async def is_ever_read(connection: AsyncConnection, settings: KafkaSettings) -> bool:
    """Return whether the offset accounting knows the topic at all."""
    return bool(await _read_offsets(connection, settings))


async def find_bound(
    connection: AsyncConnection, read: Note | None, *, grace_seconds: float
) -> Bound:
    """Return the bound by the newest note up to which all is read; None if there is none."""
    if read is None:
        return Bound(None, "the ingesters have not read what was in the topic, nor ever before")
    reason = f"what was in the topic at {_format_instant(read.at)} has been read"
    at, because = min([(read.at, reason), *await list_waiting(connection, now=read.at)])
    if at == NEVER:
        return Bound(None, because)
    return Bound(at - timedelta(seconds=grace_seconds), f"{because}; grace {grace_seconds:g} s")


async def list_waiting(connection: AsyncConnection, *, now: datetime) -> list[tuple[datetime, str]]:
    """Return since when producers may have exchanges that are not in the topic, with the reason."""
    here = producer_report.c
    columns = (here.producer, here.reporter, here.booted_at, here.reported_at)
    query = select(*columns, here.spooled, here.final, here.heard_at)
    rows = await connection.execute(query.order_by(here.producer, here.reported_at))
    bounds = (
        _find_since(list(reports), now) for _, reports in groupby(rows, lambda row: row.producer)
    )
    return [bound for bound in bounds if bound is not None]


def _find_since(reports: Sequence[Any], now: datetime) -> tuple[datetime, str] | None:
    """Return the same for one producer, whose newest report is the last."""
    newest = reports[-1]
    own = [report for report in reports if report.reporter == report.producer]
    if newest.spooled > 0:
        if not own:  # whoever found its spool does not know when it ran
            return NEVER, "a spool is reported of an unknown producer"
        booted = min(report.booted_at for report in own)
        return booted, f"a producer that reports a spool ran since {_format_instant(booted)}"
    if newest.final or newest.reporter != newest.producer or newest.heard_at < now - _HEARD:
        return None
    reason = (
        f"a producer that has not ended was last heard at {_format_instant(newest.reported_at)}"
    )
    return newest.reported_at, reason


async def _refuse_others(connection: AsyncConnection, settings: KafkaSettings) -> None:
    """Raise NotKnown if producers use another topic, which nobody reads."""
    here = kafka_partition.c
    query = select(here.cluster, here.topic).where(here.updated_at > func.now() - _READ)
    for cluster, topic in await connection.execute(query.distinct().order_by(here.topic)):
        if (cluster, topic) != (settings.kafka_cluster, settings.kafka_topic):
            raise NotKnown(
                f"another topic is read too, {topic} of the cluster {cluster}, and these settings"
                " do not name it"
            )


async def _read_offsets(connection: AsyncConnection, settings: KafkaSettings) -> dict[int, int]:
    """Return the next offset of each partition, of its newest epoch."""
    here = kafka_partition.c
    query = (
        select(here.partition, here.next)
        .where(here.cluster == settings.kafka_cluster, here.topic == settings.kafka_topic)
        .ext(distinct_on(here.partition))
        .order_by(here.partition, here.epoch.desc())
    )
    return {row.partition: row.next for row in await connection.execute(query)}


def _format_instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
