"""The stored reconciliations: requests, progress, findings.

pending → comparing → repairing (if that was requested) → done, or `failed` with the reason.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations, groupby
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, get_args
from uuid import UUID, uuid4

from sqlalchemy import Select, delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure.housekeeping import ENDED_REPORTS, REBUILT_NOTHING
from inference_store.index.tables import (
    kafka_partition,
    producer_report,
    reconciliation,
    reconciliation_finding,
)
from inference_store.inference.errors import Fault, Invalid, NotFound
from inference_store.inference.events import SCHEME, Buckets
from inference_store.inference.field_docs import Hidden, Stored
from inference_store.inference.layout import EDITED, SIDECARS, TRUTH, segment_of
from inference_store.platform.settings import KafkaSettings

Cause = Literal["schedule", "request", "command"]
Repair = Literal["none", "rebuild"]
Kind = Literal["orphan", "missing", "unreadable"]
REPAIRS: Final = get_args(Repair)
FINAL: Final = ("done", "failed")
# Further findings of a kind are counted, and not named.
MOST_FINDINGS: Final = 1_000_000
KEEP_NEWEST: Final = 10
_ROWS = 1000
_ERROR_CHARACTERS = 2000


class Reconciliation(Stored):
    """One comparison of bucket and index."""

    id: UUID
    model_id: str | None
    """Null: every model."""
    cause: str
    """`schedule`, `request` or `command`."""
    repair: str
    """`none` or `rebuild`."""
    state: str
    """pending, comparing, repairing, done or failed."""
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    places: list[str]
    """Where it looks."""
    place: int
    """How many of the places are done; of the next one it is behind `after`."""
    after: str
    noted_at: datetime | None
    """When it was noted where the topic ends; null: it could not be."""
    noted: Hidden[Mapping[str, Any] | None]
    orphans_before: datetime | None
    """Objects that are younger are not judged; null: none is."""
    because: str | None
    """What that time comes from."""
    counts: Mapping[str, int]
    """objects, bytes, named (by rows), missing, orphans, orphan_bytes, young, awaited, unjudged,
    and what a repair did."""
    books: Mapping[str, int] | None
    """stored + rebuilt - erased + difference = indexed, in inferences of every model."""
    error: str | None

    def count(self, name: str) -> int:
        """Return a count; 0 if nothing of the kind was found."""
        return self.counts.get(name, 0)


class Finding(NamedTuple):
    """A finding: an object in the bucket or a key in the index that the other does not have."""

    kind: Kind
    """`orphan`: an object without a row; `missing`: a row without its object; `unreadable`: an
    object that a rebuild could not read."""
    storage_key: str
    model_id: str | None = None
    uid: UUID | None = None
    bytes: int | None = None
    modified_at: datetime | None = None
    state: str = "found"
    """`found`; of an orphan that was to be erased `erased`, `held` (a legal hold may keep it) or
    `kept` (it is no orphan any more)."""
    detail: str | None = None


async def request_reconciliation(
    connection: AsyncConnection, *, model_id: str | None, cause: Cause, repair: Repair = "none"
) -> Reconciliation:
    """Request a reconciliation, and return it."""
    values = {"id": uuid4(), "model_id": model_id, "cause": cause, "repair": repair}
    inserted = reconciliation.insert().values(**values, state="pending").returning(reconciliation)
    return Reconciliation.model_validate((await connection.execute(inserted)).one())


async def get(connection: AsyncConnection, id: UUID) -> Reconciliation:
    """Return a reconciliation. Raises NotFound."""
    for found in await _read(connection, select(reconciliation).where(reconciliation.c.id == id)):
        return found
    raise NotFound(f"There is no reconciliation {id}.")


async def _read(connection: AsyncConnection, query: Select[Any]) -> list[Reconciliation]:
    return [Reconciliation.model_validate(row) for row in await connection.execute(query)]


async def list_page(
    connection: AsyncConnection, *, before: tuple[datetime, UUID] | None = None, limit: int = 100
) -> list[Reconciliation]:
    """Return a page, the newest first; `before`: (requested_at, id) of the last one of the page
    before."""
    here = reconciliation.c
    query = select(reconciliation).order_by(here.requested_at.desc(), here.id.desc())
    if before is not None:
        query = query.where(tuple_(here.requested_at, here.id) < before)
    return await _read(connection, query.limit(limit))


async def find_unfinished(
    connection: AsyncConnection,
    *,
    repairs: Sequence[Repair] = REPAIRS,
    cause: Cause | None = None,
    model_id: str | None = None,
) -> Reconciliation | None:
    """Return the oldest that is not over; with `cause`, one of that cause over exactly that
    model."""
    here = reconciliation.c
    query = select(reconciliation).where(here.state.not_in(FINAL), here.repair.in_(repairs))
    if cause is not None:
        same = here.model_id.is_not_distinct_from(model_id)
        query = query.where(here.cause == cause, same)
    return next(iter(await _read(connection, query.order_by(here.requested_at).limit(1))), None)


async def list_noted(connection: AsyncConnection) -> list[Reconciliation]:
    """Return those that noted where their topic ended when they began, the newest first."""
    here = reconciliation.c
    query = select(reconciliation).where(here.noted_at.is_not(None))
    return await _read(connection, query.order_by(here.noted_at.desc()).limit(2 * KEEP_NEWEST))


async def find_newest(connection: AsyncConnection) -> Reconciliation | None:
    """Return the newest reconciliation of all models, whatever its cause; None without one."""
    here = reconciliation.c
    query = select(reconciliation).where(here.state == "done", here.model_id.is_(None))
    newest = query.order_by(here.finished_at.desc()).limit(1)
    return next(iter(await _read(connection, newest)), None)


async def find_last_request(connection: AsyncConnection, cause: Cause) -> datetime | None:
    """Return when one was last requested for this cause."""
    here = reconciliation.c
    query = select(func.max(here.requested_at)).where(here.cause == cause)
    last: datetime | None = await connection.scalar(query)
    return last


async def update_reconciliation(
    connection: AsyncConnection, id: UUID, **values: Any
) -> Reconciliation:
    """Store the progress of a reconciliation, and return it."""
    here = reconciliation.c.id == id
    updated = update(reconciliation).where(here).values(values).returning(reconciliation)
    return Reconciliation.model_validate((await connection.execute(updated)).one())


async def finish_reconciliation(
    connection: AsyncConnection, id: UUID, *, error: str | None = None
) -> Reconciliation:
    """End a reconciliation, with the error if it failed; findings of earlier ones are deleted."""
    here = reconciliation.c
    newest = select(here.id).order_by(here.requested_at.desc()).limit(KEEP_NEWEST)
    # what rebuilt something stays, because the offset accounting names it, and so do those whose
    # orphans are being erased
    old = delete(reconciliation).where(here.id.not_in(newest), ENDED_REPORTS, REBUILT_NOTHING)
    await connection.execute(old)
    values = {"finished_at": func.now(), "error": error and error[:_ERROR_CHARACTERS]}
    return await update_reconciliation(
        connection, id, state="failed" if error else "done", **values
    )


async def add_findings(connection: AsyncConnection, id: UUID, findings: Sequence[Finding]) -> None:
    """Store findings; those that are stored already stay as they are."""
    for start in range(0, len(findings), _ROWS):
        rows = [
            {"reconciliation": id, **finding._asdict()}
            for finding in findings[start : start + _ROWS]
        ]
        inserted = insert(reconciliation_finding).values(rows).on_conflict_do_nothing()
        await connection.execute(inserted)


async def list_findings(
    connection: AsyncConnection,
    id: UUID,
    *,
    kind: Kind | None = None,
    state: str | None = None,
    after: tuple[str, str] | None = None,
    limit: int = 100,
) -> list[Finding]:
    """Return a page of findings, by kind and storage key; `after`: those of the last one of the
    page before."""
    here = reconciliation_finding.c
    columns = [here[name] for name in Finding._fields]
    query = select(*columns).where(here.reconciliation == id)
    if kind is not None:
        query = query.where(here.kind == kind)
    if state is not None:
        query = query.where(here.state == state)
    if after is not None:
        query = query.where(tuple_(here.kind, here.storage_key) > after)
    query = query.order_by(here.kind, here.storage_key).limit(limit)
    return [Finding(*row) for row in await connection.execute(query)]


# Finds the time before which an object must have been written to be judged.
#
# Blobs are written before their event, and no record says how late an event may come: one that
# waited for Kafka is new in the topic, and its objects are old. So the ends of the topic are noted,
# and an object is an orphan only if it was written, by the grace period, before
#
# - a note up to which every event has been read since, whenever it came;
# - the start of any producer that reports a spool, whoever found it;
# - the last report of a producer that did not end well: what it wrote since may wait.

# How long to wait for a producer that did not end well, after its last report.
_HEARD: Final = timedelta(days=7)
# A topic in which nothing was read for so long is no longer in use.
_READ: Final = timedelta(days=30)
NEVER: Final = datetime.min.replace(tzinfo=UTC)


class NotKnown(Exception):
    """The reason why nothing can be judged, for people."""


async def note_end(
    connection: AsyncConnection, settings: KafkaSettings | None
) -> tuple[datetime, dict[str, Any]]:
    """Return where the topic ends now, as it is noted. Raises NotKnown if that cannot be read."""
    if settings is None:
        raise NotKnown("no settings of Kafka that can be used, so its events are not known")
    await _refuse_others(connection, settings)
    # before the request to Kafka: what is read meanwhile lies before the end
    read, at = await read_offsets(connection, settings), datetime.now(UTC)
    with _asking_kafka("where its topic ends") as kafka:
        spans: Mapping[int, tuple[int, int]] = await kafka.ends(settings)
    if not spans:
        raise NotKnown(f"Kafka has no topic {settings.kafka_topic}")
    if recreated := sorted(n for n, (_, end) in spans.items() if read.get(n, 0) > end):
        raise NotKnown(
            f"partition {recreated[0]} ends before what was read of it: the topic was created"
            " again, and no ingester has noticed that yet"
        )
    ends = {str(number): end for number, (_, end) in spans.items()}
    return at, {"cluster": settings.kafka_cluster, "topic": settings.kafka_topic, "ends": ends}


async def is_read(
    connection: AsyncConnection, settings: KafkaSettings, noted: Mapping[str, Any]
) -> bool:
    """Return whether every event that was in the topic then has been read. Raises NotKnown."""
    if (noted["cluster"], noted["topic"]) != (settings.kafka_cluster, settings.kafka_topic):
        return False
    read = await read_offsets(connection, settings)
    ends = {int(number): end for number, end in noted["ends"].items()}
    unread = {number: end for number, end in ends.items() if read.get(number, 0) < end}
    if not unread:
        return True
    with _asking_kafka("for its unread events") as kafka:
        return not await kafka.has_unread(settings, read, unread)


@contextmanager
def _asking_kafka(what: str) -> Iterator[ModuleType]:
    # Imported by a reconciliation alone: nothing else of the api or retention needs aiokafka.
    from inference_store.platform import kafka  # noqa: PLC0415

    try:
        yield kafka
    except kafka.KAFKA_ERRORS as error:
        reason = str(error) or type(error).__name__
        raise NotKnown(f"Kafka cannot be asked {what}: {reason}"[:500]) from error


async def find_bound(
    connection: AsyncConnection, noted_at: datetime | None, *, grace_seconds: float
) -> tuple[datetime, str]:
    """Return the time from which on objects are not judged, and its reason. Raises NotKnown.

    `noted_at`: the newest note up to which all is read.
    """
    if noted_at is None:
        raise NotKnown("the ingesters have not read what was in the topic, nor ever before")
    reason = f"what was in the topic at {_format_instant(noted_at)} has been read"
    at, because = min([(noted_at, reason), *await list_waiting(connection, now=noted_at)])
    if at == NEVER:
        raise NotKnown(because)
    return at - timedelta(seconds=grace_seconds), f"{because}; grace {grace_seconds:g} s"


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
        # ground truth makes no inference of an object
        known = {settings.kafka_topic, settings.kafka_truth_topic}
        if cluster != settings.kafka_cluster or topic not in known:
            raise NotKnown(
                f"another topic is read too, {topic} of the cluster {cluster}, and these settings"
                " do not name it"
            )


async def read_offsets(connection: AsyncConnection, settings: KafkaSettings) -> dict[int, int]:
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


_SETTING = "INFERENCE_STORE_RECONCILE_PREFIXES"


@dataclass(frozen=True, slots=True)
class BucketPrefix:
    """A prefix of a bucket, without a slash at its end; `segment`: the part of one model in it."""

    bucket: str
    prefix: str
    segment: str | None = None

    @property
    def root(self) -> str:
        """The text before the segments of its models: `s3://bucket/prefix/`."""
        return f"{SCHEME}{self.bucket}/{self.prefix}{'/' if self.prefix else ''}"

    @property
    def first(self) -> str:
        """The text that all its storage keys begin with."""
        return self.root if self.segment is None else f"{self.root}{self.segment}/"

    @property
    def end(self) -> str:
        """A text after all its storage keys, and before all others that follow them."""
        # `0` is the character after the slash
        return self.first[:-1] + "0"

    @property
    def listed(self) -> str:
        """The prefix to list the bucket by."""
        return self.first.removeprefix(f"{SCHEME}{self.bucket}/")

    def __str__(self) -> str:
        return self.first


def parse_prefixes(text: str, buckets: Buckets, model_id: str | None = None) -> list[BucketPrefix]:
    """Return the prefixes of the setting, and those where the store itself writes.

    Raises Invalid for a bucket that is not allowed and for one prefix within another.
    """
    prefixes = [_parse_prefix(part.strip(), buckets) for part in text.split(",") if part.strip()]
    if text.strip() in {"", "/"}:
        prefixes = [BucketPrefix(buckets.default, "")]
    ours = [BucketPrefix(buckets.default, prefix) for prefix in (SIDECARS, EDITED, TRUTH)]
    prefixes = list(dict.fromkeys(prefixes))
    for outer, inner in combinations(sorted(prefixes, key=str), 2):
        if _is_within(inner, outer):
            raise _refuse(f"{inner} lies within {outer}: name the wider one alone")
    prefixes += [
        prefix for prefix in ours if not any(_is_within(prefix, other) for other in prefixes)
    ]
    if model_id is None:
        return prefixes
    segments = {True: segment_of(model_id), False: segment_of(model_id)}
    return [replace(prefix, segment=segments[prefix in ours]) for prefix in prefixes]


def _parse_prefix(text: str, buckets: Buckets) -> BucketPrefix:
    bucket, prefix = buckets.default, text
    if text.startswith(SCHEME):
        bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    if bucket not in buckets.allowed and bucket != buckets.default:
        raise _refuse(f"the bucket {bucket} is not allowed (INFERENCE_STORE_S3_ALLOWED_BUCKETS)")
    return BucketPrefix(bucket, prefix.strip("/"))


def _refuse(message: str) -> Invalid:
    return Invalid(f"{_SETTING}: {message}.", faults=[Fault("places", message)])


def _is_within(inner: BucketPrefix, outer: BucketPrefix) -> bool:
    return inner.root.startswith(outer.root)
